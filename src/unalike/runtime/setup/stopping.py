"""Rules that end a run before its last round: thresholds on scores, patience, budgets.

A rule is text. Conditions are joined by `and`, `or`:

    min_accuracy >= 0.8            every client's accuracy has reached 0.8 (also `max_`, `mean_`, `std_` over clients)
    accuracy >= 0.9 or round >= 40
    patience(rounds=10)            the score has not improved for ten rounds of a stage; `patience(10, metric="loss", delta=0.001)`,
                                   and for a function of one's own the better direction: `patience(10, metric="cost", less=True)`
    seconds >= 600                 totals of the run: `round seconds bytes bytes_up bytes_down epsilon
                                   simulated_seconds`

Scores are those of the validation samples where the clients have any. A patience rule needs them: a round chosen by test samples
makes their score too good. A method without a shared model is judged by its personal models.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.metrics.columns import SIMULATED_SECONDS, TEST, VALIDATION, Column, Columns
from unalike.runtime.records.history import History, Row, last_stage

Rule = Callable[[History], bool]
"""Whether a run with this history has come to its end."""
Total = Callable[[list[Row]], float]
"""The total of a run, from the rows of its history."""

EXAMPLES = "'min_accuracy >= 0.8', 'patience(rounds=10)' or 'accuracy >= 0.9 or seconds >= 600'"
COMPARED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
}


def _deviation(values: np.ndarray) -> float:
    """The standard deviation; NaN of one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


OVER_CLIENTS: dict[str, Callable[[np.ndarray], float]] = {
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "std": _deviation,
}


def _newest(column: str) -> Total:
    """The value of a column in the newest row."""
    return lambda rows: rows[-1].get(column, math.nan)


def _sum_of(*columns: str) -> Total:
    """The sum of columns over all rows."""
    return lambda rows: sum(row[column] for row in rows for column in columns)


TOTALS: dict[str, Total] = {
    "round": _newest("round"),
    "seconds": _sum_of("seconds"),
    "bytes": _sum_of("bytes_down", "bytes_up"),
    "bytes_down": _sum_of("bytes_down"),
    "bytes_up": _sum_of("bytes_up"),
    "train_loss": _newest("train_loss"),
    "epsilon": _newest("epsilon"),
    SIMULATED_SECONDS: _newest(SIMULATED_SECONDS),
}
"""Name in a rule -> its value."""


def best_row(rows: Iterable[Row], column: Column, delta: float = 0.0, sign: int = 0) -> Row | None:
    """The first row after round 0 that no later one improves by more than `delta`; None where none was scored.

    sign: +1 if more is better, -1 if less is; 0 for the direction of the metric.
    """
    best = None
    sign = sign or column.metric.sign
    for row in rows:
        value = column.value(row)
        if math.isnan(value) or row["round"] < 1:
            continue
        if best is None or sign * (value - column.value(best)) > delta:
            best = row
    return best


def column_for(name: str, columns: Columns) -> Column | None:
    """The column that a rule names: that of the validation samples where there are any. None: there is no such column."""
    split = VALIDATION if columns.validated else TEST
    return next(
        (column for column in columns.all if column.split == split and name in column.spellings),
        None,
    )


def stop_rule(text: str, columns: Columns) -> Rule:
    """The rule that the text describes. Raises `UnalikeError` for invalid text and shows valid examples."""
    return _rule(_parsed(text), columns)


def names_in(text: str | None) -> set[str]:
    """The names in the text of a stop rule, `patience` among them. Raises `UnalikeError` where it is no expression."""
    if not text:
        return set()
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


def reader_of(total: str, *, budget: str | None, stop: str | None) -> str:
    """The option by which a run ends by a total, such as "budget='3 epsilon'"; empty where it does not.

    Raises `UnalikeError` for an option that says nothing.
    """
    if budget is not None and Budget(budget).limit[0] == total:
        return f"budget={budget!r}"
    if total in names_in(stop):
        return f"stop={stop!r}"
    return ""


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise UnalikeError(f"stop={text!r} is no rule; expected for example {EXAMPLES}") from None


