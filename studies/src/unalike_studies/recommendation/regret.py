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
    FILE,
    FORECAST,
    HELD_OUT,
    SURE,
    HeldOut,
    Judgement,
    MeanInterval,
)
from unalike_studies.recommendation.stored_runs import BASELINE, OBJECTIVES, StoredRuns
from unalike_studies.recommendation.task_features import TITLES

RESAMPLES = 2000
SEVERE = 0.5
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
    return [str(known.scores(objective)[list(methods)].mean().idxmax())] * len(features)


def published_advice(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """FedAdagrad under severe label skew, FedBN under feature skew, FedAvg otherwise.

    The models of all stored tasks are without normalization layers, and there FedBN is FedAvg.

    Source: These rules follow the summary of a benchmark of nine methods (Nechba et al. 2025, "A Benchmark Study on Realistic
    Non-IID Data Silos"), and not its decision tree.
    """
    severe = features[:, list(TITLES).index("label_skew")] > SEVERE
    return [
        "FedAdagrad" if is_severe and "FedAdagrad" in methods else BASELINE for is_severe in severe
    ]


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
    return [methods[int(place)] for place in forecaster.explanation.predict(features).argmax(1)]


def nearest_task(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """The method that is best on the nearest of the other tasks."""
    forecaster = Forecaster(known, objective, methods)
    gains = forecaster.gains
    return [str(gains.iloc[int(forecaster.distances(row).argmin())].idxmax()) for row in features]


def sure_gain(
    known: StoredRuns, objective: str, methods: tuple[str, ...], features: np.ndarray
) -> list[str]:
    """The method with the largest median gain on the data of other owners if this gain is sure, else FedAvg; see `lower_bound`."""
    gains = known.natural.gains(objective)[list(methods)]
    sure = [name for name in methods if lower_bound(gains[name].to_numpy(), len(methods) - 1) > 0]
    return [str(gains[sure].median().idxmax()) if sure else BASELINE] * len(features)


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
    judged, learned = (
        runs.natural if held_out.owners else runs.made,
        runs if held_out.all_known else runs.made,
    )
    scores, groups = (
        judged.scores(objective)[list(methods)].dropna(axis=1),
        judged.tasks[held_out.by].to_numpy(),
    )
    methods, values = tuple(scores.columns), scores.to_numpy()
    found = np.full((len(scores), len(POLICIES)), np.nan)
    learned_groups = learned.tasks[held_out.by].to_numpy()
    apart = np.isin(
        groups, learned_groups
    ).any()  # otherwise nothing is left out: all tasks at once
    parts = groups if apart else np.full(len(groups), "")
    for part in dict.fromkeys(parts):
        held, known = (
            np.flatnonzero(parts == part),
            learned.of(np.flatnonzero(learned_groups != part)),
        )
        for column, policy in enumerate(POLICIES.values()):
            chosen = [
                methods.index(method)
                for method in policy(known, objective, methods, judged.features[held])
            ]
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


def judge(runs: StoredRuns, objective: str, candidates: str) -> Judgement:
    """Judge all policies on all tasks that `HELD_OUT` names; `candidates` is a name of `CANDIDATES`."""
    regret, less = {}, {}
    for name, held_out in HELD_OUT.items():
        tasks = (runs.natural if held_out.owners else runs.made).tasks
        regret_of_tasks, groups = (
            regrets(runs, objective, CANDIDATES[candidates], held_out),
            tasks[held_out.by].to_numpy(),
        )
        rows, paired = means(regret_of_tasks, groups), means(regret_of_tasks, groups, AVERAGE)
        regret[name] = {policy: MeanInterval(*map(float, rows.loc[policy])) for policy in POLICIES}
        less[name] = MeanInterval(*map(float, paired.loc[FORECAST]))
    return Judgement(
        objective, candidates, len(runs.made.tasks), len(runs.natural.tasks), regret, less
    )


def write(runs: StoredRuns, path: Path = FILE) -> list[Judgement]:
    """Judge every objective and list of methods, and write the judgements."""
    judgements = [
        judge(runs, objective, candidates) for objective in OBJECTIVES for candidates in CANDIDATES
    ]
    path.write_text(json.dumps([asdict(one) for one in judgements], indent=1) + "\n")
    return judgements
