"""Signs that training failed: scores of a constant prediction, and losses that exploded."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from unalike.metrics.columns import TEST, Columns
from unalike.metrics.named_metrics import KNOWN, Metric

EXPLODED = 100
"""A loss that is so many times that of the untrained model has exploded."""
UNSCORED = "protocol {} scores none of its models, or has no test samples; protocol clients scores those of groups, too"
"""The reason why a run, or a method, has no score at all."""

LONGER = "train longer, or change the learning rate"
LESS_NOISE = "its noise may be the cause: give it a larger epsilon, a smaller clip, or more clients or samples"
"""The advice to a private method that failed."""


class ConstantPrediction(NamedTuple):
    """The `prediction` in words, and its `score` by the metric `measure`, which shows it whatever the labels ("" for none).

    A constant prediction has a balanced accuracy of 1 / classes, an area under the ROC curve of one half, and an R2 of 0 at best.
    """

    prediction: str
    measure: str
    score: float

    @classmethod
    def of(cls, metric: Metric, classes: int | None) -> Self:
        """The constant prediction for a task with so many classes (None: regression) that is decided by `metric`."""
        if classes is None:
            return cls("the mean", "r2", 0.0)
        if metric.name == "roc_auc":
            return cls("the same risk", metric.name, 0.5)
        shows = classes > 1 and metric.name in ("accuracy", "macro_f1", "balanced_accuracy")
        return cls("the most frequent class", "balanced_accuracy" if shows else "", 1 / classes)

    def is_as_good(self, score: float) -> bool:
        """Whether a score is no better, but for chance; a score that is missing is not."""
        return score <= self.score + min(0.01, abs(self.score) / 10 or 0.01)

    def beside(self, score: float) -> str:
        """A score beside its own, in words."""
        known = KNOWN[self.measure]
        return f"{known.word} is {known.text(score)}, that of a constant prediction {known.text(self.score)}"


def has_exploded(first: float, last: float) -> bool:
    """Whether a loss has exploded, `first` before training and `last` after it."""
    return not last <= EXPLODED * first


def trend(rounds: Sequence[float], values: Sequence[float]) -> float:
    """The change of values along their regression line over these rounds; NaN for less than three, or one that is not finite."""
    if len(values) < 3 or not np.isfinite(values).all():
        return math.nan
    return float(np.polyfit(rounds, values, 1)[0] * (max(rounds) - min(rounds)))


def of_run(rows: Sequence[Mapping[str, Any]], columns: Columns, classes: int | None) -> list[str]:
    """Sentences about the failed training of a run, from the rows of its history; none before a trained round was evaluated."""
    scored = [row for row in rows if columns.shown(row) is not None]
    if len(scored) < 2:
        return (
            [f"no score: {UNSCORED.format(columns.plain)}"]
            if rows and rows[-1]["round"] and not scored
            else []
        )
    constant, tested = (
        ConstantPrediction.of(columns.metric, classes),
        [c for c in columns.all if c.split == TEST],
    )
    own = [c.value(scored[-1]) for c in tested if c.metric.name == constant.measure]
    best, found = max((score for score in own if not math.isnan(score)), default=math.nan), []
    private = "epsilon" in scored[-1]
    if constant.is_as_good(best):
        found.append(
            f"nothing was learned: the model is no better than always predicting {constant.prediction} (its "
            f"{constant.beside(best)}); {LESS_NOISE if private else LONGER}"
        )
    column = columns.shown(scored[-1])
    if column is not None and column.selected not in scored[-1]:
        trained = [row for row in scored if row["round"]]
        last = [row for row in trained if row.get("stage", 0) == scored[-1].get("stage", 0)]
        last = last[-max(3, len(last) // 3 + 1) :]
        rise = column.metric.sign * trend(
            [row["round"] for row in last], [column.value(row) for row in last]
        )
        if rise > max(0.01, 0.01 * abs(column.value(last[-1]))):
            amount = f"{column.metric.amount(rise)}{column.metric.unit}"
            span = last[-1]["round"] - last[0]["round"]
            found.append(
                f"the {column.label} still got better by {amount} in the last {span} rounds; train longer"
                + ", which takes more noise or more epsilon" * private
            )
    for column in (
        c for c in tested if c.metric.name == "loss" and not math.isnan(c.value(scored[0]))
    ):
        before, after = column.value(scored[0]), column.value(scored[-1])
        if has_exploded(before, after):
            found.append(
                f"training exploded: the {column.label} is {after:.3g}, {before:.3g} before training; "
                + (LESS_NOISE if private else "lower the learning rate")
            )
    return found
