"""Costs of a comparison: totals, cost to reach a target, trade-offs between score and costs with their Pareto fronts."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from unalike.metrics.columns import RUNNING_TOTALS, SIMULATED_SECONDS, TIMES, Column
from unalike.metrics.named_metrics import Metric
from unalike.statistics.inference import without_rounding
from unalike.statistics.scores import require_columns


def to_target(
    rounds: pd.DataFrame,
    target: float,
    column: Column,
    lost: Mapping[str, int] = MappingProxyType({}),
) -> pd.DataFrame:
    """Rounds, MB and seconds until a run first scores `target` or better: `method seeds reached round mb seconds`.

    With `simulated_seconds` where devices are simulated. All but the first three are means over seeds, and NaN unless every seed
    reached the target: a mean over the successful seeds alone would favor the method. Only evaluated rounds after round 0 count.
    `lost`: method -> number of its seeds that diverged; `rounds` has no rows of them, and they count as seeds that did not reach
    the target.
    """
    metric = column.metric
    spent = cumulative(rounds)
    spent = spent.assign(mb=spent["mb_down"] + spent["mb_up"]).sort_values("round")
    costs = ["round", "mb", "seconds"]
    if SIMULATED_SECONDS in rounds:
        costs.append(SIMULATED_SECONDS)
    rows: list[dict[str, Any]] = []
    for method in rounds["method"].unique():
        of_method = spent[spent["method"] == method]
        scored = of_method[(of_method["round"] >= 1) & of_method[column.name].notna()]
        seeds = int(scored["seed"].nunique())
        if not seeds:
            continue
        seeds += lost.get(method, 0)
        reached = scored[metric.sign * (scored[column.name] - target) >= -1e-12]
        first = reached.groupby("seed")[costs].first()
        means = first.mean()
        # the mean of the seeds that succeeded would favor the method
        if len(first) < seeds:
            means = means * math.nan
        row = {"method": method, "seeds": seeds, "reached": len(first)}
        rows.append(row | {str(name): mean for name, mean in means.items()})
    return pd.DataFrame(rows, columns=["method", "seeds", "reached", *costs])


def pareto_front(table: pd.DataFrame, more: Iterable[str], less: Iterable[str]) -> pd.Series:
    """The Pareto front: True for rows such that no other row is at least as good in every column and better in one.

    Higher is better in the columns `more`, lower in the columns `less`. A row with a missing number is not on the front.
    """
    goods = pd.concat([table[list(more)], -table[list(less)]], axis=1).to_numpy(dtype=float)
    complete = ~np.isnan(goods).any(axis=1)
    rivals = goods[complete]
    on_front = complete.copy()
    for i, row in enumerate(goods):
        beats_row = (rivals >= row).all(axis=1) & (rivals > row).any(axis=1)
        on_front[i] &= not beats_row.any()
    return pd.Series(on_front, index=table.index)


def running_totals(rounds: pd.DataFrame) -> list[str]:
    """The columns of `rounds` that are running totals already."""
    return [name for name in RUNNING_TOTALS if name in rounds]


def totals(rounds: pd.DataFrame) -> pd.DataFrame:
    """Cost of a whole run, mean over seeds: index method, columns `mb_down mb_up seconds evaluation_seconds` (MB = 10^6 bytes).

    With the column `epsilon` where a method is private, and `simulated_seconds` where devices are simulated.
    A run that is evaluated only every few rounds has rows only for these rounds. Each row then counts for all rounds since the
    row before.
    """
    names = ["mb_down", "mb_up", *TIMES, *running_totals(rounds)]
    by_run = cumulative(rounds).groupby(["method", "seed"], sort=False)[names].max()
    return by_run.groupby("method", sort=False).mean()


def traffic_of_clients(timeline: pd.DataFrame) -> pd.DataFrame:
    """`method client mb_down mb_up`: MB to and from each client of a timeline in a whole run, mean over seeds.

    Empty for the timeline of a run that did not count its clients' bytes.
    """
    names = {"bytes_down": "mb_down", "bytes_up": "mb_up"}
    if not {*names} <= {*timeline}:
        return pd.DataFrame(columns=["method", "client", *names.values()])
    of_run = timeline.groupby(["method", "client", "seed"], sort=False)[[*names]].sum() / 1e6
    means = of_run.groupby(["method", "client"], sort=False).mean()
    return means.rename(columns=names).reset_index()


def cumulative(rounds: pd.DataFrame) -> pd.DataFrame:
    """`rounds` with running totals in the columns `mb_down`, `mb_up` and `TIMES`; NaN where a time is not known."""
    require_columns(
        rounds, "rounds", "method", "seed", "round", "bytes_down", "bytes_up", "seconds"
    )
    ordered = rounds.sort_values("round", kind="stable")
    runs = [ordered["method"], ordered["seed"]]
    # a row stands for all rounds since the row before; the first one for those before it
    rounds_since = ordered["round"].groupby(runs).diff()
    rounds_since = rounds_since.fillna(ordered["round"].clip(lower=1))
    per_round = {"mb_down": ordered["bytes_down"] / 1e6, "mb_up": ordered["bytes_up"] / 1e6}
    unknown = pd.Series(math.nan, ordered.index)
    for name in TIMES:
        per_round[name] = ordered.get(name, unknown)
    running = {}
    for name, values in per_round.items():
        running[name] = (values * rounds_since).groupby(runs).cumsum()
    return ordered.assign(**running).loc[rounds.index]


GOODS = ("score", "worst")
"""The columns of a trade-off in which the metric says whether more is better; in the others less is."""
PAIRS = (("score", "worst"), ("mb", "score"), ("seconds", "score"), ("mb", "worst"))
"""The pairs of columns that are drawn against each other: (horizontal, vertical)."""


def tradeoff(summary: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """`method protocol score worst mb seconds`, one row for each row of `summary` that has all four numbers.

    `score` is the mean, `worst` the mean over the worst tenth of the clients, `mb` the traffic of a run in both directions,
    `seconds` its training time. Scores that differ only by rounding are the same.
    """
    table = pd.DataFrame(
        {
            "method": summary["method"],
            "protocol": summary["protocol"],
            "score": summary[metric.name],
            "worst": summary["worst_decile"],
            "mb": summary["mb_down"] + summary["mb_up"],
            "seconds": summary["seconds"],
        }
    ).dropna()
    rounded = {name: without_rounding(table[name]) for name in GOODS}
    return table.assign(**rounded).reset_index(drop=True)


def on_front(table: pd.DataFrame, x: str, y: str, metric: Metric) -> pd.Series:
    """The rows on the Pareto front of two columns: no other row is at least as good in both and better in one."""
    goods = {name: metric.sign * table[name] for name in GOODS}
    signed = table.assign(**goods)
    scores = [name for name in (x, y) if name in GOODS]
    costs = [name for name in (x, y) if name not in GOODS]
    return pareto_front(signed, more=scores, less=costs)


def stairs(x: str, metric: Metric) -> str:
    """The axis along which the line through the front goes first: on one side of it, some method is better in both columns."""
    return "y" if x in GOODS and metric.sign > 0 else "x"
