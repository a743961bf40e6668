"""Policies, their regret on tasks that were held out, and the judgement of them that is stored."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from unalike._utils.seeds import generator
from unalike_studies.recommendation.forecast import CONFIDENCE, Forecaster, lower_bound
from unalike_studies.recommendation.judgement import (
    ALWAYS_FEDAVG,
    AVERAGE,
    CANDIDATES,
    FORECAST,
    HELD_OUT,
    JUDGEMENT_FILE,
    SURE,
    HeldOut,
    Judgement,
    MeanInterval,
)
from unalike_studies.recommendation.stored_runs import BASELINE, OBJECTIVES, StoredRuns
from unalike_studies.recommendation.task_features import TITLES

RESAMPLES = 2000
"""Draws of groups of tasks for an interval."""
SEVERE_LABEL_SKEW = 0.5
"""Label skew beyond chance that counts as severe for the published advice."""

Policy = Callable[[StoredRuns, str, tuple[str, ...], np.ndarray], list[str]]
"""From the runs of other tasks, the objective, the methods to choose from and the features [n, F] of the held-out tasks to the
chosen methods."""


def always_fedavg(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    return [BASELINE] * len(features)


def best_on_average(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """The method with the best mean score over the other tasks."""
    mean_scores = known.scores(objective)[list(methods)].mean()
    best = str(mean_scores.idxmax())
    return [best] * len(features)


def published_advice(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """FedAdagrad under severe label skew, FedBN under feature skew, FedAvg otherwise.

    The models of all stored tasks are without normalization layers, and there FedBN is FedAvg.

    Source: These rules follow the summary of a benchmark of nine methods (Nechba et al. 2025, "A Benchmark Study on Realistic
    Non-IID Data Silos"), and not its decision tree.
    """
    if "FedAdagrad" not in methods:
        return [BASELINE] * len(features)
    label_skew = features[:, list(TITLES).index("label_skew")]
    return ["FedAdagrad" if skew > SEVERE_LABEL_SKEW else BASELINE for skew in label_skew]


def forecast(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """The method with the largest forecast gain."""
    forecaster = Forecaster(known, objective, methods)
    return [str(forecaster.forecast(row).idxmax()) for row in features]


def small_tree(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """The method with the largest gain in the small tree that explains the forecasts."""
    forecaster = Forecaster(known, objective, methods)
    predicted_gains = forecaster.explanation.predict(features)
    return [methods[int(place)] for place in predicted_gains.argmax(1)]


def nearest_task(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """The method that is best on the nearest of the other tasks."""
    forecaster = Forecaster(known, objective, methods)
    chosen = []
    for row in features:
        nearest = int(forecaster.distances(row).argmin())
        chosen.append(str(forecaster.gains.iloc[nearest].idxmax()))
    return chosen


def sure_gain(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """The method with the largest median gain on the data of other owners if this gain is sure, else FedAvg; see `lower_bound`."""
    gains = known.natural.gains(objective)[list(methods)]
    others = len(methods) - 1
    sure = [name for name in methods if lower_bound(gains[name].to_numpy(), others) > 0]
    chosen = str(gains[sure].median().idxmax()) if sure else BASELINE
    return [chosen] * len(features)


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


def regrets(
    runs: StoredRuns, objective: str, methods: tuple[str, ...], held_out: HeldOut
) -> pd.DataFrame:
    """The regret of each policy on each task: the best score of any method less that of the chosen one.

    Only methods that ran on all judged tasks count. The best method is known after the fact, from the same seeds, so that even a
    perfect forecast has some regret. `held_out` says which tasks are judged. Returns tasks (rows) by policies (columns).
    """
    judged = runs.natural if held_out.owners else runs.made
    learned = runs if held_out.all_known else runs.made
    scores = judged.scores(objective)[list(methods)].dropna(axis=1)
    methods = tuple(scores.columns)
    values = scores.to_numpy()

    # The policies learn from no task of the group that they are judged on. Where they know none
    # of the groups, nothing has to be left out: all tasks are judged at once.
    groups = judged.tasks[held_out.by].to_numpy()
    learned_groups = learned.tasks[held_out.by].to_numpy()
    knows_groups = np.isin(groups, learned_groups).any()
    if not knows_groups:
        groups = np.full(len(groups), "")

    regret = np.full((len(scores), len(POLICIES)), np.nan)
    for group in dict.fromkeys(groups):
        judged_rows = np.flatnonzero(groups == group)
        known = learned.of(np.flatnonzero(learned_groups != group))
        features = judged.features[judged_rows]
        for column, policy in enumerate(POLICIES.values()):
            chosen = policy(known, objective, methods, features)
            places = [methods.index(method) for method in chosen]
            best_scores = values[judged_rows].max(1)
            regret[judged_rows, column] = best_scores - values[judged_rows, places]
    return pd.DataFrame(regret, index=scores.index, columns=list(POLICIES))


def means(regret: pd.DataFrame, groups: np.ndarray, versus: str | None = None) -> pd.DataFrame:
    """The mean of each policy's regret, and its 95 % interval over groups of tasks drawn with replacement.

    `groups` is the group of each task, such as its data set; `versus` a policy whose regret is subtracted task by task. Returns
    one row per policy: `mean low high`.
    """
    values = regret if versus is None else regret.sub(regret[versus], axis=0)
    names = list(dict.fromkeys(groups))
    sums = np.array([values[groups == name].sum().to_numpy() for name in names])
    counts = np.array([(groups == name).sum() for name in names])

    # Tasks of a group are alike, so that whole groups are drawn.
    draws = generator(0, "regret").integers(len(names), size=(RESAMPLES, len(names)))
    resampled_means = sums[draws].sum(1) / counts[draws].sum(1)[:, None]
    ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = np.quantile(resampled_means, ends, axis=0)
    return pd.DataFrame({"mean": values.mean(), "low": low, "high": high})


def judge(runs: StoredRuns, objective: str, candidates: str) -> Judgement:
    """Judge all policies on all tasks that `HELD_OUT` names; `candidates` is a name of `CANDIDATES`."""
    regret = {}
    forecast_less_average = {}
    for name, held_out in HELD_OUT.items():
        regret_of_tasks = regrets(runs, objective, CANDIDATES[candidates], held_out)
        judged = runs.natural if held_out.owners else runs.made
        groups = judged.tasks[held_out.by].to_numpy()
        by_policy = means(regret_of_tasks, groups)
        less_average = means(regret_of_tasks, groups, versus=AVERAGE)
        regret[name] = _intervals(by_policy)
        forecast_less_average[name] = _intervals(less_average)[FORECAST]
    return Judgement(
        objective,
        candidates,
        tasks=len(runs.made.tasks),
        owners=len(runs.natural.tasks),
        regret=regret,
        forecast_less_average=forecast_less_average,
    )


def _intervals(table: pd.DataFrame) -> dict[str, MeanInterval]:
    """Policy -> its mean and interval, from a table that `means` makes."""
    intervals = {}
    for policy, mean, low, high in zip(table.index, table["mean"], table["low"], table["high"]):
        intervals[str(policy)] = MeanInterval(float(mean), float(low), float(high))
    return intervals


def write(runs: StoredRuns, path: Path = JUDGEMENT_FILE) -> list[Judgement]:
    """Judge every objective and list of methods, and write the judgements."""
    judgements = []
    for objective in OBJECTIVES:
        for candidates in CANDIDATES:
            judgements.append(judge(runs, objective, candidates))
    rows = [asdict(judgement) for judgement in judgements]
    path.write_text(json.dumps(rows, indent=1) + "\n")
    return judgements
