"""Sums and counts from which metrics are computed; those of several clients add up to those of all their samples."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.core.tasks import Task
from unalike.metrics.metrics import (
    AREAS,
    METRICS,
    Metrics,
    RunMetrics,
    balanced_accuracy,
    determination,
    macro_f1,
    measure,
    metric_names,
)
from unalike.metrics.named_metrics import KNOWN, Metric
from unalike.metrics.scoring import Scores

MOST = sys.float_info.max
"""The largest sum of losses that is accepted."""


@dataclass(frozen=True)
class MetricSums:
    """Sums over `n` test samples.

    `loss` is the sum of the losses (None: not finite). For each class, `true` counts its samples, `guessed` its predictions and
    `right` its correct predictions. For regression, `moments` are the sums of the absolute errors, of the labels and of their
    squares. `own` holds the metrics of these samples that cannot be computed from the other fields (None: not defined). In the sum
    of two `MetricSums` only those are left that are means over samples.
    """

    n: int = 0
    loss: float | None = 0.0
    true: tuple[int, ...] = ()
    guessed: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    moments: tuple[float, ...] = ()
    own: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, task: Task, scores: Scores, chosen: RunMetrics = MappingProxyType({})
    ) -> MetricSums:
        """The sums of scored samples; `chosen` holds the metrics besides those of the task."""
        n, total = len(scores.loss), float(scores.loss.sum(dtype=np.float64))
        loss = total if np.isfinite(total) else None
        if not n:
            return cls(n, loss)
        measured = measure(task, scores, chosen)
        own = {name: _defined(measured[name]) for name in own_names(task, chosen)}
        if task.name == "regression":
            y = scores.y.astype(np.float64)
            moments = (np.abs(scores.predicted - y).sum(), y.sum(), (y**2).sum())
            return cls(
                n,
                loss,
                moments=tuple(map(float, moments)) if np.isfinite(moments).all() else (),
                own=own,
            )
        y, guess = scores.y.astype(np.int64), scores.predicted.astype(np.int64)
        width = int(max(y.max(), guess.max())) + 1
        true, guessed, right = (
            tuple(np.bincount(v, minlength=width).tolist()) for v in (y, guess, y[y == guess])
        )
        return cls(n, loss, true, guessed, right, own=own)

    def added(self, other: MetricSums, chosen: RunMetrics = MappingProxyType({})) -> MetricSums:
        """The sums of the samples of both."""
        loss = None if self.loss is None or other.loss is None else self.loss + other.loss
        true, guessed, right = (
            _added(a, b)
            for a, b in (
                (getattr(self, f), getattr(other, f)) for f in ("true", "guessed", "right")
            )
        )
        unknown = (self.n and not self.moments) or (other.n and not other.moments)
        moments = () if unknown else _added(self.moments, other.moments)
        return MetricSums(
            self.n + other.n, loss, true, guessed, right, moments, _pooled(self, other, chosen)
        )

    def metrics(self, task: Task, chosen: RunMetrics = MappingProxyType({})) -> Metrics:
        """The metrics as `measure` computes them from the samples."""
        metrics = dict.fromkeys(metric_names(task, chosen), float("nan"))
        if not self.n:
            return metrics
        loss = float("nan") if self.loss is None else self.loss / self.n
        own = {name: value for name, value in self.own.items() if value is not None}
        if task.name == "regression":
            return metrics | {"loss": loss, "rmse": loss**0.5} | self._errors(loss) | own
        counts = np.array(self.true), np.array(self.guessed), np.array(self.right)
        with np.errstate(invalid="ignore"):
            by_class = {
                "macro_f1": float(macro_f1(*counts)),
                "balanced_accuracy": float(balanced_accuracy(*counts)),
            }
        return metrics | {"loss": loss, "accuracy": sum(self.right) / self.n} | by_class | own

    def _errors(self, loss: float) -> Metrics:
        if not self.moments:
            return {}
        absolute, labels, squares = self.moments
        variation = np.asarray(squares - labels**2 / self.n)
        return {
            "mae": absolute / self.n,
            "r2": float(determination(np.asarray(loss * self.n), variation, np.asarray(squares))),
        }

    def rounded(self, digits: int) -> MetricSums:
        """The same with so many significant digits of what depends on the model and is no count; 0 for all digits."""
        if not digits:
            return self

        def some(value: float | None) -> float | None:
            return None if value is None else float(f"{value:.{digits}g}")

        errors = tuple(float(f"{error:.{digits}g}") for error in self.moments[:1])
        own = {name: some(value) for name, value in self.own.items()}
        return replace(self, loss=some(self.loss), moments=errors + self.moments[1:], own=own)

    def plain(self) -> dict[str, Any]:
        """The fields as plain values for a message."""
        return {f: list(v) if isinstance(v, tuple) else v for f, v in vars(self).items()}

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> MetricSums:
        """The inverse of `plain`, without checks."""
        plain: dict[str, Any] = {
            f: tuple(v) if isinstance(v, list) else v for f, v in fields.items()
        }
        return cls(**plain)

    @classmethod
    def read(
        cls,
        fields: Any,
        task: Task,
        samples: int,
        classes: int,
        chosen: RunMetrics = MappingProxyType({}),
    ) -> MetricSums:
        """Read the fields of a message from a client with `samples` test samples. Raises `UnalikeError` for impossible values."""
        if not isinstance(fields, dict) or set(fields) != set(cls.__dataclass_fields__):
            raise UnalikeError(
                f"metric sums have other fields than {', '.join(cls.__dataclass_fields__)}"
            )
        n, loss, counts = (
            fields["n"],
            fields["loss"],
            [fields[f] for f in ("true", "guessed", "right")],
        )
        if type(n) is not int or n != samples:
            raise UnalikeError(f"metric sums of {str(n)[:40]} test samples; expected {samples}")
        if loss is not None and (type(loss) not in (int, float) or not 0 <= loss <= MOST):
            raise UnalikeError("the loss of metric sums is not a number of 0 or more")
        width = 0 if task.name == "regression" or not samples else classes
        for row in counts:
            if (
                not isinstance(row, list)
                or len(row) > width
                or not all(type(c) is int and 0 <= c <= n for c in row)
            ):
                raise UnalikeError(
                    f"counts of metric sums are not a list of at most {width} numbers from 0 to {n}"
                )
        true, guessed, _ = counts
        sums_wrong = bool(width) and (sum(true) != n or sum(guessed) != n)
        if (
            len({*map(len, counts)}) > 1
            or sums_wrong
            or any(r > min(t, g) for t, g, r in zip(*counts, strict=True))
        ):
            raise UnalikeError("the counts of metric sums contradict each other")
        _check_moments(fields["moments"], task)
        _check_own(fields["own"], {name: _metric(name, chosen) for name in own_names(task, chosen)})
        return cls.restored(fields | {"loss": None if loss is None else float(loss)})


def own_names(task: Task, chosen: RunMetrics = MappingProxyType({})) -> tuple[str, ...]:
    """The metrics that each client computes from its own samples, because sums and counts do not give them."""
    others = tuple(name for name in chosen if name not in METRICS[task.name])
    return tuple(dict.fromkeys((*others, *(AREAS if task.areas else ()))))


def unpooled(task: Task, chosen: RunMetrics = MappingProxyType({})) -> tuple[str, ...]:
    """The metrics of all clients' samples together that cannot be computed from what each of them sends."""
    return tuple(name for name in own_names(task, chosen) if not _metric(name, chosen).is_mean)


