"""Comparisons of methods under the same conditions, their cost beforehand and their results.

Imports `runtime`, `reporting` and below. Start reading at `compare.py`.
"""

from unalike.experiments.compare import compare, estimate
from unalike.experiments.comparison import Comparison
from unalike.experiments.cost_estimate import Estimate

__all__ = ["Comparison", "Estimate", "compare", "estimate"]
