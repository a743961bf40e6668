"""The metrics of a task, over all test samples together or for each of many clients at once.

loss               mean loss
accuracy           correct / samples
macro_f1           mean of 2 TP / (2 TP + FP + FN) over the classes among labels or predictions
balanced_accuracy  mean recall over the classes among the labels
roc_auc, average_precision       of two classes: area under the ROC curve, average precision; NaN where samples are of one class
rmse, mae, r2      of regression: root of the mean squared error, mean absolute error, coefficient of determination (NaN for labels
                   that are all the same)

Metrics that are chosen by name (`named_metrics`) come in front of these, those of the user's own behind them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from types import MappingProxyType

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.core.tasks import Task
from unalike.metrics.columns import check_name
from unalike.metrics.named_metrics import KNOWN, Formula, Metric, own_metric
from unalike.metrics.scoring import Scores

Metrics = dict[str, float]
Custom = Mapping[str, Formula]
"""Name -> a function of the user's own, as `metrics=` takes them."""

RunMetrics = Mapping[str, Metric]
"""Column -> metric, for the metrics that a run computes besides those of its task."""
USUAL = ("loss", "accuracy", "macro_f1", "rmse")
"""Metrics that come first among the columns."""
BLOCK = 2**22
"""Most counts by client and class that are held at a time, to bound memory."""


@dataclass(frozen=True)
class Grouped:
    """Scores sorted by client: of `clients` clients, client k has the samples `starts[k] : starts[k + 1]`."""

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

    def sum(self, values: np.ndarray, owner: np.ndarray | None = None) -> np.ndarray:
        """Sums by client of one value per sample; with `owner`, of values that belong to these clients."""
        return np.bincount(self.owner if owner is None else owner, values, self.clients)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Means by client of one value per sample; NaN for a client without samples."""
        return self.sum(values) / self.sizes

    @cached_property
    def margin(self) -> np.ndarray:
        """The logit of the second of two classes beyond that of the first, [n]."""
        z = self.scores.logits
        return z if z.ndim == 1 else z[:, 1].astype(np.float64) - z[:, 0]

    @cached_property
    def ties(self) -> tuple[np.ndarray, ...]:
        """`owner positives negatives above below` for each group of equal margins of a client, in descending order.

        `above` and `below` count the client's positives and negatives in this group and in those before it.
        """
        order = np.lexsort((-self.margin, self.owner))
        of, margin, y = self.owner[order], self.margin[order], self.scores.y[order].astype(np.int64)
        first = np.flatnonzero(
            np.append(True, (np.diff(of) != 0) | (np.diff(margin) != 0))[: len(of)]
        )
        positives = np.add.reduceat(y, first) if len(first) else y
        negatives = np.diff(np.append(first, len(of))) - positives
        own = of[first]
        before = [np.append(0, np.cumsum(self.sum(v, own)))[own] for v in (positives, negatives)]
        return (
            own,
            positives,
            negatives,
            np.cumsum(positives) - before[0],
            np.cumsum(negatives) - before[1],
        )

    @property
    def both(self) -> tuple[np.ndarray, np.ndarray]:
        """Positives and negatives of each client; NaN for a client without one of them or with a NaN among its logits."""
        positive = self.sum(self.scores.y.astype(float))
        negative = self.sizes - positive
        whole = (
            (positive > 0) & (negative > 0) & (self.sum(np.isnan(self.margin).astype(float)) == 0)
        )
        return np.where(whole, positive, np.nan), np.where(whole, negative, np.nan)

    def by_class(
        self, formula: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """`formula` of the samples, the predictions and the correct predictions of each class, each [K, C]; by client."""
        y, guess = self.scores.y.astype(np.int64), self.scores.predicted.astype(np.int64)
        classes = int(max(y.max(initial=0), guess.max(initial=0))) + 1
        step, scores = max(1, BLOCK // classes), []
        for first in range(0, self.clients, step):
            last = min(first + step, self.clients)
            own = slice(self.starts[first], self.starts[last])
            cell, shape = (self.owner[own] - first) * classes, (last - first, classes)
            hit = y[own] == guess[own]
            keys = (cell + y[own], cell + guess[own], (cell + y[own])[hit])
            counts = (np.bincount(k, minlength=shape[0] * classes).reshape(shape) for k in keys)
            scores.append(formula(*counts))
        return np.concatenate([*scores, np.zeros(0)])

    def one_by_one(self, name: str, metric: Formula) -> np.ndarray:
        """A metric of samples, client by client; NaN without samples. It gets copies, so that it may overwrite its arguments."""
        parts = [slice(a, b) for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]
        given = self.scores.y, self.scores.predicted, self.scores.logits
        values = (
            metric(*(a[p].copy() for a in given)) if p.start < p.stop else np.nan for p in parts
        )
        return np.array([_number(name, value) for value in values])


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # torch raises RuntimeError for a tensor of several numbers
        raise UnalikeError(f"metrics: {name} gives {value!r}; expected a number") from None


def macro_f1(true: np.ndarray, guessed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """From counts [..., C]: mean of 2 TP / (2 TP + FP + FN) over the classes that occur among labels or predictions."""
    seen = true + guessed
    return np.nan_to_num(2 * right / seen).sum(-1) / (seen > 0).sum(-1)


def balanced_accuracy(true: np.ndarray, guessed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """From counts [..., C]: mean recall TP / (TP + FN) over the classes that occur among the labels."""
    return np.nan_to_num(right / true).sum(-1) / (true > 0).sum(-1)


def roc_auc(own: Grouped) -> np.ndarray:
    """The share of pairs (positive, negative sample) that the logits order correctly; a tie counts half."""
    of, positives, negatives, above, _ = own.ties
    positive, negative = own.both
    return own.sum(negatives * (above - positives / 2), of) / (positive * negative)


def average_precision(own: Grouped) -> np.ndarray:
    """Average precision: the sum over thresholds of (gain in recall) x (precision); equal logits are one threshold."""
    of, positives, _, above, below = own.ties
    return own.sum(positives * above / (above + below), of) / own.both[0]


def mae(own: Grouped) -> np.ndarray:
    """The mean absolute error."""
    return own.mean(np.abs(own.scores.predicted - own.scores.y))


def r2(own: Grouped) -> np.ndarray:
    """1 - (sum of squared errors) / (sum of squared distances of the labels from their mean)."""
    y = own.scores.y.astype(np.float64)
    return determination(
        own.sum(own.scores.loss), own.sum((y - own.mean(y)[own.owner]) ** 2), own.sum(y**2)
    )


def determination(errors: np.ndarray, variation: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """R2 = 1 - errors / variation; NaN where the variation of the labels is only rounding of their squares."""
    return 1 - errors / np.where(variation > 1e-12 * squares, variation, np.nan)


AREAS: dict[str, Callable[[Grouped], np.ndarray]] = {
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}
"""Metrics of two classes that cannot be computed from sums."""
_ANY = {"loss": lambda own: own.mean(own.scores.loss)}
_CLASSES = _ANY | {
    "accuracy": lambda own: own.mean(own.scores.predicted == own.scores.y),
    "macro_f1": lambda own: own.by_class(macro_f1),
    "balanced_accuracy": lambda own: own.by_class(balanced_accuracy),
}
METRICS: dict[str, dict[str, Callable[[Grouped], np.ndarray]]] = {
    "classification": _CLASSES,
    "binary": _CLASSES,
    "regression": _ANY
    | {"rmse": lambda own: np.sqrt(own.mean(own.scores.loss)), "mae": mae, "r2": r2},
}
"""Name of a task -> metric -> formula, in the order of the columns."""


def formulas(task: Task) -> dict[str, Callable[[Grouped], np.ndarray]]:
    """Metric -> formula, for the metrics of a task in the order of the columns."""
    return METRICS[task.name] | (AREAS if task.areas else {})


def own_metrics(functions: Custom | None) -> dict[str, Metric]:
    """The user's own metrics by name. Raises `UnalikeError` unless they are functions under names that the tables do not use."""
    if functions and not (
        isinstance(functions, Mapping) and all(map(callable, functions.values()))
    ):
        raise UnalikeError(
            f"metrics={functions!r}: expected names with functions, {{'cost': f}} with f(labels, predictions, logits)"
        )
    for name in functions or {}:
        check_name(name, BUILT_IN)
    return {name: own_metric(name, function) for name, function in (functions or {}).items()}


