"""The metrics of tasks, over all test samples together or for each of many clients at once.

loss               mean loss
accuracy           correct / samples
macro_f1           mean of 2 TP / (2 TP + FP + FN) over the classes among labels or predictions
balanced_accuracy  mean recall over the classes among the labels
roc_auc, average_precision       of two classes: area under the ROC curve, average precision; NaN where samples are of one class
rmse, mae          of numbers: root of the mean squared error, mean absolute error
r2                 of numbers: coefficient of determination (NaN for labels that are all the same)
                   of several numbers a sample each is the mean over them

A task names those that it has (`Task.metrics`).
Metrics that are chosen by name (`named_metrics`) come in front of these, those of the user's own behind them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from types import MappingProxyType

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.core.tasks.task import Formula, Task
from unalike.metrics import areas
from unalike.metrics.areas import TieGroups
from unalike.metrics.columns import check_name
from unalike.metrics.named_metrics import Metric, metric_named, own_metric
from unalike.metrics.scoring import Scores

Metrics = dict[str, float]
Custom = Mapping[str, Formula]
"""Name -> a function of the user's own, as `metrics=` takes them."""

RunMetrics = Mapping[str, Metric]
"""Column -> metric, for the metrics that a run computes besides those of its task."""
CountFormula = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Counts [K, C] of the samples, the predictions and the correct predictions of each class -> the metric of each client [K]."""
NumberFormula = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Labels and predictions [n], one number a sample -> the metric of each client [K]."""
LEADING_METRICS = ("loss", "accuracy", "macro_f1", "rmse")
"""Metrics that come first among the columns."""
MAX_COUNTS_AT_ONCE = 2**22
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

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums by client of one value per sample."""
        return np.bincount(self.owner, values, self.clients)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Means by client of one value per sample; NaN for a client without samples."""
        return self.sum(values) / self.sizes

    def by_number(self, formula: NumberFormula) -> np.ndarray:
        """`formula` of labels and predictions [n], by client; where these are several numbers a sample, the mean over them."""
        y, predicted = self.scores.y, self.scores.predicted
        if y.ndim == 1:
            return formula(y, predicted)
        return np.mean([formula(a, b) for a, b in zip(y.T, predicted.T, strict=True)], axis=0)

    @cached_property
    def margin(self) -> np.ndarray:
        """The logit of the second of two classes beyond that of the first, [n]."""
        z = self.scores.logits
        return z if z.ndim == 1 else z[:, 1].astype(np.float64) - z[:, 0]

    @cached_property
    def ties(self) -> TieGroups:
        """The groups of samples of two classes with equal margins."""
        return TieGroups.of(self.margin, self.scores.y, self.owner, self.clients)

    def by_class(self, formula: CountFormula) -> np.ndarray:
        """`formula` of the samples, the predictions and the correct predictions of each class, each [K, C]; by client."""
        labels = self.scores.y.astype(np.int64)
        guesses = self.scores.predicted.astype(np.int64)
        classes = int(max(labels.max(initial=0), guesses.max(initial=0))) + 1
        values = []
        # counts of all clients at once would need memory for clients x classes numbers
        clients_at_once = max(1, MAX_COUNTS_AT_ONCE // classes)
        for first in range(0, self.clients, clients_at_once):
            last = min(first + clients_at_once, self.clients)
            block = slice(self.starts[first], self.starts[last])
            label, guess = labels[block], guesses[block]
            client_cell = (self.owner[block] - first) * classes
            label_cell = client_cell + label
            guess_cell = client_cell + guess
            shape = (last - first, classes)
            values.append(
                formula(
                    _counts(label_cell, shape),
                    _counts(guess_cell, shape),
                    _counts(label_cell[label == guess], shape),
                )
            )
        return np.concatenate([*values, np.zeros(0)])

    def one_by_one(self, name: str, metric: Formula) -> np.ndarray:
        """A metric of samples, client by client; NaN without samples. It gets copies, so that it may overwrite its arguments."""
        values = np.full(self.clients, np.nan)
        for k in range(self.clients):
            rows = slice(self.starts[k], self.starts[k + 1])
            if rows.start < rows.stop:
                value = metric(
                    self.scores.y[rows].copy(),
                    self.scores.predicted[rows].copy(),
                    self.scores.logits[rows].copy(),
                )
                values[k] = _number(name, value)
        return values


def _counts(cell: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The number of times that each cell of a table of this shape occurs."""
    return np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)


GroupedFormula = Callable[[Grouped], np.ndarray]
"""The samples of all clients -> the metric of each client [K]."""


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    # torch raises RuntimeError for a tensor of several numbers
    except (TypeError, ValueError, RuntimeError):
        raise UnalikeError(f"metrics: {name} gives {value!r}; expected a number") from None


def macro_f1(true: np.ndarray, guessed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """From counts [..., C]: mean of 2 TP / (2 TP + FP + FN) over the classes that occur among labels or predictions."""
    seen = true + guessed
    return np.nan_to_num(2 * right / seen).sum(-1) / (seen > 0).sum(-1)


def balanced_accuracy(true: np.ndarray, guessed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """From counts [..., C]: mean recall TP / (TP + FN) over the classes that occur among the labels."""
    return np.nan_to_num(right / true).sum(-1) / (true > 0).sum(-1)


def roc_auc(grouped: Grouped) -> np.ndarray:
    """The share of pairs (positive, negative sample) that the logits order correctly; a tie counts half."""
    return areas.roc_auc(grouped.ties)


def average_precision(grouped: Grouped) -> np.ndarray:
    """Average precision: the sum over thresholds of (gain in recall) x (precision); equal logits are one threshold."""
    return areas.average_precision(grouped.ties)


def loss(grouped: Grouped) -> np.ndarray:
    """The mean loss."""
    return grouped.mean(grouped.scores.loss)


def accuracy(grouped: Grouped) -> np.ndarray:
    """The share of correct predictions."""
    return grouped.mean(grouped.scores.predicted == grouped.scores.y)


def rmse(grouped: Grouped) -> np.ndarray:
    """The root of the mean squared error."""

    def of_number(y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        return np.sqrt(grouped.mean((predicted - y) ** 2))

    return grouped.by_number(of_number)


def mae(grouped: Grouped) -> np.ndarray:
    """The mean absolute error."""

    def of_number(y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        return grouped.mean(np.abs(predicted - y))

    return grouped.by_number(of_number)


def r2(grouped: Grouped) -> np.ndarray:
    """1 - (sum of squared errors) / (sum of squared distances of the labels from their mean)."""

    def of_number(y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        squared_errors = (predicted - y) ** 2
        y = y.astype(np.float64)
        distances = y - grouped.mean(y)[grouped.owner]
        return determination(
            errors=grouped.sum(squared_errors),
            variation=grouped.sum(distances**2),
            squares=grouped.sum(y**2),
        )

    return grouped.by_number(of_number)


def determination(errors: np.ndarray, variation: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """R2 = 1 - errors / variation; NaN where the variation of the labels is only rounding of their squares."""
    return 1 - errors / np.where(variation > 1e-12 * squares, variation, np.nan)


FORMULAS: dict[str, GroupedFormula] = {
    "loss": loss,
    "accuracy": accuracy,
    "macro_f1": lambda grouped: grouped.by_class(macro_f1),
    "balanced_accuracy": lambda grouped: grouped.by_class(balanced_accuracy),
    "rmse": rmse,
    "mae": mae,
    "r2": r2,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}
"""Metric -> its formula for all clients at once. Other metrics of a task are computed client by client, by their own formula."""


def own_metrics(functions: Custom | None) -> dict[str, Metric]:
    """The user's own metrics by name. Raises `UnalikeError` unless they are functions under names that the tables do not use."""
    if not functions:
        return {}
    if not (isinstance(functions, Mapping) and all(map(callable, functions.values()))):
        raise UnalikeError(
            f"metrics={functions!r}: expected names with functions, {{'cost': f}} with f(labels, predictions, logits)"
        )
    for name in functions:
        check_name(name, BUILT_IN)
    return {name: own_metric(name, function) for name, function in functions.items()}


def run_metrics(task: Task, chosen: RunMetrics = MappingProxyType({})) -> dict[str, Metric]:
    """Column -> metric, for all metrics of a run in the order of its columns: those that lead, those of the task, the others."""
    leading = {name: metric for name, metric in chosen.items() if metric.leads}
    of_task = {name: metric_named(name) for name in task.metrics if name not in leading}
    return leading | of_task | dict(chosen)


def metric_names(task: Task, chosen: RunMetrics = MappingProxyType({})) -> tuple[str, ...]:
    """The names of the metrics that `measure` computes."""
    return tuple(run_metrics(task, chosen))


def leading_columns(metrics: Mapping[str, float]) -> Metrics:
    """The metrics that are the first columns of a table: those that were chosen, and then the usual ones."""
    chosen = takewhile(lambda name: name != "loss", metrics)
    return {name: metrics[name] for name in (*chosen, *LEADING_METRICS) if name in metrics}


BUILT_IN = frozenset(FORMULAS)
"""The metrics of our own tasks."""


def measure(task: Task, scores: Scores, chosen: RunMetrics = MappingProxyType({})) -> Metrics:
    """The metrics over all samples; NaN if there are none."""
    of_one_client = replace(scores, client=np.zeros(len(scores.loss), np.int64))
    return per_client(task, of_one_client, 1, chosen)[0]


def positives(scores: Scores, clients: int, classes: Sequence[str] | None) -> np.ndarray | None:
    """Samples of the second of two classes by client, int64 [K]; None for more classes and for regression."""
    if classes is None or len(classes) != 2:
        return None
    return np.bincount(scores.client[scores.y.astype(bool)], minlength=clients)


def per_client(
    task: Task, scores: Scores, clients: int, chosen: RunMetrics = MappingProxyType({})
) -> list[Metrics]:
    """The metrics of each client; NaN for a client without samples."""
    grouped = Grouped(scores.of(np.argsort(scores.client, kind="stable")), clients)
    metrics = run_metrics(task, chosen)
    columns = {}
    # a client without samples divides by zero; the exponential of a large loss is infinite
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for name, metric in metrics.items():
            # the formulas of tasks take the last class as the positive one
            is_of_task = name in task.metrics and metric.positive is None
            of_loss = task.formula_of_loss(name)
            if of_loss is not None:
                values = of_loss(loss(grouped))
            elif is_of_task and name in FORMULAS:
                values = FORMULAS[name](grouped)
            else:
                values = grouped.one_by_one(name, task.formula(name) or metric)
            columns[name] = values.tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
