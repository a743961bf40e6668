"""Ranks of methods over several partitions: Friedman's test and Nemenyi's critical difference."""

import math
from dataclasses import dataclass
from itertools import combinations

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
        pairs = combinations([str(name) for name in ordered.index], 2)
        return [(a, b) for a, b in pairs if ordered[b] - ordered[a] > self.critical]

    @property
    def groups(self) -> list[list[str]]:
        """The largest sets of methods, best first, within one critical difference; a method apart from all others is in none.

        Methods with adjacent ranks form a group as long as the last is within the critical difference of the first.
        """
        ordered = self.mean.sort_values(kind="stable")
        names = [str(name) for name in ordered.index]
        groups = []
        last_end = -1
        for i, first in enumerate(names):
            near = [j for j, b in enumerate(names) if ordered[b] - ordered[first] <= self.critical]
            end = max(near)
            # a group that ends where the last one ended is a part of it
            if end > i and end > last_end:
                groups.append(names[i : end + 1])
            last_end = end
        return groups


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
    critical = q * math.sqrt(methods * (methods + 1) / (6 * blocks))

    # Friedman's test divides by zero where all ranks are tied
    columns = [table[name] for name in table]
    varied = any(column.nunique() > 1 or column.iloc[0] != columns[0].iloc[0] for column in columns)
    friedman = math.nan
    if methods > 2 and varied:
        friedman = float(stats.friedmanchisquare(*columns).pvalue)
    return Ranks(mean=table.mean(), critical=critical, blocks=blocks, friedman=friedman)