def run_metrics(task: Task, chosen: RunMetrics = MappingProxyType({})) -> dict[str, Metric]:
    """Column -> metric, for all metrics of a run in the order of its columns: those that lead, those of the task, the others."""
    leading = {name: metric for name, metric in chosen.items() if metric.leads}
    return (
        leading
        | {name: KNOWN[name] for name in formulas(task) if name not in leading}
        | dict(chosen)
    )


def metric_names(task: Task, chosen: RunMetrics = MappingProxyType({})) -> tuple[str, ...]:
    """The names of the metrics that `measure` computes."""
    return tuple(run_metrics(task, chosen))


def in_front(metrics: Mapping[str, float]) -> Metrics:
    """The metrics that are the first columns of a table: those that were chosen, and then the usual ones."""
    chosen = takewhile(lambda name: name != "loss", metrics)
    return {name: metrics[name] for name in (*chosen, *USUAL) if name in metrics}


BUILT_IN = frozenset(name for metrics in (*METRICS.values(), AREAS) for name in metrics)
"""The metrics of all tasks."""


def measure(task: Task, scores: Scores, chosen: RunMetrics = MappingProxyType({})) -> Metrics:
    """The metrics over all samples; NaN if there are none."""
    return per_client(
        task, replace(scores, client=np.zeros(len(scores.loss), np.int64)), 1, chosen
    )[0]


def positives(scores: Scores, clients: int, classes: Sequence[str] | None) -> np.ndarray | None:
    """Samples of the second of two classes by client, int64 [K]; None for more classes and for regression."""
    if classes is None or len(classes) != 2:
        return None
    return np.bincount(scores.client[scores.y.astype(bool)], minlength=clients)


def per_client(
    task: Task, scores: Scores, clients: int, chosen: RunMetrics = MappingProxyType({})
) -> list[Metrics]:
    own = Grouped(scores.of(np.argsort(scores.client, kind="stable")), clients)
    summed = {
        name: f
        for name, f in formulas(task).items()
        if name not in chosen or chosen[name].positive is None
    }
    with np.errstate(invalid="ignore", divide="ignore"):  # a client without samples has no metric
        columns = {
            name: (
                summed[name](own) if name in summed else own.one_by_one(name, chosen[name])
            ).tolist()
            for name in metric_names(task, chosen)
        }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
