"""Sums and counts from which metrics are computed; those of several clients add up to those of all their samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.core.tasks.task import CLASSES, SQUARED_ERROR, FormulaOfLoss, Task
from unalike.metrics.metrics import (
    Metrics,
    RunMetrics,
    balanced_accuracy,
    determination,
    macro_f1,
    measure,
    metric_names,
)
from unalike.metrics.named_metrics import Metric, metric_named
from unalike.metrics.scoring import Scores

LARGEST_LOSS_SUM = sys.float_info.max
"""The largest sum of losses that a checkpoint can hold."""
LARGEST_LABEL = float(np.finfo(np.float32).max)
"""The largest size of a label or prediction: both are float32."""
LARGEST_SCORE = (2 * LARGEST_LABEL) ** 2
"""The largest squared error of a sample; no loss or metric of a sample is larger. Sums over 2^31 samples stay finite."""
COUNTS = ("true", "guessed", "right")
"""The fields that hold one count for each class."""


@dataclass(frozen=True)
class MetricSums:
    """Sums over `n` test samples.

    `loss` is the sum of the losses (None: not finite). For a task of classes, for each class `true` counts its samples, `guessed`
    its predictions and `right` its correct predictions. For one whose loss is the squared error, `moments` are the sums of the
    absolute errors, of the labels and of their squares. `computed_by_client` holds the metrics of these samples that cannot be
    computed from the other fields (None: not defined). In the sum of two `MetricSums` only those are left that are means over
    samples.
    """

    n: int = 0
    loss: float | None = 0.0
    true: tuple[int, ...] = ()
    guessed: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    moments: tuple[float, ...] = ()
    computed_by_client: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, task: Task, scores: Scores, chosen: RunMetrics = MappingProxyType({})
    ) -> MetricSums:
        """The sums of scored samples; `chosen` holds the metrics besides those of the task."""
        n = len(scores.loss)
        total = float(scores.loss.sum(dtype=np.float64))
        loss = total if np.isfinite(total) else None
        if not n:
            return cls(n, loss)

        # what sums do not give is computed here, where the samples are
        measured = measure(task, scores, chosen)
        names = names_computed_by_client(task, chosen)
        computed = {name: _defined(measured[name]) for name in names}
        sums = cls(n, loss, computed_by_client=computed)

        # the sums that the metrics of the task follow from
        if has_moments(task):
            sums = replace(sums, moments=_moments(scores))
        if has_counts(task):
            labels = scores.y.astype(np.int64)
            guesses = scores.predicted.astype(np.int64)
            width = int(max(labels.max(), guesses.max())) + 1
            sums = replace(
                sums,
                true=_class_counts(labels, width),
                guessed=_class_counts(guesses, width),
                right=_class_counts(labels[labels == guesses], width),
            )
        return sums

    def added(self, other: MetricSums, chosen: RunMetrics = MappingProxyType({})) -> MetricSums:
        """The sums of the samples of both."""
        loss = None if self.loss is None or other.loss is None else self.loss + other.loss
        # sums without moments of samples that have some are not known
        unknown = (self.n and not self.moments) or (other.n and not other.moments)
        return MetricSums(
            n=self.n + other.n,
            loss=loss,
            true=_added(self.true, other.true),
            guessed=_added(self.guessed, other.guessed),
            right=_added(self.right, other.right),
            moments=() if unknown else _added(self.moments, other.moments),
            computed_by_client=_pooled(self, other, chosen),
        )

    def metrics(self, task: Task, chosen: RunMetrics = MappingProxyType({})) -> Metrics:
        """The metrics as `measure` computes them from the samples."""
        metrics = dict.fromkeys(metric_names(task, chosen), float("nan"))
        if not self.n:
            return metrics
        # a class without samples divides by zero
        with np.errstate(invalid="ignore"):
            for name, formula in formulas_of_sums(task).items():
                metrics[name] = formula(self)
        known = {
            name: value for name, value in self.computed_by_client.items() if value is not None
        }
        return metrics | known

    @property
    def mean_loss(self) -> float:
        """The mean loss; NaN if the sum is not finite."""
        return float("nan") if self.loss is None else self.loss / self.n

    @property
    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The samples, the predictions and the correct predictions of each class, [C] each."""
        return np.array(self.true), np.array(self.guessed), np.array(self.right)

    def rounded(self, digits: int) -> MetricSums:
        """The same with so many significant digits of what depends on the model and is no count; 0 for all digits."""
        if not digits:
            return self

        def rounded(value: float | None) -> float | None:
            return None if value is None else float(f"{value:.{digits}g}")

        # the first moment is the error of the model, the others are of the labels alone
        errors = tuple(float(f"{error:.{digits}g}") for error in self.moments[:1])
        computed = {name: rounded(value) for name, value in self.computed_by_client.items()}
        return replace(
            self,
            loss=rounded(self.loss),
            moments=errors + self.moments[1:],
            computed_by_client=computed,
        )

    def as_fields(self) -> dict[str, Any]:
        """The fields for a message, lists in place of tuples."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> MetricSums:
        """The inverse of `as_fields`, without checks."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        return cls(**values)

    @classmethod
    def read(
        cls,
        fields: Any,
        task: Task,
        samples: int,
        classes: int,
        chosen: RunMetrics = MappingProxyType({}),
    ) -> MetricSums:
        """Read the fields of a message from a client with `samples` test samples.

        Raises `UnalikeError` for impossible values, and for values from which the metrics of the client alone cannot be computed.
        """
        if not isinstance(fields, dict) or set(fields) != set(cls.__dataclass_fields__):
            raise UnalikeError(
                f"metric sums have other fields than {', '.join(cls.__dataclass_fields__)}"
            )
        n = fields["n"]
        if type(n) is not int or n != samples:
            raise UnalikeError(f"metric sums of {str(n)[:40]} test samples; expected {samples}")
        loss = fields["loss"]
        if loss is not None and not _is_number(loss, 0, samples * LARGEST_SCORE):
            raise UnalikeError(
                "the loss of metric sums is not a number of 0 or more that samples of float32 can have"
            )
        width = classes if samples > 0 and has_counts(task) else 0
        _check_counts([fields[name] for name in COUNTS], n, width)
        _check_moments(fields["moments"], expected=3 if has_moments(task) else 0, n=samples)
        names = names_computed_by_client(task, chosen)
        expected = {name: _metric(name, chosen) for name in names}
        _check_computed(fields["computed_by_client"], expected)
        # whole numbers of any size are JSON; as floats they can be stored in tables
        computed = {name: _as_float(value) for name, value in fields["computed_by_client"].items()}
        moments = [float(moment) for moment in fields["moments"]]
        as_floats = {"loss": _as_float(loss), "moments": moments, "computed_by_client": computed}
        sums = cls.from_fields(fields | as_floats)
        # What one client's numbers break is found here, where it is this client's fault, and not in the sums of all.
        try:
            sums.metrics(task, chosen)
        except (ArithmeticError, ValueError) as error:
            raise UnalikeError(f"its metric sums give no metrics: {error}") from None
        return sums


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _accuracy(sums: MetricSums) -> float:
    return sum(sums.right) / sums.n


