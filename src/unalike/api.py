"""The public names of the library: what `import unalike as ua` gives."""

from unalike._utils.errors import UnalikeError
from unalike._utils.version import __version__
from unalike.comparison.compare import compare, estimate
from unalike.comparison.open_comparison import open_comparison
from unalike.comparison.sweep.sweep import sweep
from unalike.core.types import Output
from unalike.core.work import Work
from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.partition_plan import PartitionPlan
from unalike.data.partitioning.partition import partition, partition_labels
from unalike.data.population import Population
from unalike.data.sources.load import load
from unalike.diagnosis.diagnose import diagnose
from unalike.methods.method import Method
from unalike.methods.notes import note
from unalike.methods.part import part
from unalike.methods.plan import plan
from unalike.models.adapter import Logits
from unalike.models.low_rank import low_rank
from unalike.models.registry import model
from unalike.runtime.results.finished_run import open_run
from unalike.runtime.round_loop import run
from unalike.training.functional import aggregate, local_update
from unalike.training.wire import wire
from unalike.tuning.tune import tune

__all__ = [
    "ClientData",
    "Dataset",
    "PartitionPlan",
    "Population",
    "load",
    "partition",
    "partition_labels",
]
__all__ += [
    "Logits",
    "Method",
    "Output",
    "aggregate",
    "local_update",
    "low_rank",
    "model",
    "note",
    "part",
    "plan",
    "wire",
]
__all__ += [
    "UnalikeError",
    "Work",
    "__version__",
    "compare",
    "diagnose",
    "estimate",
    "open_comparison",
    "open_run",
]
__all__ += ["run", "sweep", "tune"]
