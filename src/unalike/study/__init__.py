"""Fair comparisons: the same partitions, initial weights, cohorts and batch orders for every method."""

from unalike.study.compare import compare, estimate
from unalike.study.comparison import Comparison
from unalike.study.estimate import Estimate

__all__ = ["Comparison", "Estimate", "compare", "estimate"]
