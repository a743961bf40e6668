"""Sums and counts from which metrics are computed; those of several clients add up to those of all their samples."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.core.tasks import Task
from unalike.metrics.metrics import Metrics, balanced_accuracy, macro_f1, measure, metric_names
from unalike.metrics.scoring import Scores

AREAS = ("auroc", "auprc")
"""Metrics that are areas under curves."""
MOST = sys.float_info.max
"""The largest sum of losses that is accepted."""


@dataclass(frozen=True)
class MetricSums:
    """Sums over `n` test samples.

    `loss` is the sum of the losses (None: not finite). For each class, `true` counts its samples, `guessed` its predictions and
    `right` its correct predictions. For binary tasks, `auroc` and `auprc` are those of these samples (None: not defined). They
    cannot be computed from sums, so the sum of two `MetricSums` has none.
    """

    n: int = 0
    loss: float | None = 0.0
    true: tuple[int, ...] = ()
    guessed: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    auroc: float | None = None
    auprc: float | None = None

    @classmethod
    def of(cls, task: Task, scores: Scores) -> MetricSums:
        """The sums of scored samples."""
        n, total = len(scores.loss), float(scores.loss.sum(dtype=np.float64))
        loss = total if np.isfinite(total) else None
        if task.name == "regression" or not n:
            return cls(n, loss)
        y, guess = scores.y.astype(np.int64), scores.predicted.astype(np.int64)
        width = int(max(y.max(), guess.max())) + 1
        true, guessed, right = (tuple(np.bincount(v, minlength=width).tolist()) for v in (y, guess, y[y == guess]))
        measured = measure(task, scores)
        auroc, auprc = (_defined(measured.get(name, np.nan)) for name in AREAS)
        return cls(n, loss, true, guessed, right, auroc, auprc)

    def __add__(self, other: MetricSums) -> MetricSums:
        loss = None if self.loss is None or other.loss is None else self.loss + other.loss
        pairs = ((getattr(self, f), getattr(other, f)) for f in ("true", "guessed", "right"))
        true, guessed, right = (_add_counts(a, b) for a, b in pairs)
        return MetricSums(self.n + other.n, loss, true, guessed, right)

    def metrics(self, task: Task) -> Metrics:
        """The metrics as `measure` computes them from the samples."""
        found = dict.fromkeys(metric_names(task), float("nan"))
        if not self.n:
            return found
        loss = float("nan") if self.loss is None else self.loss / self.n
        if task.name == "regression":
            return {"loss": loss, "rmse": loss**0.5}
        counts = np.array(self.true), np.array(self.guessed), np.array(self.right)
        with np.errstate(invalid="ignore"):
            by_class = {"macro_f1": float(macro_f1(*counts)), "balanced_accuracy": float(balanced_accuracy(*counts))}
        areas = {name: v for name in found if name in AREAS and (v := getattr(self, name)) is not None}
        return found | {"loss": loss, "accuracy": sum(self.right) / self.n} | by_class | areas

    def plain(self) -> dict[str, Any]:
        """The fields as plain values for a message."""
        return {f: list(v) if isinstance(v, tuple) else v for f, v in vars(self).items()}

    @classmethod
    def restored(cls, found: dict[str, Any]) -> MetricSums:
        """The inverse of `plain`, without checks."""
        true, guessed, right = (tuple(found[f]) for f in ("true", "guessed", "right"))
        return cls(found["n"], found["loss"], true, guessed, right, found["auroc"], found["auprc"])

    @classmethod
    def read(cls, found: Any, task: Task, samples: int, classes: int) -> MetricSums:
        """Read the fields of a message from a client with `samples` test samples. Raises `UnalikeError` for impossible values."""
        if not isinstance(found, dict) or set(found) != set(cls.__dataclass_fields__):
            raise UnalikeError(f"metric sums have other fields than {', '.join(cls.__dataclass_fields__)}")
        n, loss, counts = found["n"], found["loss"], [found[f] for f in ("true", "guessed", "right")]
        if type(n) is not int or n != samples:
            raise UnalikeError(f"metric sums of {str(n)[:40]} test samples; expected {samples}")
        if loss is not None and (type(loss) not in (int, float) or not 0 <= loss <= MOST):
            raise UnalikeError("the loss of metric sums is not a number of 0 or more")
        width = 0 if task.name == "regression" or not samples else classes
        for row in counts:
            if not isinstance(row, list) or len(row) > width or not all(type(c) is int and 0 <= c <= n for c in row):
                raise UnalikeError(f"counts of metric sums are not a list of at most {width} numbers from 0 to {n}")
        true, guessed, _ = counts
        sums_wrong = bool(width) and (sum(true) != n or sum(guessed) != n)
        if len({*map(len, counts)}) > 1 or sums_wrong or any(r > min(t, g) for t, g, r in zip(*counts, strict=True)):
            raise UnalikeError("the counts of metric sums contradict each other")
        areas = [found[name] for name in AREAS if found[name] is not None]
        if (areas and task.name != "binary") or not all(type(a) in (int, float) and 0 <= a <= 1 for a in areas):
            raise UnalikeError(f"{' or '.join(AREAS)} of metric sums is not a number from 0 to 1, or the task has none")
        return cls.restored(found | {"loss": None if loss is None else float(loss)})


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else min(value, 1.0)


def _add_counts(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    return tuple(x + y for x, y in zip(a + (0,) * (width - len(a)), b + (0,) * (width - len(b)), strict=True))