def _metric(name: str, chosen: RunMetrics) -> Metric:
    return chosen[name] if name in chosen else KNOWN[name]


def _pooled(a: MetricSums, b: MetricSums, chosen: RunMetrics) -> dict[str, float | None]:
    """The metrics of both that are means over samples, as means over the samples of both."""
    parts = [sums for sums in (a, b) if sums.n]
    names = [name for name in (parts[0].own if parts else ()) if _metric(name, chosen).is_mean]
    means: dict[str, float | None] = {}
    for name in names:
        values = [(part.n, part.own.get(name)) for part in parts]
        total = sum(n for n, _ in values)
        means[name] = (
            sum(n * v for n, v in values if v is not None) / total
            if all(v is not None for _, v in values)
            else None
        )
    return means


def _check_moments(moments: Any, task: Task) -> None:
    if moments and (
        task.name != "regression" or not isinstance(moments, list) or len(moments) != 3
    ):
        raise UnalikeError("the moments of metric sums are not three numbers, or the task has none")
    if not isinstance(moments, list) or not all(
        type(v) in (int, float) and abs(v) <= MOST for v in moments
    ):
        raise UnalikeError("the moments of metric sums are not finite numbers")
    if moments and (moments[0] < 0 or moments[2] < 0):
        raise UnalikeError("the moments of metric sums contradict each other")


def _check_own(values: Any, metrics: RunMetrics) -> None:
    if not isinstance(values, dict) or not set(values) <= set(metrics):
        raise UnalikeError(
            f"metric sums hold metrics other than {', '.join(metrics) or 'none'}: the task has none of them"
        )
    for name, value in values.items():
        low, high = max(metrics[name].low, -MOST), min(metrics[name].high, MOST)
        if value is not None and (type(value) not in (int, float) or not low <= value <= high):
            raise UnalikeError(f"{name} of metric sums is not a number from {low:g} to {high:g}")


def _defined(value: float) -> float | None:
    """None for NaN and infinity; rounding does not take an area above 1."""
    return (
        float(min(value, 1.0))
        if 1 < value < 1 + 1e-9
        else float(value)
        if np.isfinite(value)
        else None
    )


def _added(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    width = max(len(a), len(b))
    padded = ((*values, *[0] * (width - len(values))) for values in (a, b))
    return tuple(x + y for x, y in zip(*padded, strict=True))
