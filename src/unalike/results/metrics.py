"""The metrics of a task, over all test samples together or for each of many clients at once.

loss               mean loss
accuracy           correct / samples
macro_f1           mean of 2 TP / (2 TP + FP + FN) over the classes among labels or predictions
balanced_accuracy  mean recall over the classes among the labels
auroc, auprc       of binary labels: area under the ROC curve, average precision; NaN where there is one class only
rmse               of regression: root of the mean squared error
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from unalike.core.errors import UnalikeError
from unalike.core.task import Task
from unalike.results.evaluation import Scores

Metrics = dict[str, float]
Custom = Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], float]]
"""Name -> a person's own metric of labels [n], predictions [n] and logits ([n] for binary tasks and regression, else [n, C])."""

USUAL = ("loss", "accuracy", "macro_f1", "rmse")
"""Metrics whose columns come first."""
BLOCK = 2**22
"""Counts by client and class that are held at a time."""


@dataclass(frozen=True)
class Grouped:
    """Scores sorted by client, for `clients` of them: client k has the samples `starts[k] : starts[k + 1]`."""

    scores: Scores
    clients: int

    @cached_property
    def owner(self) -> np.ndarray:
        return self.scores.client.astype(np.int64)

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.bincount(self.owner, minlength=self.clients)

    @cached_property
    def starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Of one value per sample, by client; NaN for a client without samples."""
        with np.errstate(invalid="ignore"):
            return np.bincount(self.owner, values, self.clients) / self.sizes

    def by_class(self, formula: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """`formula` of how many samples of each class there are, were predicted and were both, each [K, C]; by client."""
        y, guess = self.scores.y.astype(np.int64), self.scores.predicted.astype(np.int64)
        classes = int(max(y.max(initial=0), guess.max(initial=0))) + 1
        step, found = max(1, BLOCK // classes), []
        for first in range(0, self.clients, step):
            last = min(first + step, self.clients)
            own = slice(self.starts[first], self.starts[last])
            cell, shape = (self.owner[own] - first) * classes, (last - first, classes)
            hit = y[own] == guess[own]
            keys = (cell + y[own], cell + guess[own], (cell + y[own])[hit])
            counts = (np.bincount(k, minlength=shape[0] * classes).reshape(shape) for k in keys)
            with np.errstate(invalid="ignore", divide="ignore"):
                found.append(formula(*counts))
        return np.concatenate([*found, np.zeros(0)])

    def one_by_one(self, metric: Callable[[np.ndarray, np.ndarray, np.ndarray], float]) -> np.ndarray:
        """A metric of labels, predictions and logits, client by client; NaN for a client without samples."""
        parts = [slice(a, b) for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]
        y, guess, logits = self.scores.y, self.scores.predicted, self.scores.logits
        return np.array([float(metric(y[p], guess[p], logits[p])) if p.start < p.stop else np.nan for p in parts])


def macro_f1(true: np.ndarray, guessed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of counts [..., C]: mean of 2 TP / (2 TP + FP + FN) over the classes that occur among labels or predictions."""
    seen = true + guessed
    return np.nan_to_num(2 * right / seen).sum(-1) / (seen > 0).sum(-1)


def balanced_accuracy(true: np.ndarray, guessed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of counts [..., C]: mean recall TP / (TP + FN) over the classes that occur among the labels."""
    return np.nan_to_num(right / true).sum(-1) / (true > 0).sum(-1)


def auroc(y: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """The share of pairs of a positive and a negative sample that the logits order right; a tie is half right."""
    from scipy.stats import rankdata

    positive = y.astype(bool)
    pairs = int(positive.sum()) * int((~positive).sum())
    ranks = rankdata(logits)[positive].sum()
    return float((ranks - positive.sum() * (positive.sum() + 1) / 2) / pairs) if pairs else float("nan")


def auprc(y: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """Average precision: sum over thresholds of (recall gained) x (precision there); equal logits are one threshold."""
    order = np.argsort(-logits, kind="stable")
    positive, cut = y.astype(bool)[order], np.append(np.diff(logits[order]) != 0, True)
    if positive.all() or not positive.any():
        return float("nan")
    right = np.cumsum(positive)[cut]
    precision = right / (np.flatnonzero(cut) + 1)
    return float((np.diff(right, prepend=0) * precision).sum() / positive.sum())


def _correct(own: Grouped) -> np.ndarray:
    return own.mean(own.scores.predicted == own.scores.y)


_ANY = {"loss": lambda own: own.mean(own.scores.loss)}
_CLASSES = _ANY | {
    "accuracy": _correct,
    "macro_f1": lambda own: own.by_class(macro_f1),
    "balanced_accuracy": lambda own: own.by_class(balanced_accuracy),
}
METRICS: dict[str, dict[str, Callable[[Grouped], np.ndarray]]] = {
    "classification": _CLASSES,
    "binary": _CLASSES | {"auroc": lambda own: own.one_by_one(auroc), "auprc": lambda own: own.one_by_one(auprc)},
    "regression": _ANY | {"rmse": lambda own: np.sqrt(own.mean(own.scores.loss))},
}
"""Task -> what is measured, in the order of the columns."""


def metric_names(task: Task, custom: Custom | None = None) -> tuple[str, ...]:
    """The columns that `measure` fills. Raises `UnalikeError` for a metric of one's own whose name is taken or no name."""
    known = METRICS[task.name]
    for name in custom or {}:
        if name in known or not name.isidentifier() or name.split("_")[0] in _RESERVED:
            raise UnalikeError(
                f"metrics: found the name {name!r}; expected a name of letters, digits and underscores that is none of "
                f"{', '.join(known)} and does not begin with {', '.join(_RESERVED)}"
            )
    return (*known, *(custom or {}))


_RESERVED = ("val", "server", "clients", "personal", "local", "min", "max", "mean", "std")


def measure(task: Task, scores: Scores, custom: Custom | None = None) -> Metrics:
    """The metrics over all samples; NaN where there are none."""
    return per_client(task, replace(scores, client=np.zeros(len(scores.loss), np.int64)), 1, custom)[0]


def per_client(task: Task, scores: Scores, clients: int, custom: Custom | None = None) -> list[Metrics]:
    """The metrics of each of `clients` by itself."""
    own = Grouped(scores.of(np.argsort(scores.client, kind="stable")), clients)
    columns = {name: formula(own).tolist() for name, formula in METRICS[task.name].items()}
    columns |= {name: own.one_by_one(metric).tolist() for name, metric in (custom or {}).items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