def _rule(node: ast.expr, columns: Columns) -> Rule:
    """The rule of an expression, or of a part of it."""
    if isinstance(node, ast.BoolOp):
        rules = [_rule(value, columns) for value in node.values]
        combine = any if isinstance(node.op, ast.Or) else all
        return lambda history: combine([rule(history) for rule in rules])
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "patience":
        return _patience(node, columns)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.left, ast.Name):
        return _threshold(node, columns)
    raise UnalikeError(f"stop: {ast.unparse(node)!r} is no rule; expected for example {EXAMPLES}")


def _threshold(node: ast.Compare, columns: Columns) -> Rule:
    compare = COMPARED.get(type(node.ops[0]))
    if compare is None:
        raise UnalikeError(
            f"stop: {ast.unparse(node)!r} compares in a way that is not known; expected >=, >, <= or <"
        )
    limit = _number(node.comparators[0])
    value = _reader(ast.unparse(node.left), columns)
    return lambda history: compare(value(history), limit)


def _reader(name: str, columns: Columns) -> Callable[[History], float]:
    """A function that reads the value of a name from a history. NaN, without a measurement, makes every comparison false."""
    if name in TOTALS:
        return lambda history: TOTALS[name](history.rows)
    column = column_for(name, columns)
    if column is not None:
        return _newest_score(column, columns)
    over_clients = re.match(f"({'|'.join(OVER_CLIENTS)})_(.+)", name)
    if over_clients is not None:
        of_client = column_for(over_clients[2], columns)
        if of_client is not None:
            return _score_over_clients(of_client, columns, OVER_CLIENTS[over_clients[1]])
    metrics = [metric.name for metric in columns.metrics]
    personal = [f"personal_{metric}" for metric in metrics]
    worst = [f"min_{metric}" for metric in metrics]
    names = ", ".join([*metrics, *personal, *worst, *TOTALS])
    raise UnalikeError(f"stop: {name!r} is unknown; expected one of {names}")


def _newest_score(column: Column, columns: Columns) -> Callable[[History], float]:
    """A function that reads the score in the newest row."""

    def score(history: History) -> float:
        row = history.last
        return _in_use(row, column, columns).value(row)

    return score


def _score_over_clients(
    column: Column, columns: Columns, summarize: Callable[[np.ndarray], float]
) -> Callable[[History], float]:
    """A function that summarizes the newest scores of all clients that have one."""

    def score(history: History) -> float:
        rows = history.last_clients
        scores = np.array([_in_use(row, column, columns).value(row) for row in rows], float)
        scores = scores[~np.isnan(scores)]
        return float(summarize(scores)) if len(scores) else math.nan

    return score


def _in_use(row: Row, column: Column, columns: Columns) -> Column:
    """The column; that of the personal models where it is empty, as of methods that have no shared model."""
    if not column.unprefixed or not math.isnan(column.value(row)):
        return column
    personal = columns.get("personal", column.metric.name, column.split)
    if personal is None or math.isnan(personal.value(row)):
        return column
    return personal


def _patience(node: ast.Call, columns: Columns) -> Rule:
    """The rule that a score has not improved for some rounds of a stage."""
    arguments = _arguments(node)
    rounds = arguments.get("rounds")
    metric = arguments.get("metric", columns.metric.name)
    delta = arguments.get("delta", 0.0)
    less = arguments.get("less")
    is_valid = (
        not set(arguments) - {"rounds", "metric", "delta", "less"}
        and isinstance(rounds, int)
        and rounds > 0
        and isinstance(metric, str)
        and isinstance(delta, int | float)
        and isinstance(less, bool | None)
    )
    if not is_valid:
        raise UnalikeError(
            f"stop: {ast.unparse(node)!r} is no rule; expected patience(rounds=10) or "
            'patience(rounds=10, metric="loss", delta=0.001)'
        )
    column = column_for(metric, columns)
    if column is None:
        raise UnalikeError(
            f"stop: patience has no metric {metric!r}; expected one of "
            + ", ".join(one.name for one in columns.metrics)
        )
    if not columns.validated:
        raise UnalikeError(
            "stop: patience chooses when to stop by a score, which must not be that of the test samples, and the clients have no "
            "validation samples; give ua.partition(..., val=0.1), --val 0.1 or ClientData(val=...)"
        )
    # A known metric has a direction, and one of the user's own needs one.
    if (less is None) != bool(column.metric.sign):
        raise UnalikeError(
            f"stop: found {ast.unparse(node)!r}; expected less=True or less=False for a metric of one's own, as its better "
            "direction is not known, and neither for the others"
        )
    sign = 0
    if less is not None:
        sign = -1 if less else 1

    def is_stale(history: History) -> bool:
        # a new stage may start with lower scores than the one before
        first = last_stage(history.rows)
        rows = [row for row in history.rows if row["round"] >= first]
        best = best_row(rows, _in_use(history.last, column, columns), delta, sign)
        return best is not None and history.last["round"] - best["round"] >= rounds

    return is_stale


