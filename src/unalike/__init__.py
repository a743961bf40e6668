"""Federated learning for clients whose data is not alike: compare remedies fairly, then run the winner for real.

Names load on first use, so that `import unalike` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "load": "data",
    "partition": "data",
    "partition_labels": "data",
    "ClientData": "data",
    "Dataset": "data",
    "PartitionPlan": "data",
    "Population": "data",
    "model": "models",
    "run": "federation",
    "aggregate": "pieces",
    "local_update": "pieces",
    "compare": "study",
    "estimate": "study",
    "Work": "core.work",
    "Method": "core.method",
    "plan": "core.method",
    "part": "core.part",
    "Output": "core.types",
    "UnalikeError": "core.errors",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:  # "as" says to type checkers that a name is public
    from unalike.core.errors import UnalikeError as UnalikeError
    from unalike.core.method import Method as Method
    from unalike.core.method import plan as plan
    from unalike.core.part import part as part
    from unalike.core.types import Output as Output
    from unalike.core.work import Work as Work
    from unalike.data import ClientData as ClientData
    from unalike.data import Dataset as Dataset
    from unalike.data import PartitionPlan as PartitionPlan
    from unalike.data import Population as Population
    from unalike.data import load as load
    from unalike.data.partition import partition as partition
    from unalike.data.partition import partition_labels as partition_labels
    from unalike.federation import run as run
    from unalike.models import model as model
    from unalike.pieces import aggregate as aggregate
    from unalike.pieces import local_update as local_update
    from unalike.study.compare import compare as compare
    from unalike.study.compare import estimate as estimate


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unalike' has no attribute {name!r}")
    return getattr(import_module(f"unalike.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
