"""`ua.recommend`: methods for some clients, learned from stored runs."""

from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.keywords import check_keywords, fields_of
from unalike.core.work import Work
from unalike.data.partitioning.given_clients import Clients, ClientsRequest
from unalike.data.partitioning.partition import read as read_scheme
from unalike.data.population import Population
from unalike.diagnosis.diagnose import diagnose_population
from unalike.metrics.named_metrics import Metric
from unalike.metrics.named_metrics import read as read_metrics
from unalike.recommendation import judgement
from unalike.recommendation.forecast import Forecaster, lower_bound, weighted_quantile
from unalike.recommendation.recommendation import Advice, AlikeTask, Recommendation
from unalike.recommendation.stored_runs import BASELINE, METHODS, NATURAL, OBJECTIVES, StoredRuns
from unalike.recommendation.task_features import TITLES, Conditions, features
from unalike.reporting.wording import share
from unalike.runtime.setup.given_model import ModelLike

LOSS = 0.005
"""A method counts as worse than FedAvg in a task where it loses more than this, half a point."""
SHARE = 0.8
"""The share of the tasks, by weight, between the low and the high end of a gain."""
LOPSIDED = 0.8
"""The share of the most frequent class from which accuracy hardly tells methods apart."""
MOST_ALIKE = 8
"""Number of alike tasks that are shown."""


def recommend(
    clients: Clients | int | None = None,
    *,
    data: Any = None,
    data_dir: str | Path | None = None,
    partition: str | None = None,
    split: float | None = None,
    model: ModelLike = "mlp",
    participation: float = 1.0,
    work: Work | None = None,
    candidates: str = "any",
    objective: str = "accuracy",
    metric: str | None = None,
    seed: int = 0,
    **unknown_options: Any,
) -> Recommendation:
    """Recommend methods for some clients from stored runs of many methods on tasks of known heterogeneity.

    The clients are diagnosed without training. For clients that a partition made: if forecasts from a diagnosis were better than
    the method that is best on average for data sets that they had not seen, they are used; otherwise the averages are. For real
    owners of data, clients from a program or `natural(column=...)`, only the stored tasks of real owners count, and another method
    than FedAvg is recommended only if its gain there is sure. The result says which, and how good that was. Nothing replaces a run
    on the clients' own data: compare the short list with `ua.compare`.

    Args:
        clients: The result of `ua.partition`, or a list of `ua.ClientData`. With `data`: the number of clients.
        data: Data set by name, or a data set or object that `ua.load` reads, instead of clients.
        data_dir: Folder of data files.
        partition: Partition of the data; by default as for `ua.diagnose`.
        split: Share of each client's samples that train; only with `data`.
        model: Model to train.
        participation: Share of the clients that take part in a round.
        work: The local training; the default is `ua.Work()`.
        candidates: Methods to recommend: "shared" for methods with one model for all clients, "any" for methods with models of
            the clients' own as well.
        objective: Score to recommend by: "accuracy", or "worst_decile": the mean accuracy of the worst tenth of the clients.
        metric: Metric of the clients, such as "roc_auc": the printed comparison decides by it, no gain is larger than it allows,
            and a column has the gains in it on the data of real owners, where these are stored. By default accuracy, or RMSE.
        seed: Seed of all random numbers: of the partition and of the diagnosis.
        unknown_options: No other keyword is taken; a misspelt one gets a suggestion.

    Returns:
        The recommendation: `print(recommendation)` is a summary, `.table` has the numbers, `.save(folder)` writes a page.

    Raises:
        UnalikeError: An option is unknown, or the clients cannot be diagnosed.

    Examples:
        >>> print(ua.recommend(clients, participation=0.5))  # doctest: +SKIP
    """
    known = [name for name in signature(recommend).parameters if name != "unknown_options"]
    check_keywords("ua.recommend", unknown_options, known, fields_of(Work))
    given = ClientsRequest(clients, data, data_dir, partition, split).read(needs_test=False)
    population = given.of(seed)
    return recommend_for_population(
        population,
        given.title(population),
        Conditions(participation, work or Work(), model),
        candidates=candidates,
        objective=objective,
        metric=metric,
        seed=seed,
    )


