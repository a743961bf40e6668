"""The metrics of samples that are drawn again with replacement, for the intervals of an evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from unalike.core.tasks.task import Task
from unalike.metrics.metrics import RunMetrics, per_client
from unalike.metrics.scoring import Scores

DRAWS = 500
"""Number of times that samples are drawn again."""
SEED = 0
"""Seed of the draws, so that the same samples have the same interval."""
MAX_DRAWN_SAMPLES = 2**20
"""Most samples that are drawn at a time, to bound memory."""
LEVEL = 0.05
"""Chance that an interval misses: 95 % intervals."""

Interval = tuple[float, float]


def bootstrap(
    task: Task, scores: Scores, rows: int, unit: np.ndarray, chosen: RunMetrics
) -> dict[str, np.ndarray]:
    """The metrics of `DRAWS` draws: metric -> its values by row of a table [draws, rows].

    `scores.client` has the row of each sample [n], below `rows`; `unit` [n] its unit. Within each row as many units, such as
    patients, are drawn with replacement as it has, each with all its samples (Field and Welsh, 2007: the cluster bootstrap). Where
    every sample is a unit, this is the bootstrap of Efron (1979) within rows. Draws from rows of few units vary too little, so all
    samples together are to be drawn as one row.
    """
    order = np.lexsort((unit, scores.client))
    by_unit = scores.of(order)
    units = _Units.of(by_unit.client.astype(np.int64), unit[order])
    rng = np.random.default_rng(SEED)
    draws_at_once = max(1, MAX_DRAWN_SAMPLES // max(1, len(order)))
    tables = []
    for first in range(0, DRAWS, draws_at_once):
        count = min(draws_at_once, DRAWS - first)
        places, draw = units.draw(rng, count)
        drawn = by_unit.of(places)
        by_row = replace(drawn, client=draw * rows + drawn.client)
        tables.append(pd.DataFrame(per_client(task, by_row, count * rows, chosen)))
    table = pd.concat(tables)
    return {str(name): table[name].to_numpy().reshape(DRAWS, rows) for name in table}


def percentile_interval(values: np.ndarray, level: float = LEVEL) -> Interval:
    """The interval between the percentiles of draws; those without a value, such as a ROC AUC of one class, are left out."""
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.quantile(known, [level / 2, 1 - level / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class _Units:
    """Units of samples that are sorted by row and unit: unit u has the samples `start[u] : start[u] + size[u]`.

    `first` is the first unit of the row of each unit, and `among` the number of units in that row, all int64 [units].
    """

    start: np.ndarray
    size: np.ndarray
    first: np.ndarray
    among: np.ndarray

    @classmethod
    def of(cls, row: np.ndarray, unit: np.ndarray) -> _Units:
        """The units of samples with these rows and units [n], which are sorted by both."""
        begins = np.ones(len(row), bool)
        begins[1:] = (row[1:] != row[:-1]) | (unit[1:] != unit[:-1])
        start = np.flatnonzero(begins)
        row_of_unit = row[start]
        return cls(
            start=start,
            size=np.diff(start, append=len(row)),
            first=np.searchsorted(row_of_unit, row_of_unit),
            among=np.bincount(row_of_unit)[row_of_unit],
        )

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The samples of `count` draws, one draw after the other, and the number of the draw of each, int64 [drawn]."""
        shares = rng.random((count, len(self.start)))
        picked = (self.first + (shares * self.among).astype(np.int64)).ravel()
        sizes = self.size[picked]
        draw_of_unit = np.repeat(np.arange(count), len(self.start))
        place_of_unit = np.cumsum(sizes) - sizes
        within_unit = np.arange(sizes.sum()) - np.repeat(place_of_unit, sizes)
        return np.repeat(self.start[picked], sizes) + within_unit, np.repeat(draw_of_unit, sizes)
