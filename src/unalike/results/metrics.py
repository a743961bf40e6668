"""The metrics of a task as formulas over many groups of samples at once: one group per client, or all in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Groups:
    """n samples of `count` groups: `of` [n] says whose each is, `logit` [n] is how sure a binary model is of True."""

    of: np.ndarray
    count: int
    loss: np.ndarray
    y: np.ndarray
    predicted: np.ndarray
    logit: np.ndarray

    def sum(self, values: np.ndarray, of: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(self.of if of is None else of, weights=values, minlength=self.count)

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.bincount(self.of, minlength=self.count)

    @cached_property
    def classes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """`of true guessed hits` for each pair of a group and a class that occurs in it."""
        y, predicted = self.y.astype(np.int64), self.predicted.astype(np.int64)
        width = int(max(y.max(initial=0), predicted.max(initial=0))) + 1
        pairs, place = np.unique(
            np.concatenate([self.of * width + y, self.of * width + predicted]), return_inverse=True
        )
        own, guess = place[: len(y)], place[len(y) :]
        true, guessed, hits = (np.bincount(p, minlength=len(pairs)) for p in (own, guess, own[y == predicted]))
        return pairs // width, true, guessed, hits

    @cached_property
    def ties(self) -> tuple[np.ndarray, ...]:
        """`of positives negatives above below` for each run of equal logits, from the highest down.

        `above` and `below` count the group's positives and negatives in this run and those before it.
        """
        order = np.lexsort((-self.logit, self.of))
        of, logit, y = self.of[order], self.logit[order], self.y[order].astype(np.int64)
        first = np.flatnonzero(np.r_[True, (of[1:] != of[:-1]) | (logit[1:] != logit[:-1])][: len(of)])
        positives = np.add.reduceat(y, first) if len(first) else y
        negatives = np.diff(np.r_[first, len(of)]) - positives
        owner = of[first]
        before = [np.r_[0, np.cumsum(self.sum(v, owner))[:-1]][owner] for v in (positives, negatives)]
        return owner, positives, negatives, np.cumsum(positives) - before[0], np.cumsum(negatives) - before[1]

    @property
    def both(self) -> tuple[np.ndarray, np.ndarray]:
        """Positives and negatives of each group; NaN where one of them is missing or a logit is no number."""
        positive = self.sum(self.y.astype(float))
        negative = self.sizes - positive
        whole = (positive > 0) & (negative > 0) & (self.sum(np.isnan(self.logit).astype(float)) == 0)
        return np.where(whole, positive, np.nan), np.where(whole, negative, np.nan)


Formula = Callable[[Groups], np.ndarray]
"""Groups -> one number for each, NaN where it is not defined."""


def loss(g: Groups) -> np.ndarray:
    return g.sum(g.loss) / g.sizes


def rmse(g: Groups) -> np.ndarray:
    return np.sqrt(loss(g))


def accuracy(g: Groups) -> np.ndarray:
    return g.sum((g.predicted == g.y).astype(float)) / g.sizes


def macro_f1(g: Groups) -> np.ndarray:
    """Mean of 2 TP / (2 TP + FP + FN) over the classes that occur among labels or predictions."""
    of, true, guessed, hits = g.classes
    return g.sum(2 * hits / (true + guessed), of) / np.bincount(of, minlength=g.count)


def balanced_accuracy(g: Groups) -> np.ndarray:
    """Mean recall TP / (TP + FN) over the classes that occur among the labels."""
    of, true, _, hits = (values[g.classes[1] > 0] for values in g.classes)
    return g.sum(hits / true, of) / np.bincount(of, minlength=g.count)


def auroc(g: Groups) -> np.ndarray:
    """P(a positive has a higher logit than a negative), ties counted half: the area under the ROC curve."""
    of, positives, negatives, above, _ = g.ties
    positive, negative = g.both
    return g.sum(negatives * (above - positives / 2), of) / (positive * negative)


def auprc(g: Groups) -> np.ndarray:
    """Average precision, the sum over thresholds of (R_n - R_(n-1)) P_n."""
    of, positives, _, above, below = g.ties
    return g.sum(positives * above / (above + below), of) / g.both[0]


_CLASSES: dict[str, Formula] = {
    "loss": loss,
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "balanced_accuracy": balanced_accuracy,
}
FORMULAS: dict[str, dict[str, Formula]] = {
    "classification": _CLASSES,
    "binary": _CLASSES | {"auroc": auroc, "auprc": auprc},
    "regression": {"loss": loss, "rmse": rmse},
}
"""Task -> column -> formula, in the order of the columns."""
