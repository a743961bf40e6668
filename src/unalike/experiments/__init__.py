"""Comparisons of methods under equal conditions: running them, estimating their cost, joining their results.

`compare.py` prepares an `Experiment` (one cell per method and seed), which runs the cells and returns a `Comparison`.
`joining.py` combines several comparisons. Imports `reporting`, `runtime` and below. Start reading at `compare.py`.
"""

from unalike.experiments.compare import compare, estimate
from unalike.experiments.comparison import Comparison
from unalike.experiments.cost_estimate import Estimate
from unalike.experiments.standings import Standing, Standings, standings

__all__ = ["Comparison", "Estimate", "Standing", "Standings", "compare", "estimate", "standings"]
