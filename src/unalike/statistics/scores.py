"""The scores of a comparison: the score of a run, and scores of single clients.

Every function is pure. It takes the tables of a comparison, and the column of scores that it reads (`columns.Column`):

* `rounds`, one row per evaluated round:
  `method seed round seconds loss accuracy macro_f1 bytes_down bytes_up [personal_accuracy ...]`;
* `clients`, one row per method, seed and client: `method seed client accuracy [personal_accuracy ...]`.

For regression both have `rmse` (and `personal_rmse`) instead of `accuracy` and `macro_f1`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from unalike._utils.errors import UnalikeError
from unalike.metrics.columns import Column, Columns
from unalike.metrics.failures import trend
from unalike.metrics.named_metrics import Metric
from unalike.statistics.inference import ROUNDING


def in_order(table: pd.DataFrame, methods: Iterable[str]) -> pd.DataFrame:
    """The rows sorted by method in the given order; the order within a method is kept."""
    place = {name: i for i, name in enumerate(methods)}

    def places(names: pd.Series) -> pd.Series:
        return names.map(place)

    return table.sort_values("method", key=places, kind="stable", ignore_index=True)


MAX_SCORED_ROUNDS = 10
"""Most evaluated rounds that the score of a run is a mean over."""


def scored_rounds(evaluated: int) -> int:
    """The number of rounds that the score of a run counts: the last third of its evaluated rounds, at most ten, at least one.

    A mean does not reward a lucky last round. In a short run the rounds before the last third are mostly the climb.
    """
    return max(1, min(MAX_SCORED_ROUNDS, evaluated // 3))


def tail_mean(rounds: pd.DataFrame, column: Column) -> pd.Series:
    """The score of each run: the mean of a column over its last rounds, indexed by (method, seed) in order of appearance.

    `scored_rounds` says how many rounds count. Round 0, the untrained model, never counts. Only rounds of a run's last stage
    count, since earlier stages train models that are not the result of the method. A run without an evaluated round is left
    out. Where `column.selected` marks one round of each run (chosen by its validation score), only this round counts.
    """

    def mean_of_last(scores: pd.Series) -> float:
        return float(scores.tail(scored_rounds(len(scores))).mean())

    evaluated = _evaluated(rounds, column)
    means = evaluated.groupby(["method", "seed"], sort=False)[column.name].agg(mean_of_last)
    # in the order of `rounds`, which need not be that of the evaluated ones
    runs = pd.MultiIndex.from_frame(rounds[["method", "seed"]].drop_duplicates())
    return means.reindex(runs).dropna()


def scoring_rule(rounds: pd.DataFrame, columns: Columns) -> str:
    """The rounds that scores are means over, in words: `mean of the last 10 of 30 evaluated rounds`."""
    if any(column.selected in rounds for column in columns.scores):
        return "the round with the best validation score"
    with_scores = [column for column in columns.scores if _has_scores(rounds, column.name)]
    first = (with_scores or columns.scores)[0]
    by_run = _evaluated(rounds, first).groupby(["method", "seed"])
    counts = by_run.size().unique().tolist()
    if len(counts) != 1:
        return f"mean of the last third of the evaluated rounds, at most {MAX_SCORED_ROUNDS}"
    evaluated = counts[0]
    counted = scored_rounds(evaluated)
    if counted == 1:
        return "the last evaluated round"
    return f"mean of the last {counted} of {evaluated} evaluated rounds"


def _has_scores(table: pd.DataFrame, name: str) -> bool:
    return name in table and bool(table[name].notna().any())


def _evaluated(rounds: pd.DataFrame, column: Column) -> pd.DataFrame:
    """The rows that a score may count, oldest first."""
    require_columns(rounds, "rounds", "method", "seed", "round", column.name)
    counted = (rounds["round"] >= 1) & rounds[column.name].notna() & _of_last_stage(rounds)
    if column.selected in rounds:
        counted &= rounds[column.selected].eq(True)
    return rounds[counted].sort_values("round", kind="stable")


@dataclass(frozen=True)
class Rise:
    """A method whose score still rises: by `gain` (positive is better) in the last `last` of its `rounds` rounds."""

    method: str
    gain: float
    last: int
    rounds: int


def still_rising(rounds: pd.DataFrame, column: Column, smallest: float) -> list[Rise]:
    """The methods whose score rose by more than `smallest` over the last third of their evaluated rounds.

    The gain of a run is the slope of a line through these rounds, times the rounds that they span, so that noise of single
    rounds does not count. The mean gain over seeds must exceed two standard errors. Runs with a selected round are left out,
    since their last rounds do not count.
    """
    if column.selected in rounds:
        return []
    rises = []
    for method, rows in _evaluated(rounds, column).groupby("method", sort=False):
        changes = []
        spans = []
        for _, run in rows.groupby("seed"):
            last_third = run.tail(max(3, len(run) // 3 + 1))
            changes.append(trend(last_third["round"].tolist(), last_third[column.name].tolist()))
            spans.append(int(last_third["round"].max() - last_third["round"].min()))
        gains = column.metric.sign * pd.Series(changes, dtype=float)
        error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        if gains.mean() > max(smallest, 2 * error):
            rises.append(
                Rise(
                    method=str(method),
                    gain=float(gains.mean()),
                    last=max(spans),
                    rounds=int(rows["round"].max()),
                )
            )
    return rises


def _of_last_stage(rounds: pd.DataFrame) -> pd.Series:
    """Mask of the rows that belong to the last stage of their run."""
    stage = rounds.get("stage", pd.Series(0, index=rounds.index)).fillna(0)
    return stage == stage.groupby([rounds["method"], rounds["seed"]]).transform("max")


def client_effects(clients: pd.DataFrame, baseline: str, column: Column) -> pd.DataFrame:
    """Clients' gains and losses compared with the baseline: `method worst better_off worse_off largest_loss`.

    `worst` is the score of the worst client (mean over seeds); `better_off` and `worse_off` are shares of all pairs
    (seed, client); `largest_loss` is the largest loss of a client compared with its score under the baseline, 0 if no client
    loses.
    """
    metric = column.metric
    names = ["method", "worst", "better_off", "worse_off", "largest_loss"]
    if column.name not in clients:
        return pd.DataFrame(columns=names)
    table = clients.dropna(subset=[column.name]).set_index(["seed", "client"])
    base = table.loc[table["method"] == baseline, column.name]
    rows = []
    for method, scores in table.groupby("method", sort=False)[column.name]:
        worst_by_seed = (metric.sign * scores).groupby("seed").min()
        row = {
            "method": method,
            "worst": metric.sign * worst_by_seed.mean(),
            "better_off": math.nan,
            "worse_off": math.nan,
            "largest_loss": math.nan,
        }
        gain = (metric.sign * (scores - base)).dropna().round(9)
        if method != baseline and len(gain) > 0:
            # differences that are only rounding count as none
            is_rounding = gain.abs() <= ROUNDING * base.reindex(gain.index).abs()
            gain = gain.mask(is_rounding, 0.0)
            row["better_off"] = (gain > 0).mean()
            row["worse_off"] = (gain < 0).mean()
            row["largest_loss"] = max(0.0, -gain.min())
        rows.append(row)
    return pd.DataFrame(rows, columns=names)


def worst_decile(values: pd.Series, metric: Metric) -> float:
    """Mean over the worst tenth of the clients: max(1, K // 10) of K. NaN for no client."""
    scored = metric.worst_first(values.dropna())
    return float(scored.head(max(1, len(scored) // 10)).mean())


def require_columns(frame: pd.DataFrame, name: str, *columns: str) -> None:
    missing = [column for column in columns if column not in frame]
    if missing:
        present = ", ".join(map(str, frame)) or "no columns"
        raise UnalikeError(
            f"the {name} table lacks the columns {', '.join(missing)}; found {present}"
        )


def require_method(rounds: pd.DataFrame, baseline: str) -> None:
    require_columns(rounds, "rounds", "method")
    known = rounds["method"].unique()
    if baseline not in known:
        raise UnalikeError(
            f"the baseline {baseline!r} was not run; expected one of {', '.join(map(repr, known))}"
        )
