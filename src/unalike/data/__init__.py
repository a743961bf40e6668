"""Data sets, and how they fall to clients."""

from unalike.data.client_data import ClientData
from unalike.data.dataset import Dataset
from unalike.data.partitioning.partition import partition, partition_labels
from unalike.data.partitioning.partition_plan import PartitionPlan
from unalike.data.population import Population
from unalike.data.sources import synthetic
from unalike.data.sources.load import load

__all__ = ["ClientData", "Dataset", "PartitionPlan", "Population", "load", "partition", "partition_labels", "synthetic"]