def _macro_f1(sums: MetricSums) -> float:
    return float(macro_f1(*sums.counts))


def _balanced_accuracy(sums: MetricSums) -> float:
    return float(balanced_accuracy(*sums.counts))


def _mae(sums: MetricSums) -> float:
    if not sums.moments:
        return float("nan")
    return sums.moments[0] / sums.n


def _r2(sums: MetricSums) -> float:
    if not sums.moments:
        return float("nan")
    _, labels, squares = sums.moments
    # a Python number would raise an error where these overflow
    with np.errstate(over="ignore", invalid="ignore"):
        variation = squares - np.float64(labels) ** 2 / sums.n
        r2 = determination(
            errors=np.asarray(sums.mean_loss * sums.n),
            variation=np.asarray(variation),
            squares=np.asarray(squares),
        )
    return float(r2)


def _of_mean_loss(formula: FormulaOfLoss, sums: MetricSums) -> float:
    with np.errstate(over="ignore"):
        return float(formula(np.asarray(sums.mean_loss)))


FormulaOfSums = Callable[[MetricSums], float]

METRICS_OF_LOSSES: dict[str, FormulaOfSums] = {"loss": lambda sums: sums.mean_loss}
METRICS_OF_COUNTS: dict[str, FormulaOfSums] = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "balanced_accuracy": _balanced_accuracy,
}
METRICS_OF_MOMENTS: dict[str, FormulaOfSums] = {"mae": _mae, "r2": _r2}
METRICS_OF_SQUARED_ERRORS: dict[str, FormulaOfSums] = {
    "rmse": lambda sums: sums.mean_loss**0.5,
    **METRICS_OF_MOMENTS,
}


def formulas_of_sums(task: Task) -> dict[str, FormulaOfSums]:
    """Metric of a task -> its formula, for those that follow from sums over samples. Clients compute the others themselves."""
    formulas = dict(METRICS_OF_LOSSES)
    if task.offers(CLASSES):
        formulas |= METRICS_OF_COUNTS
    if task.offers(SQUARED_ERROR):
        formulas |= METRICS_OF_SQUARED_ERRORS
    for name in task.metrics:
        of_loss = task.formula_of_loss(name)
        if of_loss is not None:
            formulas[name] = partial(_of_mean_loss, of_loss)
    return {name: formulas[name] for name in task.metrics if name in formulas}


def has_counts(task: Task) -> bool:
    """Whether a task has a metric that follows from counts of its classes, so that they are taken."""
    return not METRICS_OF_COUNTS.keys().isdisjoint(formulas_of_sums(task))


def has_moments(task: Task) -> bool:
    """Whether a task has a metric that follows from moments of its labels, so that they are taken."""
    return not METRICS_OF_MOMENTS.keys().isdisjoint(formulas_of_sums(task))