def _arguments(node: ast.Call) -> dict[str, Any]:
    """The arguments of `patience` by name; none where one of them is no plain value."""
    arguments = {}
    try:
        for name, value in zip(("rounds", "metric", "delta"), node.args):
            arguments[name] = ast.literal_eval(value)
        for keyword in node.keywords:
            arguments[str(keyword.arg)] = ast.literal_eval(keyword.value)
    except ValueError:
        return {}
    return arguments


def _number(node: ast.expr) -> float:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnalikeError(f"stop: found {ast.unparse(node)!r}, expected a number")
    return float(value)


ALL_DONE = "all rounds done"


def ended_early(why: str) -> str:
    """A sentence with the reason why a run ended before its last round; empty where it did not."""
    return "" if why == ALL_DONE else f"ended by: {why}"


_UNITS = {
    "rounds": ("round", 1), "round": ("round", 1), "epsilon": ("epsilon", 1),
    "s": ("seconds", 1), "min": ("seconds", 60), "h": ("seconds", 3600),
    "s simulated": (SIMULATED_SECONDS, 1), "min simulated": (SIMULATED_SECONDS, 60),
    "h simulated": (SIMULATED_SECONDS, 3600),
    "kb": ("bytes", 1e3), "mb": ("bytes", 1e6), "gb": ("bytes", 1e9),
}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """An upper limit on the rounds of a run, its seconds of training or of simulated time, its bytes to and from all clients, or
    its epsilon."""

    text: str

    def __post_init__(self) -> None:
        _ = self.limit

    @property
    def limit(self) -> tuple[str, float]:
        """(name in `TOTALS`, upper limit)"""
        match = re.fullmatch(
            r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]+(?: simulated)?)\s*", self.text.lower()
        )
        if match is None or match[2] not in _UNITS or not float(match[1]):
            raise UnalikeError(
                f"budget={self.text!r}; expected rounds, time, bytes or epsilon such as '30 rounds', '10 min', "
                "'2 h simulated', '500 MB', '3 epsilon'"
            )
        total, factor = _UNITS[match[2]]
        return total, float(match[1]) * factor

    def spent(self, history: History) -> bool:
        """Whether another round at the cost of the last one would exceed the limit. The first round is always run.

        A stage keeps a budget of epsilon: its accountant knows what the next round costs.
        """
        total, limit = self.limit
        rows = history.rows
        if len(rows) < 2 or total == "epsilon":
            return False
        used = TOTALS[total](rows)
        return used + (used - TOTALS[total](rows[:-1])) > limit


@dataclass(frozen=True)
class StopRules:
    """The stop rule and the budget that may end a run early. `columns` are those that rules may name."""

    stop: str | None
    budget: str | None
    columns: Columns

    def __post_init__(self) -> None:
        _ = self._reasons

    @cached_property
    def _reasons(self) -> list[tuple[str, Rule]]:
        reasons: list[tuple[str, Rule]] = []
        if self.stop is not None:
            reasons.append((f"stop rule: {self.stop}", stop_rule(self.stop, self.columns)))
        if self.budget is not None:
            reasons.append((f"budget of {self.budget} spent", Budget(self.budget).spent))
        return reasons

    def why(self, history: History) -> str | None:
        """The reason why the run ends here; None where it does not."""
        return next((text for text, over in self._reasons if over(history)), None)

    @property
    def warning(self) -> str | None:
        """A warning that the stop rule reads test samples, which biases the final score; None if it does not."""
        if self.columns.validated or names_in(self.stop) <= TOTALS.keys():
            return None
        return (
            f"the stop rule {self.stop!r} reads test samples, for want of validation samples: what the run costs until then is "
            "correct, its final score is flattered. Give val= to avoid it"
        )
