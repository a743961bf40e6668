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
    return table.sort_values(
        "method", key=lambda names: names.map(place), kind="stable", ignore_index=True
    )


MOST_ROUNDS = 10
"""Most evaluated rounds that the score of a run is a mean over."""


def scored_rounds(evaluated: int) -> int:
    """The number of rounds that the score of a run counts: the last third of its evaluated rounds, at most ten, at least one.

    A mean does not reward a lucky last round. In a short run the rounds before the last third are mostly the climb.
    """
    return max(1, min(MOST_ROUNDS, evaluated // 3))


def tail_mean(rounds: pd.DataFrame, column: Column) -> pd.Series:
    """The score of each run: the mean of a column over its last rounds, indexed by (method, seed) in order of appearance.

    `scored_rounds` says how many rounds count. Round 0, the untrained model, never counts. Only rounds of a run's last stage
    count, since earlier stages train models that are not the result of the method. A run without an evaluated round is left
    out. Where `column.selected` marks one round of each run (chosen by its validation score), only this round counts.
    """
    evaluated = _evaluated(rounds, column)
    means = evaluated.groupby(["method", "seed"], sort=False)[column.name].agg(
        lambda values: values.tail(scored_rounds(len(values))).mean()
    )
    runs = pd.MultiIndex.from_frame(rounds[["method", "seed"]].drop_duplicates())
    return means.reindex(runs).dropna()


def scoring_rule(rounds: pd.DataFrame, columns: Columns) -> str:
    """The rounds that scores are means over, in words: `mean of the last 10 of 30 evaluated rounds`."""
    if any(column.selected in rounds for column in columns.scores):
        return "the round with the best validation score"
    scored = [c for c in columns.scores if c.name in rounds and rounds[c.name].notna().any()]
    evaluated = _evaluated(rounds, (scored or columns.scores)[0])
    counts = evaluated.groupby(["method", "seed"]).size().unique().tolist()
    if len(counts) != 1:
        return f"mean of the last third of the evaluated rounds, at most {MOST_ROUNDS}"
    counted = scored_rounds(counts[0])
    return (
        f"mean of the last {counted} of {counts[0]} evaluated rounds"
        if counted > 1
        else "the last evaluated round"
    )


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
    found = []
    for method, own in _evaluated(rounds, column).groupby("method", sort=False):
        lines = [
            _line(run.tail(max(3, len(run) // 3 + 1)), column.name)
            for _, run in own.groupby("seed")
        ]
        gains = column.metric.sign * pd.Series([gain for gain, _ in lines], dtype=float)
        error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        if gains.mean() > max(smallest, 2 * error):
            found.append(
                Rise(
                    str(method),
                    float(gains.mean()),
                    max(span for _, span in lines),
                    int(own["round"].max()),
                )
            )
    return found


def _line(run: pd.DataFrame, column: str) -> tuple[float, int]:
    """The change of a column along its regression line, and the number of rounds that the line spans."""
    return trend(run["round"].tolist(), run[column].tolist()), int(
        run["round"].max() - run["round"].min()
    )


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
    metric, columns = column.metric, ["method", "worst", "better_off", "worse_off", "largest_loss"]
    if column.name not in clients:
        return pd.DataFrame(columns=columns)
    scores = clients.dropna(subset=[column.name]).set_index(["seed", "client"])
    base = scores.loc[scores["method"] == baseline, column.name]
    rows = []
    for method, own in scores.groupby("method", sort=False)[column.name]:
        gain = (metric.sign * (own - base)).dropna().round(9)
        gain = gain.mask(
            gain.abs() <= ROUNDING * base.reindex(gain.index).abs(), 0.0
        )  # differences that are only rounding
        worst = metric.sign * (metric.sign * own).groupby("seed").min().mean()
        compared = method != baseline and len(gain) > 0
        better, worse = ((gain > 0).mean(), (gain < 0).mean()) if compared else (math.nan, math.nan)
        loss = max(0.0, -gain.min()) if compared else math.nan
        rows.append(
            {
                "method": method,
                "worst": worst,
                "better_off": better,
                "worse_off": worse,
                "largest_loss": loss,
            }
        )
    return pd.DataFrame(rows, columns=columns)


def worst_decile(values: pd.Series, metric: Metric) -> float:
    """Mean over the worst tenth of the clients: max(1, K // 10) of K. NaN for no client."""
    scored = metric.worst_first(values.dropna())
    return float(scored.head(max(1, len(scored) // 10)).mean())


def require_columns(frame: pd.DataFrame, name: str, *columns: str) -> None:
    missing = [column for column in columns if column not in frame]
    if missing:
        raise UnalikeError(
            f"the {name} table lacks the columns {', '.join(missing)}; found {', '.join(map(str, frame)) or 'no columns'}"
        )


def require_method(rounds: pd.DataFrame, baseline: str) -> None:
    require_columns(rounds, "rounds", "method")
    known = rounds["method"].unique()
    if baseline not in known:
        raise UnalikeError(
            f"the baseline {baseline!r} was not run; expected one of {', '.join(map(repr, known))}"
        )