def names_computed_by_client(
    task: Task, chosen: RunMetrics = MappingProxyType({})
) -> tuple[str, ...]:
    """The metrics that each client computes from its own samples, because sums and counts do not give them."""
    from_sums = formulas_of_sums(task)
    names = [name for name in (*chosen, *task.metrics) if name not in from_sums]
    return tuple(dict.fromkeys(names))


def unpooled(task: Task, chosen: RunMetrics = MappingProxyType({})) -> tuple[str, ...]:
    """The metrics of all clients' samples together that cannot be computed from what each of them sends."""
    names = names_computed_by_client(task, chosen)
    return tuple(name for name in names if not _metric(name, chosen).is_mean)


def _metric(name: str, chosen: RunMetrics) -> Metric:
    return chosen[name] if name in chosen else metric_named(name)


def _moments(scores: Scores) -> tuple[float, ...]:
    """The sums of the absolute errors, of the labels and of their squares; empty if one is not finite."""
    y = scores.y.astype(np.float64)
    moments = (np.abs(scores.predicted - y).sum(), y.sum(), (y**2).sum())
    return tuple(map(float, moments)) if np.isfinite(moments).all() else ()


def _class_counts(classes: np.ndarray, width: int) -> tuple[int, ...]:
    return tuple(np.bincount(classes, minlength=width).tolist())


def _pooled(a: MetricSums, b: MetricSums, chosen: RunMetrics) -> dict[str, float | None]:
    """The metrics of both that are means over samples, as means over the samples of both."""
    parts = [sums for sums in (a, b) if sums.n]
    if not parts:
        return {}
    means: dict[str, float | None] = {}
    for name in parts[0].computed_by_client:
        if not _metric(name, chosen).is_mean:
            continue
        total = sum(part.n for part in parts)
        weighted = 0.0
        for part in parts:
            value = part.computed_by_client.get(name)
            # what one client cannot say is not known of all
            if value is None:
                means[name] = None
                break
            weighted += part.n * value
        else:
            means[name] = weighted / total
    return means


def _is_number(value: object, low: float, high: float) -> bool:
    """Whether a value of a message is a number in these bounds; true and false are none."""
    return type(value) in (int, float) and low <= value <= high  # type: ignore[operator]


def _check_counts(counts: Sequence[Any], n: int, width: int) -> None:
    """Refuse counts of samples, predictions and correct predictions by class that no `n` samples of `width` classes have."""
    for row in counts:
        if (
            not isinstance(row, list)
            or len(row) > width
            or not all(type(count) is int and 0 <= count <= n for count in row)
        ):
            raise UnalikeError(
                f"counts of metric sums are not a list of at most {width} numbers from 0 to {n}"
            )
    true, guessed, right = counts
    have_other_lengths = not len(true) == len(guessed) == len(right)
    have_other_sums = width > 0 and (sum(true) != n or sum(guessed) != n)
    if (
        have_other_lengths
        or have_other_sums
        or any(r > min(t, g) for t, g, r in zip(true, guessed, right, strict=True))
    ):
        raise UnalikeError("the counts of metric sums contradict each other")


def _check_moments(moments: Any, expected: int, n: int) -> None:
    """Refuse sums that no samples have; `expected` is their number, of which all or none may be there."""
    if moments and (not isinstance(moments, list) or len(moments) != expected):
        raise UnalikeError("the moments of metric sums are not three numbers, or the task has none")
    if not isinstance(moments, list) or not all(
        _is_number(value, -n * LARGEST_SCORE, n * LARGEST_SCORE) for value in moments
    ):
        raise UnalikeError("the moments of metric sums are not finite numbers")
    if not moments:
        return
    absolute_errors, labels, squares = moments
    if absolute_errors < 0 or squares < 0:
        raise UnalikeError("the moments of metric sums contradict each other")
    if absolute_errors > 2 * n * LARGEST_LABEL or abs(labels) > n * LARGEST_LABEL:
        raise UnalikeError(
            "the moments of metric sums are larger than those of labels that float32 can hold"
        )


def _check_computed(values: Any, metrics: RunMetrics) -> None:
    if not isinstance(values, dict) or not set(values) <= set(metrics):
        raise UnalikeError(
            f"metric sums hold metrics other than {', '.join(metrics) or 'none'}: the task has none of them"
        )
    for name, value in values.items():
        low = max(metrics[name].low, -LARGEST_SCORE)
        high = min(metrics[name].high, LARGEST_SCORE)
        if value is not None and not _is_number(value, low, high):
            raise UnalikeError(f"{name} of metric sums is not a number from {low:g} to {high:g}")


def _defined(value: float) -> float | None:
    """None for NaN and infinity; rounding does not take an area above 1."""
    if 1 < value < 1 + 1e-9:
        return 1.0
    return float(value) if np.isfinite(value) else None


def _added(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sums by place; the shorter one counts as 0 where it has ended."""
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))
