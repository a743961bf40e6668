"""Correlations of pairs of numbers, NaN where there are too few pairs or one of the two is constant."""

import math
from collections.abc import Sequence

from scipy.stats import pearsonr, spearmanr

Pairs = Sequence[tuple[float, float]]
LEAST_PAIRS = 3
"""The number of pairs below which no correlation is known."""
LEAST_PAIRS_FOR_INTERVAL = 4
"""The number of pairs below which no interval of a correlation is known."""


def pearson(pairs: Pairs) -> float:
    """Pearson's r."""
    if not _vary(pairs, LEAST_PAIRS):
        return math.nan
    x, y = zip(*pairs)
    return float(pearsonr(x, y).statistic)


def rank_correlation(pairs: Pairs) -> float:
    """Spearman's rho."""
    if not _vary(pairs, LEAST_PAIRS):
        return math.nan
    x, y = zip(*pairs)
    return float(spearmanr(x, y).statistic)


def pearson_with_interval(pairs: Pairs) -> tuple[float, float, float]:
    """Pearson's r of n pairs and its 95 % interval, tanh(artanh r ± 1.96 / sqrt(n - 3)) (Fisher 1915).

    The interval takes the pairs for a sample of a normal distribution.
    """
    if not _vary(pairs, LEAST_PAIRS_FOR_INTERVAL):
        return math.nan, math.nan, math.nan
    x, y = zip(*pairs)
    correlation = pearsonr(x, y)
    r = float(correlation.statistic)
    # artanh is infinite there.
    if abs(r) >= 1:
        return r, r, r
    low, high = correlation.confidence_interval()
    return r, float(low), float(high)


def _vary(pairs: Pairs, least: int) -> bool:
    """Whether there are at least so many pairs, and neither of the two numbers is constant."""
    if len(pairs) < least:
        return False
    return all(len(set(numbers)) > 1 for numbers in zip(*pairs))
