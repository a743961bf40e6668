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

if TYPE_CHECKING:
    from unalike.core.errors import UnalikeError
    from unalike.core.method import Method, plan
    from unalike.core.part import part
    from unalike.core.types import Output
    from unalike.core.work import Work
    from unalike.data import ClientData, Dataset, PartitionPlan, Population, load, partition, partition_labels
    from unalike.federation import run
    from unalike.models import model
    from unalike.pieces import aggregate, local_update
    from unalike.study import compare, estimate  # type: ignore[no-redef]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unalike' has no attribute {name!r}")
    return getattr(import_module(f"unalike.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
