"""Scores of single clients over the seeds, with intervals, by themselves and compared with other methods."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from unalike._utils.errors import UnalikeError, unknown
from unalike.metrics.columns import Column, Columns
from unalike.metrics.named_metrics import Metric
from unalike.statistics.inference import difference
from unalike.statistics.moderated_t import moderated_t
from unalike.statistics.scores import worst_decile
from unalike.statistics.summary import scores_by_seed
from unalike.statistics.verdicts import Rules

POOLED = "all test samples pooled"
"""The row of the score of all test samples, as if they were of one client."""
MEAN = "mean of the clients"
"""The row of the clients' unweighted mean."""


def _of_worst_tenth(metric: Metric) -> Metric:
    """The metric of the worst tenth of the clients, in the columns of the metric itself."""
    return replace(metric.of_worst_tenth, name=metric.name)


ACROSS: dict[str, Callable[[Metric, str], Metric]] = {
    "pooled": lambda metric, clients: metric,
    "clients": Metric.mean_of,
    "worst": lambda metric, clients: _of_worst_tenth(metric),
}
"""The score of all clients that decides -> its metric, in the columns of the metric itself: that of all test samples together, its
mean over the clients, its mean over the worst tenth of them."""


def scored_across(
    across: str,
    rounds: pd.DataFrame,
    client_rounds: pd.DataFrame | None,
    columns: Columns,
    clients: str = "clients",
) -> tuple[pd.DataFrame, Columns]:
    """The histories with the scores of `across` in the columns of the deciding metric, and their columns.

    `clients` is what the user calls them. Raises `UnalikeError` where the clients' scores by round are not known, as of more than
    100 clients.
    """
    if across not in ACROSS:
        raise unknown("value of across", across, ACROSS)
    names = []
    if client_rounds is not None:
        names = [column.name for column in columns.scores if column.name in client_rounds]
    if client_rounds is None or not names:
        raise UnalikeError(
            f"across={across!r} needs scores of single clients by round, which are kept for at most 100 clients"
        )

    # one score of all clients for each round
    metric = columns.metric
    key = ["method", "seed", "round"]
    by_round = client_rounds.groupby(key, sort=False)[names]
    of_worst_tenth = partial(worst_decile, metric=metric)
    values = by_round.mean() if across == "clients" else by_round.agg(of_worst_tenth)

    # it takes the place of the pooled score, so that all that follows reads it
    in_order_of_rounds = values.reindex(pd.MultiIndex.from_frame(rounds[key]))
    replaced = {name: in_order_of_rounds[name].to_numpy() for name in names}
    metric_across = ACROSS[across](metric, clients)
    changed = [
        replace(column, metric=metric_across) if column.metric == metric else column
        for column in columns.all
    ]
    return rounds.assign(**replaced), Columns(tuple(changed))


def client_scores(
    rounds: pd.DataFrame, clients: pd.DataFrame, column: Column, others: Sequence[str], rules: Rules
) -> pd.DataFrame:
    """One row per method and client, and for each method two rows for all clients, `MEAN` and `POOLED`. The columns are:

    `method client n_test n_positive seeds score low high`, and for each of `others` (methods such as the baseline)
    `to_X to_X_low to_X_high`: the difference to the score with X over the seeds that both have.

    `n_test` and `n_positive` (NaN where it is not known) are means over the seeds in which the client is tested. A client without a
    score in a seed, such as the ROC AUC of one class, has no score in that seed (NaN without any), and does not count in its
    mean over the clients. Intervals are t intervals of each row by itself, widened for overlapping training sets as those of
    methods are, not corrected for the number of rows, and cut where the metric ends.

    `clients` has one row per method, seed and client, `method seed client n_train n_test [n_positive]` and scores; `others` are
    the methods to compare with; `rules` give level and overlap.
    """
    if column.name not in clients:
        return pd.DataFrame()
    sizes = _sizes(clients)
    by_method = _scores_by_method(rounds, clients, column)
    rows = []
    for method, table in by_method.items():
        for client in table:
            scores = table[client].dropna()
            if scores.empty and (client == POOLED or client not in sizes.index):
                continue
            size = sizes.reindex([client]).iloc[0].to_dict()
            row: dict[Any, Any] = {"method": method, "client": client}
            row |= size
            row["seeds"] = len(scores)
            row |= _score(scores, column.metric, rules)
            for other in others:
                differences: list[float] = []
                if other != method and other in by_method:
                    differences = _differences(scores, by_method[other], client)
                row |= _comparison(other, differences, column.metric, rules)
            rows.append(row)
    return pd.DataFrame(rows)


def _sizes(clients: pd.DataFrame) -> pd.DataFrame:
    """Samples by client (index), means over the seeds in which it is tested, and of all clients together: `n_test n_positive`."""
    counts = clients.set_index(["method", "seed", "client"])
    counts = counts.reindex(columns=["n_test", "n_positive"])
    tested = counts[counts["n_test"] > 0]
    sizes = tested.groupby("client", sort=False).mean()
    of_all = counts.groupby(["method", "seed"]).sum(min_count=1)
    sizes.loc[POOLED] = of_all.mean()
    return sizes


def _scores_by_method(
    rounds: pd.DataFrame, clients: pd.DataFrame, column: Column
) -> dict[str, pd.DataFrame]:
    """Method -> scores by seed (rows) and client (columns), and the columns `MEAN` and `POOLED`; methods with scores alone."""
    pooled = scores_by_seed(rounds, column)
    by_method = {}
    for method, rows in clients.groupby("method", sort=False):
        table = rows.pivot(index="seed", columns="client", values=column.name)
        # in the order of the clients, not sorted by their names
        table = table[list(rows["client"].unique())]
        if not table.notna().any(axis=None):
            continue
        of_all = pooled.get(str(method), pd.Series(dtype=float)).reindex(table.index)
        overall = {MEAN: table.mean(axis=1), POOLED: of_all}
        by_method[str(method)] = table.assign(**overall)
    return by_method


def _score(scores: pd.Series, metric: Metric, rules: Rules) -> dict[str, float]:
    """`score low high`: the mean over the seeds with its interval, cut where the metric ends."""
    mean, low, high = _mean(scores, rules)
    return {"score": mean, "low": max(low, metric.low), "high": min(high, metric.high)}


def _comparison(
    other: str, differences: Sequence[float], metric: Metric, rules: Rules
) -> dict[str, float]:
    """`to_X to_X_low to_X_high`: the mean difference to a method with its interval, cut at the largest possible difference."""
    mean, low, high = _mean(differences, rules)
    largest = metric.high - metric.low
    return {
        f"to_{other}": mean,
        f"to_{other}_low": float(np.clip(low, -largest, largest)),
        f"to_{other}_high": float(np.clip(high, -largest, largest)),
    }


def _differences(scores: pd.Series, other: pd.DataFrame, client: object) -> list[float]:
    """The differences to the other method's scores of a client, for the seeds that both have."""
    if client not in other:
        return []
    base = other[client].dropna()
    seeds = scores.index.intersection(base.index)
    return [difference(float(scores[seed]), float(base[seed])) for seed in seeds]


def _mean(values: Sequence[float] | pd.Series, rules: Rules) -> tuple[float, float, float]:
    """The mean of a value per seed with its interval; NaN where there is none."""
    if not len(values):
        return math.nan, math.nan, math.nan
    by_seed = np.asarray(values, float)[:, None]
    tested = moderated_t(by_seed, rules.level, rules.overlap)
    return float(np.mean(values)), float(tested.low[0]), float(tested.high[0])
