"""Data sets and their partition among clients.

`sources/` loads data sets (start at `sources/load.py`), `partitioning/` divides them (start at `partitioning/partition.py`).
A `Dataset` is undivided, a `Population` is all clients, a `ClientData` is one client.
May import `unalike.core` and `unalike._utils` only.
"""

from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.partition_plan import PartitionPlan
from unalike.data.partitioning.apply_plan import apply_plan
from unalike.data.partitioning.partition import partition, partition_labels
from unalike.data.population import Population
from unalike.data.sources import synthetic
from unalike.data.sources.load import load

__all__ = ["ClientData", "Dataset", "PartitionPlan", "Population"]
__all__ += ["apply_plan", "load", "partition", "partition_labels", "synthetic"]
