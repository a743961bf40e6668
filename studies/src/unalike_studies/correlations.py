"""Correlations of pairs of numbers, NaN where there are too few pairs or one of the two is constant."""

import math
from collections.abc import Sequence

from scipy.stats import pearsonr, spearmanr

Pairs = Sequence[tuple[float, float]]
LEAST, LEAST_FOR_INTERVAL = 3, 4
"""Numbers of pairs below which no correlation, and no interval of one, is known."""


def pearson(pairs: Pairs) -> float:
    """Pearson's r."""
    return float(pearsonr(*zip(*pairs)).statistic) if _vary(pairs, LEAST) else math.nan


def rank_correlation(pairs: Pairs) -> float:
    """Spearman's rho."""
    return float(spearmanr(*zip(*pairs)).statistic) if _vary(pairs, LEAST) else math.nan


def pearson_with_interval(pairs: Pairs) -> tuple[float, float, float]:
    """Pearson's r of n pairs and its 95 % interval, tanh(artanh r ± 1.96 / sqrt(n - 3)) (Fisher 1915).

    The interval takes the pairs for a sample of a normal distribution.
    """
    if not _vary(pairs, LEAST_FOR_INTERVAL):
        return (math.nan,) * 3
    found = pearsonr(*zip(*pairs))
    if abs(found.statistic) >= 1:
        return (float(found.statistic),) * 3
    low, high = found.confidence_interval()
    return float(found.statistic), float(low), float(high)


def _vary(pairs: Pairs, least: int) -> bool:
    """Whether there are as many pairs, and neither of the two numbers is constant."""
    return len(pairs) >= least and all(len(set(numbers)) > 1 for numbers in zip(*pairs))
