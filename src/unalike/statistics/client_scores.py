"""Scores of single clients over the seeds, with intervals, by themselves and compared with other methods."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

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

POOLED, MEAN = "all test samples pooled", "mean of the clients"
"""The rows below the clients: the score of all test samples as if they were of one client, and the clients' unweighted mean."""


ACROSS: dict[str, Callable[[Metric], Metric]] = {
    "pooled": lambda metric: metric,
    "clients": lambda metric: metric.of_clients,
    "worst": lambda metric: replace(metric.of_worst_tenth, name=metric.name),
}
"""The score of all clients that decides -> its metric, in the columns of the metric itself: that of all test samples together, its
mean over the clients, its mean over the worst tenth of them."""


def scored_across(
    across: str, rounds: pd.DataFrame, client_rounds: pd.DataFrame | None, columns: Columns
) -> tuple[pd.DataFrame, Columns]:
    """The histories with the scores of `across` in the columns of the deciding metric, and their columns.

    Raises `UnalikeError` where the clients' scores by round are not known, as of more than 100 clients.
    """
    if across not in ACROSS:
        raise unknown("value of across", across, ACROSS)
    scores = (
        [] if client_rounds is None else [c.name for c in columns.scores if c.name in client_rounds]
    )
    if client_rounds is None or not scores:
        raise UnalikeError(
            f"across={across!r} needs scores of single clients by round, which are kept for at most 100 clients"
        )
    made, key = ACROSS[across](columns.metric), ["method", "seed", "round"]
    by_round = client_rounds.groupby(key, sort=False)[scores]
    values = (
        by_round.mean()
        if across == "clients"
        else by_round.agg(partial(worst_decile, metric=columns.metric))
    )
    replaced = values.reindex(pd.MultiIndex.from_frame(rounds[key]))
    changed = (replace(c, metric=made) if c.metric == columns.metric else c for c in columns.all)
    return rounds.assign(**{name: replaced[name].to_numpy() for name in scores}), Columns(
        tuple(changed)
    )


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
    pooled = scores_by_seed(rounds, column)
    counts = clients.set_index(["method", "seed", "client"]).reindex(
        columns=["n_test", "n_positive"]
    )
    sizes = counts[counts["n_test"] > 0].groupby("client", sort=False).mean()
    sizes.loc[POOLED] = counts.groupby(["method", "seed"]).sum(min_count=1).mean()
    by_method = {}
    for method, own in clients.groupby("method", sort=False):
        wide = own.pivot(index="seed", columns="client", values=column.name)[
            list(own["client"].unique())
        ]
        if wide.notna().any(axis=None):
            whole = pooled.get(str(method), pd.Series(dtype=float)).reindex(wide.index)
            by_method[str(method)] = wide.assign(**{MEAN: wide.mean(axis=1), POOLED: whole})
    rows, widest = [], column.metric.high - column.metric.low
    for method, wide in by_method.items():
        for name in wide:
            values = wide[name].dropna()
            if values.empty and (name == POOLED or name not in sizes.index):
                continue
            row = {
                "method": method,
                "client": name,
                **sizes.reindex([name]).iloc[0].to_dict(),
                "seeds": len(values),
            }
            row |= dict(zip(("score", "low", "high"), _mean(values, rules), strict=True))
            row["low"], row["high"] = (
                max(row["low"], column.metric.low),
                min(row["high"], column.metric.high),
            )
            for other in others:
                d = (
                    _differences(values, by_method.get(other, pd.DataFrame()), name)
                    if other != method
                    else []
                )
                mean, *ends = _mean(d, rules)
                ends = [float(np.clip(end, -widest, widest)) for end in ends]
                row |= dict(
                    zip(
                        (f"to_{other}", f"to_{other}_low", f"to_{other}_high"),
                        (mean, *ends),
                        strict=True,
                    )
                )
            rows.append(row)
    return pd.DataFrame(rows)


def _differences(values: pd.Series, other: pd.DataFrame, client: object) -> list[float]:
    """The differences to the other method's scores of a client, for the seeds that both have."""
    base = other[client].dropna() if client in other else pd.Series(dtype=float)
    return [
        difference(float(values[seed]), float(base[seed]))
        for seed in values.index.intersection(base.index)
    ]


def _mean(values: Sequence[float] | pd.Series, rules: Rules) -> tuple[float, float, float]:
    """The mean of a value per seed with its interval; NaN where there is none."""
    if not len(values):
        return math.nan, math.nan, math.nan
    tested = moderated_t(np.asarray(values, float)[:, None], rules.level, rules.overlap)
    return float(np.mean(values)), float(tested.low[0]), float(tested.high[0])
