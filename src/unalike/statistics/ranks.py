"""Ranks of methods over several partitions: Friedman's test and Nemenyi's critical difference."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from unalike._utils.errors import UnalikeError
from unalike.statistics.inference import ALPHA, without_rounding


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
        return [
            (a, b)
            for i, a in enumerate(names)
            for b in names[i + 1 :]
            if ordered[b] - ordered[a] > self.critical
        ]

    @property
    def groups(self) -> list[list[str]]:
        """The largest sets of methods, best first, within one critical difference; a method apart from all others is in none.

        Methods with adjacent ranks form a group as long as the last is within the critical difference of the first.
        """
        ordered = self.mean.sort_values(kind="stable")
        names = [str(name) for name in ordered.index]
        ends = [
            max(j for j in range(len(names)) if ordered[names[j]] - ordered[a] <= self.critical)
            for a in names
        ]
        return [
            names[i : end + 1]
            for i, end in enumerate(ends)
            if end > i and (i == 0 or end > ends[i - 1])
        ]


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
    varied = methods > 2 and any(
        column.nunique() > 1 or column.iloc[0] != columns[0].iloc[0] for column in columns
    )
    friedman = float(stats.friedmanchisquare(*columns).pvalue) if varied else math.nan
    return Ranks(
        table.mean(), q * math.sqrt(methods * (methods + 1) / (6 * blocks)), blocks, friedman
    )
