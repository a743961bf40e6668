"""Federated learning for clients whose data is not alike: compare remedies fairly, then run the winner for real.

The public names are those of `unalike.api`. Each loads at its first use, so that `import unalike` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unalike._utils.version import __version__

if TYPE_CHECKING:
    from unalike.api import *  # noqa: F403

_HOMES = {
    "UnalikeError": "_utils.errors",
    "Output": "core.types",
    "Work": "core.work",
    "ClientData": "data.client_data",
    "Dataset": "data.dataset",
    "partition": "data.partitioning.partition",
    "partition_labels": "data.partitioning.partition",
    "PartitionPlan": "data.partition_plan",
    "Population": "data.population",
    "load": "data.sources.load",
    "diagnose": "diagnosis.diagnose",
    "compare": "comparison.compare",
    "estimate": "comparison.compare",
    "Method": "methods.method",
    "part": "methods.part",
    "plan": "methods.plan",
    "Logits": "models.adapter",
    "low_rank": "models.low_rank",
    "model": "models.registry",
    "open_comparison": "comparison.open_comparison",
    "sweep": "comparison.sweep.sweep",
    "open_run": "runtime.results.finished_run",
    "run": "runtime.round_loop",
    "tune": "tuning.tune",
    "aggregate": "training.functional",
    "local_update": "training.functional",
    "note": "methods.notes",
    "wire": "training.wire",
}
"""Public name -> the module that defines it."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unalike' has no attribute {name!r}")
    return getattr(import_module(f"unalike.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
