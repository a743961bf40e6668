"""Statistical inference from paired results: intervals, tests with correction, ranks over several partitions.

A value is the score of one method under one seed (or on one partition). Position i of two lists has the same data, the same
initial weights and the same cohorts. Everything here is computed from the n differences d of such pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from unalike._utils.errors import UnalikeError

ALPHA = 0.05
DRAWS, BOOTSTRAP_SEED = 9999, 0
"""Number of bootstrap resamples, and their fixed seed: the same differences give the same interval."""

ROUNDING = 1e-6
"""Relative rounding error of a score: losses, and so an RMSE, are float32, and executors sum them in different orders."""


@dataclass(frozen=True)
class Paired:
    """A method compared with its baseline over `n` pairs.

    `low`..`high` is the t interval of the mean difference and `p` that of the paired t test: `p` is below 5 % exactly where
    the interval excludes 0. `boot_low`..`boot_high` is the bootstrap interval. `wilcoxon` is the p of a test that assumes no
    normal distribution. `better` is the estimated probability that the method beats the baseline.
    """

    n: int
    difference: float
    low: float
    high: float
    boot_low: float
    boot_high: float
    p: float
    wilcoxon: float
    better: float


def paired(values: Sequence[float], baseline_values: Sequence[float], sign: int = 1) -> Paired:
    """Compare two methods. `sign` is -1 if lower scores are better; it does not change the sign of the differences."""
    d = differences(values, baseline_values)
    mean, low, high, p = t_test(d)
    boot_low, boot_high = bootstrap(d)
    better = probability_better([sign * x for x in d])
    return Paired(len(d), mean, low, high, boot_low, boot_high, p, wilcoxon(d), better)


def differences(values: Sequence[float], baseline_values: Sequence[float]) -> list[float]:
    """d = values - baseline_values, rounded to 12 decimals; exactly 0 where scores differ only by float32 rounding."""
    if len(values) != len(baseline_values):
        raise UnalikeError(
            f"cannot pair {len(values)} values with {len(baseline_values)}; give one of each for every seed"
        )
    return [_difference(float(a), float(b)) for a, b in zip(values, baseline_values)]


def _difference(a: float, b: float) -> float:
    same = math.isfinite(a) and math.isclose(a, b, rel_tol=ROUNDING)
    return 0.0 if same else round(a - b, 12)


def without_rounding(scores: pd.Series) -> pd.Series:
    """The scores with one value for all that differ only by rounding, as in `differences`."""
    ordered = scores.sort_values(kind="stable")
    level = (ordered.diff() > ROUNDING * ordered.shift().abs()).cumsum()
    return ordered.groupby(level).transform("first").reindex(scores.index)


def t_test(d: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean of the differences, its 95 % t interval, and the two-sided p of the paired t test: (mean, low, high, p).

    Interval and p are NaN if they are not defined: for fewer than two differences, for differences that are not finite, and
    for differences that are all the same number other than 0 (unknown spread). If all are 0, p is 1. All four are NaN
    for no differences.
    """
    mean = float(np.mean(d)) if len(d) else math.nan
    if len(d) < 2 or not np.isfinite(d).all():
        return mean, math.nan, math.nan, math.nan
    if without_spread(d):
        return (0.0, 0.0, 0.0, 1.0) if mean == 0 else (mean, math.nan, math.nan, math.nan)
    test = stats.ttest_1samp(d, 0)
    interval = test.confidence_interval(1 - ALPHA)
    return mean, float(interval.low), float(interval.high), float(test.pvalue)


