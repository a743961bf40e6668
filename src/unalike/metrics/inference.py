"""What paired results support: intervals, tests and their correction, ranks over several partitions.

A value is what one method reached under one seed (or on one partition), so that position i of two lists shares its data,
its start and its cohorts; all that follows is computed on the differences d of such pairs, n of them.
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
"""Resamples of the bootstrap and the seed that fixes them: the same differences give the same interval."""

ROUNDING = 1e-6
"""What of a score is rounding: losses, and with them an RMSE, are float32, and the order of its sums is an executor's own."""


@dataclass(frozen=True)
class Paired:
    """A method against its baseline over `n` pairs. `better` is the probability that it beats the baseline.

    `p` belongs to the paired t test and agrees with the t interval `low`..`high`; `wilcoxon` assumes no normal distribution.
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
    """All that is said of one pair of methods. `sign` is -1 where less is better; differences keep their own sign."""
    mean, low, high = paired_difference(values, baseline_values)
    d = differences(values, baseline_values)
    return Paired(
        len(d), mean, low, high, *bootstrap(d), t_test(d), wilcoxon(d), probability_better([sign * x for x in d])
    )


def differences(values: Sequence[float], baseline_values: Sequence[float]) -> list[float]:
    """d = values - baseline_values, rounded to 12 decimals; scores that are the same but for float32 differ by exactly 0."""
    if len(values) != len(baseline_values):
        raise UnalikeError(
            f"cannot pair {len(values)} values with {len(baseline_values)}; give one of each for every seed"
        )
    return [_difference(float(a), float(b)) for a, b in zip(values, baseline_values)]


def _difference(a: float, b: float) -> float:
    same = math.isfinite(a) and math.isclose(a, b, rel_tol=ROUNDING)
    return 0.0 if same else round(a - b, 12)


def levelled(scores: pd.Series) -> pd.Series:
    """The scores with one value for those that are the same but for rounding, as `differences` has it."""
    ordered = scores.sort_values(kind="stable")
    level = (ordered.diff() > ROUNDING * ordered.shift().abs()).cumsum()
    return ordered.groupby(level).transform("first").reindex(scores.index)


def paired_difference(values: Sequence[float], baseline_values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of d = values - baseline_values with its 95 % interval: mean(d) +- t(0.975, n - 1) sd(d) / sqrt(n).

    Position i of both belongs to the same seed: same data, same start, same clients drawn. The interval is NaN for
    one pair, which cannot show a difference, for pairs with one and the same difference other than 0, whose spread nobody
    knows, and where a difference is not finite; all three are NaN for none.
    """
    d = np.asarray(differences(values, baseline_values))
    n = len(d)
    if n == 0:
        return math.nan, math.nan, math.nan
    mean = float(d.mean())
    if n == 1 or not math.isfinite(mean) or (mean != 0 and without_spread(d)):
        return mean, math.nan, math.nan
    margin = float(stats.t.ppf(1 - ALPHA / 2, n - 1)) * float(d.std(ddof=1)) / math.sqrt(n)
    return mean, mean - margin, mean + margin


