"""Signs that training failed: scores of a constant prediction, and losses that exploded."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from unalike.metrics.columns import SIMULATED_SECONDS, TEST, Column, Columns
from unalike.metrics.named_metrics import KNOWN, Metric

EXPLOSION_FACTOR = 20
"""A loss that is so many times that of the untrained model has exploded: of two classes above 14, where a constant has 0.7."""

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
        if metric.name in ("roc_auc", "label_roc_auc", "c_index"):
            return cls("the same risk", metric.name, 0.5)
        if classes is None:
            return cls("the mean of the test samples", "r2", 0.0)
        shows = classes > 1 and metric.name in ("accuracy", "macro_f1", "balanced_accuracy")
        return cls("the most frequent class", "balanced_accuracy" if shows else "", 1 / classes)

    def is_as_good(self, score: float) -> bool:
        """Whether a score is no better, but for chance; a score that is missing is not."""
        by_chance = min(0.01, abs(self.score) / 10 or 0.01)
        return score <= self.score + by_chance

    @property
    def advice(self) -> str:
        """Advice on a model that is no better: another metric where a rare class hides what it learned, or more training."""
        if self.measure != "balanced_accuracy":
            return LONGER
        metric = "roc_auc" if self.score == 0.5 else self.measure
        return f"if a class is rare, decide by --metric {metric}, in Python metric={metric!r}; else {LONGER}"

    def beside(self, score: float) -> str:
        """A score beside its own, in words."""
        known = KNOWN[self.measure]
        return f"{known.word} is {known.text(score)}, that of a constant prediction {known.text(self.score)}"


def why_unscored(protocol: str) -> str:
    """The reason why a run, or a method, has no score at all under a protocol."""
    if protocol == "clients":
        return "no client has test samples"
    return f"protocol {protocol} scores none of its models, or has no test samples; protocol clients scores those of groups, too"


NO_ARRIVALS = (
    "no update has arrived in any round: status in the table of clients says why; check devices="
)
"""The sentence on a run whose simulated devices were all late, lost or away."""


def has_exploded(first: float, last: float) -> bool:
    """Whether a loss has exploded, `first` before training and `last` after it."""
    return not last <= EXPLOSION_FACTOR * first


def trend(rounds: Sequence[float], values: Sequence[float]) -> float:
    """The change of values along their regression line over these rounds; NaN for less than three, or one that is not finite."""
    if len(values) < 3 or not np.isfinite(values).all():
        return math.nan
    return float(np.polyfit(rounds, values, 1)[0] * (max(rounds) - min(rounds)))


def of_run(rows: Sequence[Mapping[str, Any]], columns: Columns, classes: int | None) -> list[str]:
    """Sentences about the failed training of a run, from the rows of its history; none before a trained round was evaluated."""
    scored = [row for row in rows if columns.shown(row) is not None]
    if len(scored) < 2:
        has_trained = bool(rows) and bool(rows[-1]["round"])
        if has_trained and not scored:
            return [f"no score: {why_unscored(columns.unprefixed_protocol)}"]
        return []
    if SIMULATED_SECONDS in scored[-1] and not any(row["participants"] for row in rows):
        return [NO_ARRIVALS]
    is_private = "epsilon" in scored[-1]
    sentences = [
        _nothing_learned(scored[-1], columns, classes, is_private),
        _still_rising(scored, columns, is_private),
    ]
    for column in columns.all:
        if column.split == TEST and column.metric.name == "loss":
            sentences.append(_explosion(scored, column, is_private))
    return [sentence for sentence in sentences if sentence]


def _nothing_learned(
    last: Mapping[str, Any], columns: Columns, classes: int | None, is_private: bool
) -> str:
    """A sentence if no model that is scored in the last row is better than a constant prediction; else empty."""
    constant = ConstantPrediction.of(columns.metric, classes)
    shows_it = [c for c in columns.all if c.split == TEST and c.metric.name == constant.measure]
    scores = [column.value(last) for column in shows_it]
    best = max((score for score in scores if not math.isnan(score)), default=math.nan)
    if not constant.is_as_good(best):
        return ""
    advice = LESS_NOISE if is_private else constant.advice
    return (
        f"nothing was learned: the model is no better than always predicting {constant.prediction} (its "
        f"{constant.beside(best)}); {advice}"
    )


def _still_rising(scored: Sequence[Mapping[str, Any]], columns: Columns, is_private: bool) -> str:
    """A sentence if the score still got better over the last third of the rounds; empty otherwise, or if a round was selected."""
    column = columns.shown(scored[-1])
    if column is None or column.selected in scored[-1]:
        return ""
    # earlier stages train other models
    last_stage = scored[-1].get("stage", 0)
    trained = [row for row in scored if row["round"] and row.get("stage", 0) == last_stage]
    last_third = trained[-max(3, len(trained) // 3 + 1) :]
    rounds = [row["round"] for row in last_third]
    rise = column.metric.sign * trend(rounds, [column.value(row) for row in last_third])
    if not rise > max(0.01, 0.01 * abs(column.value(last_third[-1]))):
        return ""
    amount = f"{column.metric.amount(rise)}{column.metric.unit}"
    noise = ", which takes more noise or more epsilon" if is_private else ""
    return (
        f"the {column.label} still got better by {amount} in the last {rounds[-1] - rounds[0]} rounds; "
        f"train longer{noise}"
    )


def _explosion(scored: Sequence[Mapping[str, Any]], column: Column, is_private: bool) -> str:
    """A sentence if the loss in this column exploded; else empty."""
    before = column.value(scored[0])
    after = column.value(scored[-1])
    if math.isnan(before) or not has_exploded(before, after):
        return ""
    advice = LESS_NOISE if is_private else "lower the learning rate"
    return f"training exploded: the {column.label} is {after:.3g}, {before:.3g} before training; {advice}"