def bootstrap(d: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of mean(d), from 9,999 resamples with a fixed seed.

    NaN for fewer than two differences and for differences that are not finite. The interval is too narrow for few pairs: n
    values have only n^n resamples, and the means stay within [min(d), max(d)].
    """
    if len(d) < 2 or not np.isfinite(d).all():
        return math.nan, math.nan
    draws = np.random.default_rng(BOOTSTRAP_SEED).integers(0, len(d), (DRAWS, len(d)))
    low, high = np.quantile(np.asarray(d)[draws].mean(1), [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def without_spread(d: Sequence[float] | np.ndarray) -> bool:
    """Whether all differences are the same number, up to rounding."""
    return bool(np.ptp(d) <= 1e-9 * np.max(np.abs(d)))


def wilcoxon(d: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test without pairs of difference 0; NaN for no pair, 1 if all differences are 0."""
    unequal = [x for x in d if x != 0]
    if not unequal:
        return 1.0 if len(d) else math.nan
    return float(stats.wilcoxon(unequal).pvalue)


def least_p(n: int) -> float:
    """The smallest p that Wilcoxon's test can give for n pairs: 2 / 2^n, if all differences have the same sign."""
    return min(1.0, 2.0 ** (1 - n))


def pairs_needed(tests: int = 1) -> int:
    """The least number of pairs with which Wilcoxon's test can reach 5 % after Holm's correction for `tests` methods."""
    return math.ceil(1 + math.log2(max(tests, 1) / ALPHA))


def probability_better(gains: Sequence[float]) -> float:
    """P(A beats B) = (#{gain > 0} + #{gain = 0} / 2) / n over the pairs; NaN for none."""
    g = np.asarray(gains, dtype=float)
    return float(((g > 0) + 0.5 * (g == 0)).mean()) if len(g) else math.nan


def holm(p: Iterable[float]) -> list[float]:
    """Holm's adjusted p values: in ascending order, p_(i) becomes the largest of min(1, (m - j + 1) p_(j)) over j <= i.

    NaN (a method that could not be tested) stays NaN and does not count towards m. For m = 1 nothing changes.
    """
    raw = np.asarray(list(p), dtype=float)
    adjusted = np.full(len(raw), math.nan)
    order = [i for i in np.argsort(raw, kind="stable") if not math.isnan(raw[i])]
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * float(raw[i])))
        adjusted[i] = largest
    return adjusted.tolist()


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over partitions (1 is best), and Nemenyi's critical difference.

    `blocks` is the number of partitions. `friedman` is the p of Friedman's test that no method differs; NaN for two methods.
    """

    mean: pd.Series
    critical: float
    blocks: int
    friedman: float

    @property
    def apart(self) -> list[tuple[str, str]]:
        """Pairs (better, worse) with mean ranks further apart than the critical difference."""
        ordered = self.mean.sort_values(kind="stable")
        names = [str(name) for name in ordered.index]
        return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if ordered[b] - ordered[a] > self.critical]

    @property
    def groups(self) -> list[list[str]]:
        """The largest sets of methods, best first, within one critical difference; a method apart from all others is in none.

        Methods with adjacent ranks form a group as long as the last is within the critical difference of the first.
        """
        ordered = self.mean.sort_values(kind="stable")
        names = [str(name) for name in ordered.index]
        ends = [max(j for j in range(len(names)) if ordered[names[j]] - ordered[a] <= self.critical) for a in names]
        return [names[i : end + 1] for i, end in enumerate(ends) if end > i and (i == 0 or end > ends[i - 1])]


def ranks(scores: pd.DataFrame, sign: int = 1) -> Ranks:
    """Rank the methods (columns) on every partition (rows); ties share their mean rank (Demsar, 2006).

    CD = q sqrt(k (k + 1) / (6 N)) for k methods on N partitions, where q is the 95 % point of the studentized range divided by
    sqrt(2). A partition is one observation, no matter how many seeds it was run with. Raises `UnalikeError` for fewer than two
    methods or partitions, and for a missing score.
    """
    blocks, methods = scores.shape
    if blocks < 2 or methods < 2 or scores.isna().any(axis=None):
        raise UnalikeError(
            f"found {methods} methods on {blocks} partitions; ranks need two or more of both and a score in every cell"
        )
    table = (-sign * scores.apply(without_rounding, axis=1)).rank(axis=1)
    q = float(stats.studentized_range.ppf(1 - ALPHA, methods, np.inf)) / math.sqrt(2)
    columns = [table[name] for name in table]
    varied = methods > 2 and any(column.nunique() > 1 or column.iloc[0] != columns[0].iloc[0] for column in columns)
    friedman = float(stats.friedmanchisquare(*columns).pvalue) if varied else math.nan
    return Ranks(table.mean(), q * math.sqrt(methods * (methods + 1) / (6 * blocks)), blocks, friedman)
