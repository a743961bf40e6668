"""Policies, and their regret on tasks that were held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


def nearest_task(known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray) -> list[str]:
    """The method that is best on the nearest of the other tasks."""
    forecaster = Forecaster(known, objective, methods)
    gains = forecaster.gains
    return [str(gains.iloc[int(forecaster.distances(row).argmin())].idxmax()) for row in features]


def sure_gain(known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray) -> list[str]:
    """The method with the largest median gain on the data of other owners if this gain is sure, else FedAvg; see `lower_bound`."""
    gains = known.natural.gains(objective)[list(methods)]
    sure = [name for name in methods if lower_bound(gains[name].to_numpy(), len(methods) - 1) > 0]
    return [str(gains[sure].median().idxmax()) if sure else BASELINE] * len(features)


def lower_bound(gains: np.ndarray, methods: int) -> float:
    """A lower bound of a method's median gain over data sets like these n; minus infinity where n is too small for any.

    It is the k-th smallest gain, with the largest k for which P(Binomial(n, 1/2) < k) is at most 5 % / `methods`: the sign test,
    corrected for the choice of one among so many methods. With ten data sets and ten methods k is 1: the method must have gained on
    every one.
    """
    from scipy.stats import binom

    k = int(binom.ppf((1 - CONFIDENCE) / methods, len(gains), 0.5)) if len(gains) else 0
    return float(np.sort(gains)[k - 1]) if k else -np.inf


FORECAST, AVERAGE, ALWAYS_FEDAVG, SURE = "forecast", "best on average", "always FedAvg", "sure gain"
POLICIES: Mapping[str, Policy] = {
    ALWAYS_FEDAVG: always_fedavg,
    "published advice": published_advice,
    AVERAGE: best_on_average,
    "small tree": small_tree,
    "nearest task": nearest_task,
    FORECAST: forecast,
    SURE: sure_gain,
}
"""Label -> policy."""


@dataclass(frozen=True)
class HeldOut:
    """The tasks that are judged, and those that policies learn from.

    Attributes:
        by: Column of the tasks: all tasks with the same value are held out at a time.
        owners: Whether the tasks of real owners are judged; otherwise those that partitions made are.
        all_known: Whether policies learn from real owners' tasks too; otherwise only from tasks that partitions made.
    """

    by: str
    owners: bool = False
    all_known: bool = False


HELD_OUT = {
    "data": HeldOut("data"),
    "kind": HeldOut("kind"),
    "owners": HeldOut("data", owners=True, all_known=True),
    "owners, unknown kind": HeldOut("data", owners=True),
}
"""Name -> what is held out: whole data sets or whole kinds of heterogeneity; the data of real owners, once known to no policy."""


def regrets(runs: StoredRuns, objective: str, methods: tuple[str, ...], held_out: HeldOut) -> pd.DataFrame:
    """The regret of each policy on each task: the best score of any method less that of the chosen one.

    Only methods that ran on all judged tasks count. The best method is known after the fact, from the same seeds, so that even a
    perfect forecast has some regret. `held_out` says which tasks are judged. Returns tasks (rows) by policies (columns).
    """
    judged, learned = runs.natural if held_out.owners else runs.made, runs if held_out.all_known else runs.made
    scores, groups = judged.scores(objective)[list(methods)].dropna(axis=1), judged.tasks[held_out.by].to_numpy()
    methods, values = tuple(scores.columns), scores.to_numpy()
    found = np.full((len(scores), len(POLICIES)), np.nan)
    learned_groups = learned.tasks[held_out.by].to_numpy()
    apart = np.isin(groups, learned_groups).any()  # otherwise nothing is left out: all tasks at once
    parts = groups if apart else np.full(len(groups), "")
    for part in dict.fromkeys(parts):
        held, known = np.flatnonzero(parts == part), learned.of(np.flatnonzero(learned_groups != part))
        for column, policy in enumerate(POLICIES.values()):
            chosen = [methods.index(method) for method in policy(known, objective, methods, judged.features[held])]
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
