"""The rows of an evaluation: sets of samples with their metrics, intervals and, for two classes, risks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from unalike.core.tasks.task import TWO_CLASSES, Task
from unalike.metrics.metrics import Metrics, RunMetrics, per_client
from unalike.metrics.named_metrics import probabilities
from unalike.metrics.scoring import Scores
from unalike.statistics.bootstrap import Interval, bootstrap, percentile_interval
from unalike.statistics.risks import Risks

POOLED = "all samples pooled"
"""The row for all samples as if they were of one client."""
MEAN = "mean of the rows"
"""The row for the unweighted mean of the rows that have a value."""
MIN_UNITS = 10
"""With fewer units, or units of one outcome of two, a row has no interval."""
MAX_SAMPLES_WITH_INTERVALS = 50_000
"""With more samples draws take long, and intervals say little: sampling moves an accuracy by less than half a point."""
MAX_ROWS_WITH_INTERVALS = 100
"""With more rows, draws of each take long, and nobody reads so many intervals."""
UNKNOWN: Interval = (math.nan, math.nan)

Draws = dict[str, np.ndarray]
"""Metric -> its values in draws of the samples of each row, [draws, rows]; empty where there are none."""


@dataclass(frozen=True)
class Evaluated:
    """Samples as a model scores them: the `unit` of each [n], such as its patient, and the metrics besides those of the task."""

    task: Task
    scores: Scores
    unit: np.ndarray
    chosen: RunMetrics

    @property
    def has_risks(self) -> bool:
        """Whether there are two classes, so that every sample has a risk of the second."""
        return self.task.offers(TWO_CLASSES)

    def risks(self, places: np.ndarray) -> Risks | None:
        """The risks of the samples at these places; None for more classes and numbers."""
        if not self.has_risks:
            return None
        some = self.scores.of(places)
        return Risks(
            outcome=some.y.astype(np.int64),
            risk=probabilities(some.logits)[:, 1],
            seed=np.zeros(len(places)),
        )


@dataclass(frozen=True)
class EvaluatedRow:
    """A row: the number of samples (None for a mean of rows), metrics, their intervals (NaN if unknown), and the risks."""

    name: str
    samples: int | None
    metrics: Metrics
    intervals: dict[str, Interval]
    risks: Risks | None = None

    @property
    def positives(self) -> int | None:
        """The samples of the second class; None where there are no risks."""
        return None if self.risks is None else int(self.risks.outcome.sum())


def evaluated_rows(
    samples: Evaluated, owner: np.ndarray, names: Sequence[str], summarized: bool
) -> list[EvaluatedRow]:
    """A row for each name, with the samples whose `owner` [n] is its number.

    `summarized`: two rows follow if there are several, `POOLED` and `MEAN`. Intervals are percentiles of `bootstrap`, for `POOLED`
    of draws from all samples as one row.
    """
    scores = replace(samples.scores, client=owner)
    by_row = per_client(samples.task, scores, len(names), samples.chosen)
    places_of_row = [np.flatnonzero(owner == k) for k in range(len(names))]
    enough = [_has_enough(samples, places) for places in places_of_row]
    draws = _draws(samples, scores, len(names)) if any(enough) else {}
    rows = []
    for k, name in enumerate(names):
        places = places_of_row[k]
        intervals = dict.fromkeys(by_row[k], UNKNOWN)
        if enough[k]:
            for metric, values in draws.items():
                intervals[metric] = percentile_interval(values[:, k])
        rows.append(EvaluatedRow(name, len(places), by_row[k], intervals, samples.risks(places)))
    if not summarized or len(names) == 1:
        return rows
    return [*rows, _pooled(samples), _mean(by_row, enough, draws)]


def _draws(samples: Evaluated, scores: Scores, rows: int) -> Draws:
    """Draws of the samples of each of so many rows; none where they take too long."""
    if len(scores.y) > MAX_SAMPLES_WITH_INTERVALS or rows > MAX_ROWS_WITH_INTERVALS:
        return {}
    return bootstrap(samples.task, scores, rows, samples.unit, samples.chosen)


def _has_enough(samples: Evaluated, places: np.ndarray) -> bool:
    """Whether the samples at these places have `MIN_UNITS` units, of two classes each of both."""
    units = samples.unit[places]
    if not samples.has_risks:
        return len(np.unique(units)) >= MIN_UNITS
    positive = samples.scores.y[places].astype(bool)
    fewest = min(len(np.unique(units[positive])), len(np.unique(units[~positive])))
    return fewest >= MIN_UNITS


def _pooled(samples: Evaluated) -> EvaluatedRow:
    """The row of all samples together."""
    every_sample = np.zeros(len(samples.unit), np.int64)
    [row] = evaluated_rows(samples, every_sample, [POOLED], summarized=False)
    return row


def _mean(by_row: Sequence[Metrics], enough: Sequence[bool], draws: Draws) -> EvaluatedRow:
    """The row of the mean of the rows that have a value; with an interval where each of these has one."""
    table = pd.DataFrame(by_row)
    means = {str(name): float(value) for name, value in table.mean().items()}
    intervals = dict.fromkeys(means, UNKNOWN)
    for name, values in draws.items():
        counted = table[name].notna().to_numpy()
        if counted.any() and np.array(enough)[counted].all():
            intervals[name] = percentile_interval(values[:, counted].mean(axis=1))
    return EvaluatedRow(MEAN, None, means, intervals)
