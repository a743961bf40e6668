"""The scores of references that were fitted to convergence, and the gains of one over another over paired seeds.

A table of them has one row per reference, seed and client, and one for all test rows together (client `POOLED`):
`method seed scope model trees client draw n_train n_test [n_positive]` and the metrics. `draw` is -1 for the test rows themselves;
from 0 on it numbers draws of the test rows of all clients with replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm

from unalike.metrics.named_metrics import Metric
from unalike.statistics.client_scores import POOLED
from unalike.statistics.inference import difference
from unalike.statistics.moderated_t import moderated_t
from unalike.statistics.scores import worst_decile
from unalike.statistics.seed_draws import POOLED_SCORE, Draws

ALONE, TOGETHER = "alone", "pooled"
"""The rows that a reference is fitted on: those of each client by itself, or all of them."""
TEST_ROWS = -1
"""The `draw` of scores on the test rows themselves."""


@dataclass(frozen=True)
class Gain:
    """A mean gain over paired seeds with its interval and two-sided p, NaN where unknown; more is better for every metric.

    `pairs` is the number of seeds that both have.
    """

    mean: float
    low: float
    high: float
    p: float
    pairs: int

    @property
    def is_known(self) -> bool:
        """Whether it has an interval."""
        return not math.isnan(self.low)

    @property
    def reversed(self) -> Gain:
        """The gain of the others over the first."""
        return Gain(-self.mean, -self.high, -self.low, self.p, self.pairs)


def scores_of_clients(fitted: pd.DataFrame) -> pd.DataFrame:
    """The rows of single clients, scored on their test rows."""
    return fitted[(fitted["draw"] == TEST_ROWS) & (fitted["client"] != POOLED)]


def scores_of_references(fitted: pd.DataFrame, metric: Metric, across: str) -> dict[str, pd.Series]:
    """Reference -> its score by seed: of all test rows pooled, or the mean over the clients or the worst tenth of them."""
    on_tests = fitted[fitted["draw"] == TEST_ROWS]
    of_all = on_tests[on_tests["client"] == POOLED].set_index("seed")
    scores = {}
    for method, rows in of_all.groupby("method", sort=False):
        scores[str(method)] = rows[metric.name]
    if across == POOLED_SCORE:
        return scores

    of_clients = scores_of_clients(fitted).groupby(["method", "seed"], sort=False)[metric.name]
    means = of_clients.mean()
    if across == "worst":
        means = of_clients.agg(lambda values: worst_decile(values, metric))
    return {method: means.loc[method] for method in scores}


def draws_of_references(fitted: pd.DataFrame, metric: Metric) -> Draws:
    """Reference -> its scores on resampled test rows, [draw, seed]; empty where seeds test other rows."""
    resampled = fitted[fitted["draw"] != TEST_ROWS]
    return {
        str(method): rows.pivot(index="draw", columns="seed", values=metric.name)
        for method, rows in resampled.groupby("method", sort=False)
    }


def paired_gain(
    scores: pd.Series,
    others: pd.Series,
    metric: Metric,
    *,
    level: float,
    overlap: float,
    sampling: float = 0.0,
) -> Gain:
    """The gain of scores over others, both by seed, over the seeds that both have, by the t test of every pair.

    The interval has the confidence 1 - `level` and is cut at the largest possible difference; `overlap` is as in `moderated_t`.
    `sampling` is the variance that comes from test rows which all seeds share. Where nothing else varies, as with fits that have
    no random numbers, it is the whole variance.
    """
    known = scores.dropna()
    base = others.dropna()
    seeds = known.index.intersection(base.index)
    gains = [metric.sign * difference(float(known[s]), float(base[s])) for s in seeds]
    if not gains:
        return Gain(math.nan, math.nan, math.nan, math.nan, pairs=0)
    mean = float(np.mean(gains))
    tested = moderated_t(np.array(gains)[:, None], level, overlap, sampling)
    low = float(tested.low[0])
    high = float(tested.high[0])
    p = float(tested.p[0])

    # Fits without random numbers on the same rows: seeds repeat one difference, which varies with the test rows alone.
    if sampling > 0 and len(gains) > 1 and math.isnan(float(tested.sd[0])):
        error = math.sqrt(sampling)
        half = float(norm.isf(level / 2)) * error
        low = mean - half
        high = mean + half
        p = float(2 * norm.sf(abs(mean) / error))
    largest = metric.high - metric.low
    return Gain(
        mean=mean,
        low=float(np.clip(low, -largest, largest)),
        high=float(np.clip(high, -largest, largest)),
        p=p,
        pairs=len(gains),
    )