def recommend_for_population(
    population: Population,
    name: str,
    conditions: Conditions,
    *,
    candidates: str,
    objective: str,
    metric: str | None,
    seed: int,
    command: str = "",
) -> Recommendation:
    """Recommend methods for clients that are in memory; see `recommend`.

    `name` is the data and its partition, for the title, `command` the one that repeats the recommendation.
    """
    for what, value, choices in (
        ("candidates", candidates, judgement.CANDIDATES),
        ("objective", objective, OBJECTIVES),
    ):
        if value not in choices:
            raise unknown(what, value, choices)
    if not 0 < conditions.participation <= 1:
        raise UnalikeError(
            f"found participation={conditions.participation!r}, expected a share of the clients, above 0 and at most 1"
        )
    [own_metric] = read_metrics([metric or ("rmse" if population.classes is None else "accuracy")])
    own_metric = own_metric.of(population.task, population.classes)
    diagnosis = diagnose_population(population, name, seed=seed)
    owners, stored, judged = (
        _has_owners(population),
        StoredRuns.read(),
        judgement.read(objective, candidates),
    )
    runs, in_metric = stored.natural if owners else stored.made, stored.in_metric(own_metric.name)
    own = features(population, diagnosis, conditions)
    vector = np.array([own[name] for name in TITLES])
    known = runs.scores(objective)[list(judgement.CANDIDATES[candidates])].dropna(axis=1)
    forecaster = Forecaster(runs, objective, tuple(known.columns))
    unlike = forecaster.is_unlike(vector)
    alike = not unlike and judged.policy(owners) == judgement.FORECAST
    likeness = (
        np.full(len(runs.tasks), 1 / len(runs.tasks)) if owners else forecaster.weights(vector)
    )
    weights = likeness if alike or owners else np.full(len(likeness), 1 / len(likeness))
    headroom = _headroom(own_metric, own) if objective == "accuracy" else 1.0
    gains = forecaster.gains.clip(upper=headroom)
    advice = [_advice(runs, gains[method], weights) for method in gains]
    if owners:
        advice = [_for_owners(one, gains[one.method], in_metric, len(advice) - 1) for one in advice]
    measured = objective == "accuracy" and len(in_metric.tasks)
    if measured:
        medians = in_metric.gains("accuracy").clip(upper=headroom).median().dropna().to_dict()
        advice = [replace(one, measured=medians.get(one.method)) for one in advice]
    advice.sort(key=lambda one: (-one.sure, -one.gain))
    nearness = -forecaster.distances(vector) if owners else likeness
    return Recommendation(
        name=name,
        objective=objective,
        metric=own_metric,
        measured=int(measured),
        owners=owners,
        advice=advice,
        reasons=forecaster.reasons(vector) if alike else (),
        alike=_alike(forecaster, nearness, likeness, advice[0].method),
        judgement=judged,
        diagnosis=diagnosis,
        unlike=unlike,
        notes=[
            *_notes(runs, own),
            *_notes_on_metric(
                own["majority"], own_metric, metric is not None, len(in_metric.tasks)
            ),
        ],
        command=command,
    )


def _has_owners(population: Population) -> bool:
    """Whether the clients own their data: they come from a program, or from a column of the data."""
    return (
        population.classes is None
        or population.plan is None
        or read_scheme(population.plan.spec)[0].name == NATURAL
    )


def _headroom(metric: Metric, own: dict[str, float]) -> float:
    """The largest gain over a constant prediction, for clients with these features."""
    chance = {"accuracy": own["majority"], "roc_auc": 0.5, "balanced_accuracy": 1 / own["classes"]}
    return 1 - chance.get(metric.name, 0.0)


def _advice(runs: StoredRuns, gains: pd.Series, weights: np.ndarray) -> Advice:
    """The results of one method in the stored tasks, by the weights of the tasks."""
    method, values = str(gains.name), gains.to_numpy()
    own, base = runs.means.loc[method], runs.means.loc[BASELINE]
    rates = pd.Series(weights, index=own["rate"]).groupby(level=0).sum()
    gain = weighted_quantile(values, weights, 0.5)
    return Advice(
        method=method,
        spec=METHODS[method],
        sure=gain > 0,
        gain=gain,
        low=weighted_quantile(values, weights, (1 - SHARE) / 2),
        high=weighted_quantile(values, weights, (1 + SHARE) / 2),
        risk=float(weights @ (values < -LOSS)),
        traffic=float((own["bytes"] / base["bytes"]).median()),
        time=float((own["seconds"] / base["seconds"]).median()),
        rate=float(str(rates.idxmax())),
    )


def _for_owners(advice: Advice, gains: pd.Series, in_metric: StoredRuns, others: int) -> Advice:
    """Advice for real owners: sure only if the lower bound of its gain is above 0, at a rate of the tasks in their metric."""
    rates = in_metric.means["rate"] if len(in_metric.tasks) else pd.Series([advice.rate])
    return replace(
        advice, sure=lower_bound(gains.to_numpy(), others) > 0, rate=float(rates.mode().iloc[0])
    )


def _alike(
    forecaster: Forecaster, nearness: np.ndarray, weights: np.ndarray, method: str
) -> list[AlikeTask]:
    """The nearest tasks with any weight, and the gain of `method` there."""
    gains = forecaster.gains
    most = np.argsort(-nearness, kind="stable")[:MOST_ALIKE]
    return [
        AlikeTask(
            str(gains.index[t]),
            float(weights[t]),
            str(gains.iloc[t].idxmax()),
            float(gains.iloc[t][method]),
        )
        for t in most
        if weights[t] > 0
    ]


def _notes_on_metric(majority: float, metric: Metric, chosen: bool, measured: int) -> list[str]:
    """A note where the stored runs have no gains in the metric, or where accuracy hardly tells methods apart."""
    if not measured:
        return [
            f"The stored runs have no {metric.word}: gains in it may be others. The comparison decides by it."
        ]
    if chosen or majority < LOPSIDED:
        return []
    return [
        f"{share(majority)} of the samples are of one class, so that accuracy hardly tells methods apart: decide by another "
        "metric, such as --metric roc_auc or balanced_accuracy."
    ]


def _notes(runs: StoredRuns, own: dict[str, float]) -> list[str]:
    """A note for each feature in which the clients lie outside of all stored tasks, by a twentieth of the range of these."""
    ranges = {name: (runs.tasks[name].min(), runs.tasks[name].max()) for name in own}
    return [
        f"No stored task is like these clients in {TITLES[name]}: found {own[name]:.3g}, tasks have {low:.3g}"
        + (f" to {high:.3g}." if high > low else ".")
        for name, (low, high) in ranges.items()
        if not -0.05 <= (own[name] - low) / max(high - low, 1e-9) <= 1.05
    ]
