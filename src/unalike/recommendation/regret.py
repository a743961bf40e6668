"""Policies, and their regret on tasks that were held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from unalike._utils.seeds import generator
from unalike.recommendation.forecast import Forecaster
from unalike.recommendation.stored_runs import StoredRuns
from unalike.recommendation.task_features import TITLES
from unalike.recommendation.task_runs import BASELINE

RESAMPLES, CONFIDENCE = 2000, 0.95
SEVERE = 0.5
"""Label skew beyond chance that counts as severe for the published advice."""

Policy = Callable[[StoredRuns, str, tuple[str, ...], np.ndarray], list[str]]
"""From the runs of other tasks, the objective, the methods to choose from and the features [n, F] of the held-out tasks to the
chosen methods."""


def always_fedavg(known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray) -> list[str]:
    return [BASELINE] * len(features)


def best_on_average(known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray) -> list[str]:
    """The method with the best mean score over the other tasks."""
    return [str(known.scores(objective)[list(methods)].mean().idxmax())] * len(features)


def published_advice(known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray) -> list[str]:
    """FedAdagrad under severe label skew, FedBN under feature skew, FedAvg otherwise.

    The models of all stored tasks are without normalization layers, and there FedBN is FedAvg.

    Source: These rules follow the summary of a benchmark of nine methods (Nechba et al. 2025, "A Benchmark Study on Realistic
    Non-IID Data Silos"), and not its decision tree.
    """
    severe = features[:, list(TITLES).index("label_skew")] > SEVERE
    return ["FedAdagrad" if is_severe and "FedAdagrad" in methods else BASELINE for is_severe in severe]


def forecast(known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray) -> list[str]:
    """The method with the largest forecast gain."""
    forecaster = Forecaster(known, objective, methods)
    return [str(forecaster.forecast(row).idxmax()) for row in features]


def small_tree(known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray) -> list[str]:
    """The method with the largest gain in the small tree that explains the forecasts."""
    forecaster = Forecaster(known, objective, methods)
    return [methods[int(place)] for place in forecaster.explanation.predict(features).argmax(1)]


FORECAST, AVERAGE, ALWAYS_FEDAVG = "forecast", "best on average", "always FedAvg"
POLICIES: Mapping[str, Policy] = {
    ALWAYS_FEDAVG: always_fedavg,
    "published advice": published_advice,
    AVERAGE: best_on_average,
    "small tree": small_tree,
    FORECAST: forecast,
}
"""Label -> policy."""
HELD_OUT = ("data", "kind")
"""Columns of the tasks by whose values tasks are held out: a whole data set, or a whole kind of heterogeneity."""


def regrets(runs: StoredRuns, objective: str, methods: tuple[str, ...], by: str) -> pd.DataFrame:
    """The regret of each policy on each task: the best score of any method less that of the chosen one.

    All tasks with the same value of column `by` are held out at a time; policies learn from the others. The best method is known
    after the fact, from the same seeds, so that even a perfect forecast has some regret.

    `by` is "data" or "kind". Returns tasks (rows) by policies (columns).
    """
    scores, groups = runs.scores(objective)[list(methods)], runs.tasks[by].to_numpy()
    values = scores.to_numpy()
    found = np.full((len(scores), len(POLICIES)), np.nan)
    for group in dict.fromkeys(groups):
        held = np.flatnonzero(groups == group)
        known, features = runs.of(np.flatnonzero(groups != group)), runs.features[held]
        for column, policy in enumerate(POLICIES.values()):
            chosen = [methods.index(method) for method in policy(known, objective, methods, features)]
            found[held, column] = values[held].max(1) - values[held, chosen]
    return pd.DataFrame(found, index=scores.index, columns=list(POLICIES))


def means(regret: pd.DataFrame, groups: np.ndarray, versus: str | None = None) -> pd.DataFrame:
    """The mean of each policy's regret, and its 95 % interval over groups of tasks drawn with replacement.

    `groups` is the group of each task, such as its data set; `versus` a policy whose regret is subtracted task by task. Returns
    one row per policy: `mean low high`.
    """
    values = regret if versus is None else regret.sub(regret[versus], axis=0)
    kinds = list(dict.fromkeys(groups))
    sums = np.array([values[groups == kind].sum().to_numpy() for kind in kinds])
    counts = np.array([(groups == kind).sum() for kind in kinds])
    drawn = generator(0, "regret").integers(len(kinds), size=(RESAMPLES, len(kinds)))
    resampled = sums[drawn].sum(1) / counts[drawn].sum(1)[:, None]
    low, high = np.quantile(resampled, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=0)
    return pd.DataFrame({"mean": values.mean(), "low": low, "high": high})