def bootstrap(d: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of mean(d), from 9,999 resamples of fixed seed; NaN for fewer than two or not finite ones.

    It is too narrow for few pairs: n values have only n^n resamples, and their means never leave [min(d), max(d)].
    """
    if len(d) < 2 or not np.isfinite(d).all():
        return math.nan, math.nan
    draws = np.random.default_rng(BOOTSTRAP_SEED).integers(0, len(d), (DRAWS, len(d)))
    low, high = np.quantile(np.asarray(d)[draws].mean(1), [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def t_test(d: Sequence[float]) -> float:
    """Two-sided p of t = mean(d) sqrt(n) / sd(d) with n - 1 degrees of freedom; NaN for fewer than two.

    Differences that are all the same number have no spread, so that t is not defined: p is 1 if that number is 0 and NaN
    otherwise. It is NaN, too, where a difference is not finite.
    """
    if len(d) < 2 or not np.isfinite(d).all():
        return math.nan
    mean, sd = float(np.mean(d)), float(np.std(d, ddof=1))
    if without_spread(d):
        return 1.0 if mean == 0 else math.nan
    return float(2 * stats.t.sf(abs(mean) * math.sqrt(len(d)) / sd, len(d) - 1))


def without_spread(d: Sequence[float] | np.ndarray) -> bool:
    """Whether one or more differences are all the same number, up to rounding."""
    return bool(np.ptp(d) <= 1e-9 * np.max(np.abs(d)))


def wilcoxon(d: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; pairs without a difference are left out. NaN for none, 1 if all are 0."""
    unequal = [x for x in d if x != 0]
    if not unequal:
        return 1.0 if len(d) else math.nan
    return float(stats.wilcoxon(unequal).pvalue)


def least_p(n: int) -> float:
    """The smallest p that Wilcoxon's test can give for n pairs, 2 / 2^n: all differences on one side."""
    return min(1.0, 2.0 ** (1 - n))


def pairs_needed(tests: int = 1) -> int:
    """The fewest pairs with which Wilcoxon's test can reach 5 % after Holm's correction for `tests` methods."""
    return math.ceil(1 + math.log2(max(tests, 1) / ALPHA))


def probability_better(gains: Sequence[float]) -> float:
    """P(A beats B) = (#{gain > 0} + #{gain = 0} / 2) / n over the pairs; NaN for none."""
    g = np.asarray(gains, dtype=float)
    return float(((g > 0) + 0.5 * (g == 0)).mean()) if len(g) else math.nan


def holm(p: Iterable[float]) -> list[float]:
    """Holm's adjusted p values: sorted upwards, p_(i) is the largest of min(1, (m - j + 1) p_(j)) over j <= i.

    A method that could not be tested (NaN) stays NaN and does not count among the m. For m = 1 nothing changes.
    """
    raw = np.asarray(list(p), dtype=float)
    adjusted = np.full(len(raw), math.nan)
    order = [i for i in np.argsort(raw, kind="stable") if not math.isnan(raw[i])]
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * float(raw[i])))
        adjusted[i] = worst
    return adjusted.tolist()


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over partitions (1 is best), and Nemenyi's critical difference between two of them.

    `friedman` is the p of Friedman's test that no method differs; NaN for two methods, which it does not cover.
    """

    mean: pd.Series
    critical: float
    blocks: int
    friedman: float

    @property
    def apart(self) -> list[tuple[str, str]]:
        """Pairs (better, worse) whose mean ranks lie further apart than the critical difference."""
        ordered = self.mean.sort_values(kind="stable")
        names = [str(name) for name in ordered.index]
        return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if ordered[b] - ordered[a] > self.critical]

    @property
    def groups(self) -> list[list[str]]:
        """The largest sets of methods, best first, of which no two are apart; a method apart from all others is in none.

        Methods next to each other in rank make a group while the last lies within the critical difference of the first.
        """
        ordered = self.mean.sort_values(kind="stable")
        names = [str(name) for name in ordered.index]
        ends = [max(j for j in range(len(names)) if ordered[names[j]] - ordered[a] <= self.critical) for a in names]
        return [names[i : end + 1] for i, end in enumerate(ends) if end > i and (i == 0 or end > ends[i - 1])]


def ranks(scores: pd.DataFrame, sign: int = 1) -> Ranks:
    """Ranks of the methods (columns) on every partition (rows), ties sharing their mean rank (Demsar, 2006).

    CD = q sqrt(k (k + 1) / (6 N)) for k methods on N partitions, with q the 95 % point of the studentised range over sqrt(2).
    One partition is one observation however many seeds it was run with. Raises `UnalikeError` below two of either, or for
    a method that misses a partition.
    """
    blocks, methods = scores.shape
    if blocks < 2 or methods < 2 or scores.isna().any(axis=None):
        raise UnalikeError(
            f"found {methods} methods on {blocks} partitions; ranks need two or more of both and a score in every cell"
        )
    table = (-sign * scores.apply(levelled, axis=1)).rank(axis=1)
    q = float(stats.studentized_range.ppf(1 - ALPHA, methods, np.inf)) / math.sqrt(2)
    columns = [table[name] for name in table]
    varied = methods > 2 and any(column.nunique() > 1 or column.iloc[0] != columns[0].iloc[0] for column in columns)
    friedman = float(stats.friedmanchisquare(*columns).pvalue) if varied else math.nan
    return Ranks(table.mean(), q * math.sqrt(methods * (methods + 1) / (6 * blocks)), blocks, friedman)
