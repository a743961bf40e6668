"""Metrics by scikit-learn's names: each says what it computes, whether more of it is better, and what it needs of a task.

>>> [metric.name for metric in read(["roc_auc", "sensitivity_at(specificity=0.9)"])]
['roc_auc', 'sensitivity_at_90']

Metrics that are chosen (`--metric roc_auc`) are the first metric columns of every table, and the first one decides: comparisons,
patience and the best round go by it. Packages add metrics through the entry-point group `unalike.metrics`: a module that
registers functions without required arguments which return a `Metric`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.registry import Registry
from unalike._utils.spec import parse_one
from unalike.core.tasks.task import (
    CLASSES,
    EVENT_TIMES,
    EXPECTED_COUNTS,
    NUMBERS,
    PIXEL_CLASSES,
    SAME_SHAPE,
    SEVERAL_LABELS,
    TOKEN_CLASSES,
    Formula,
    Task,
)
from unalike.metrics import areas, overlaps
from unalike.metrics.areas import TieGroups

if TYPE_CHECKING:
    import pandas as pd

registry = Registry("metric", home="unalike.metrics.named_metrics")

STORED_FIELDS = ("sign", "title", "word", "low", "high", "percent", "specificity")
"""The fields of a metric that a folder stores with its tables, beside its name, which is stored as `column`."""


@dataclass(frozen=True)
class Metric:
    """A metric with a direction.

    Args:
        name: its name, and that of its column in every table.
        sign: +1 if higher is better, -1 if lower is; 0 if it is not known, as of a function that a user gives.
        title: heading of a column.
        word: name in a sentence.
        needs_of_task: trait of the tasks for which it is defined, such as "classes" or "numbers"; empty for all tasks.
        formula: computes it from the samples; None for a metric that only the tasks have which name it among their own.
        low: smallest possible value.
        high: largest possible value.
        percent: whether it is shown in percent, and its differences in points.
        two_classes: whether it is defined for two classes only.
        is_mean: whether it is a mean over samples, so that the means of several sites can be added up.
        positive: name of the positive class; the last class unless given.
        leads: whether its columns stand in front of the loss, so that it may decide.
        specificity: the share of the negative samples that it holds fixed; None for all others.
    """

    name: str
    sign: int
    title: str
    word: str
    needs_of_task: str = CLASSES
    formula: Formula | None = field(default=None, compare=False)
    low: float = 0.0
    high: float = 1.0
    percent: bool = False
    two_classes: bool = False
    is_mean: bool = False
    positive: str | None = None
    leads: bool = True
    specificity: float | None = None

    @property
    def stored_fields(self) -> dict[str, Any]:
        """The fields that a folder stores, without infinite bounds, which JSON has not, and fields that are None."""
        fields: dict[str, Any] = {"column": self.name}
        for name in STORED_FIELDS:
            value = getattr(self, name)
            if value not in (-math.inf, math.inf, None):
                fields[name] = value
        return fields

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> Metric:
        """The inverse of `stored_fields`, without what computes the metric."""
        # a bound that is not stored is infinite
        values: dict[str, Any] = {"low": -math.inf, "high": math.inf}
        values |= {name: fields[name] for name in STORED_FIELDS if name in fields}
        return cls(fields["column"], **values)

    @property
    def bounded(self) -> bool:
        """Whether its values have a smallest and a largest one, as those of accuracy or a Brier score; an RMSE has none."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __call__(self, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
        """The metric of samples; NaN where it is not defined, such as the area under a ROC curve of one class."""
        assert self.formula is not None
        try:
            return self.formula(labels, predicted, logits)
        except Exception as error:  # perhaps of a user's function
            error.add_note(
                f"in the metric {self.name!r}, called with labels, predictions and logits of {len(labels)} samples"
            )
            raise

    @property
    def of_worst_tenth(self) -> Metric:
        """Its mean over the worst tenth of the clients, as a metric of a run."""
        return replace(
            self,
            name=f"worst_decile_{self.name}",
            title=f"{self.title} of the worst tenth",
            word=f"{self.word} of the worst tenth of clients",
        )

    def mean_of(self, clients: str) -> Metric:
        """Its unweighted mean over the clients, in the same columns; `clients` is what the user calls them."""
        return replace(
            self,
            title=f"{self.title}, mean of {clients}",
            word=f"{self.word} (mean of the {clients})",
        )

    def worst_first(self, values: pd.Series) -> pd.Series:
        """The values sorted from the worst to the best."""
        return values.sort_values(ascending=self.sign > 0, kind="stable")

    @property
    def scale(self) -> float:
        """The factor from a value to the number at a chart's axis: 100 for percent."""
        return 100 if self.percent else 1

    @property
    def axis_unit(self) -> str:
        """The unit at the end of an axis title, with a leading space."""
        return " (%)" if self.percent else ""

    @property
    def unit(self) -> str:
        """The unit of a difference, with a leading space: points of a share; empty for others, such as RMSE."""
        return " points" if self.percent else ""

    def text(self, value: float) -> str:
        """A value as every table and sentence shows it: `34.1 %`, or three significant digits; a dash for NaN."""
        shown = f"{100 * value:.1f}{PERCENT}" if self.percent else significant(value)
        return as_text(value, shown)

    def difference(self, value: float) -> str:
        """A signed difference: `+2.1 points`, or of a metric without percent `+0.0213`; what rounds to 0 has no sign."""
        return as_text(value, f"{self.change(value)}{self.unit}")

    def change(self, value: float) -> str:
        """A signed difference without the unit: `+2.1`."""
        return as_text(value, self._scaled(value, "+"))

    def amount(self, value: float) -> str:
        """A size without a sign and without the unit, such as a standard deviation: `2.1`."""
        return as_text(value, self._scaled(value))

    def interval(self, low: float, high: float) -> str:
        """An interval of differences: `+0.3 to +1.9`."""
        return as_text(low + high, f"{self._scaled(low, '+')} to {self._scaled(high, '+')}")

    def between(self, low: float, high: float) -> str:
        """An interval of values: `71.2 to 84.0 %`."""
        unit = PERCENT if self.percent else ""
        return as_text(low + high, f"{self._scaled(low)} to {self._scaled(high)}{unit}")

    def _scaled(self, value: float, sign: str = "") -> str:
        if not self.percent:
            return significant(value, sign)
        # what rounds to 0 has no sign
        shown_sign = sign if self.rounded(value) else ""
        return f"{100 * value:{shown_sign}z.1f}"

    def rounded(self, value: float) -> float:
        """The number that texts show: of a metric in percent tenths of a point, else the value."""
        return round(100 * value, 1) if self.percent else value

    def fits(self, task: Task) -> bool:
        """Whether it is a metric of the task, or can be computed from the task's samples."""
        is_computable = self.formula is not None and task.offers(self.needs_of_task)
        return is_computable or self.name in task.metrics

    def of(self, task: Task, classes: Sequence[str] | None) -> Metric:
        """The metric for a task with these classes. Raises `UnalikeError` if it is not defined for them."""
        if not self.fits(task):
            fitting = [m.name for m in KNOWN.values() if m.fits(task) and m.name != "loss"]
            raise UnalikeError(
                f"metric {self.name!r} is not defined for {task.name}; expected one of {', '.join(fitting)}"
            )
        if self.two_classes and classes is not None and len(classes) != 2:
            raise UnalikeError(
                f"metric {self.name!r} is defined for two classes; the data has {len(classes)}"
            )
        # formulas take the last class as the positive one
        if self.positive is None:
            return self
        if classes is None or self.positive not in classes:
            raise UnalikeError(str(unknown("class for positive=", self.positive, classes or ())))
        if list(classes).index(self.positive) == len(classes) - 1:
            return self
        assert self.formula is not None
        return replace(self, formula=_exchanged(self.formula))


def read(specs: Iterable[str]) -> list[Metric]:
    """Read metrics such as "roc_auc" or "sensitivity_at(specificity=0.95)". Raises `UnalikeError` for others and for duplicates."""
    metrics = [registry.build(parse_one(spec)) for spec in specs]
    columns = [metric.name for metric in metrics]
    if len(set(columns)) < len(columns):
        raise UnalikeError(
            f"found the metrics {', '.join(columns)}; expected each once: leave one out"
        )
    return metrics


def own_metric(name: str, formula: Formula | None = None) -> Metric:
    """A metric of the user's own, of which neither direction nor bounds are known."""
    return Metric(
        name=name,
        sign=0,
        title=name,
        word=name.replace("_", " "),
        needs_of_task="",
        formula=formula,
        low=-np.inf,
        high=np.inf,
        leads=False,
    )


MISSING = "–"
PERCENT = "\u00a0%"
"""The sign with a no-break space, so that no line ends between a number and its sign."""


def significant(value: float, sign: str = "", digits: int = 3) -> str:
    """A number with `digits` significant digits, trailing zeros included; only tiny numbers have an exponent."""
    form = ".0f"
    if value and math.isfinite(value):
        # the power of ten after rounding: 99.96 becomes 100
        power = int(f"{value:.{digits - 1}e}".split("e")[1])
        decimals = max(0, digits - 1 - power)
        form = f".{digits - 1}e" if power < -4 else f",.{decimals}f"
    shown_sign = sign if value else ""
    return f"{value:{shown_sign}z{form}}".replace("-", "−")


def as_text(value: float, text: str) -> str:
    """The text of a number with a proper minus sign; a dash where the number is missing."""
    return MISSING if math.isnan(value) else text.replace("-", "−")


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The probability of each class, [n, C]; of a binary task's logits [n] those of false and true, [n, 2]."""
    from scipy.special import expit, softmax

    if logits.ndim == 1:
        return np.stack([expit(-logits), expit(logits)], 1)
    return softmax(logits.astype(np.float64), axis=1)


def _exchanged(formula: Formula) -> Formula:
    """The formula with the two classes exchanged, so that the first one is positive."""

    def exchanged(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
        other_logits = -logits if logits.ndim == 1 else logits[:, ::-1]
        return formula(1 - labels.astype(np.int64), 1 - predicted, other_logits)

    return exchanged


def _by_class(
    score: Callable[[np.ndarray, np.ndarray], float], labels: np.ndarray, logits: np.ndarray
) -> float:
    """The score (of labels true/false and probabilities) of the positive class of two, or the mean over more classes.

    A class counts if some samples have it and others do not, as scikit-learn's "macro" average over one class against the rest.
    """
    p = probabilities(logits)
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    scores = []
    for k in classes:
        positive = labels == k
        if positive.any() and not positive.all():
            scores.append(score(positive, p[:, k]))
    return float(np.mean(scores)) if scores and np.isfinite(logits).all() else np.nan


def _roc_auc(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    def score(positive: np.ndarray, value: np.ndarray) -> float:
        return float(areas.roc_auc(TieGroups.of_one(value, positive))[0])

    return _by_class(score, labels, logits)


def _average_precision(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    def score(positive: np.ndarray, value: np.ndarray) -> float:
        return float(areas.average_precision(TieGroups.of_one(value, positive))[0])

    return _by_class(score, labels, logits)


def _sensitivity(
    specificity: float, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray
) -> float:
    from sklearn.metrics import roc_curve

    def score(positive: np.ndarray, value: np.ndarray) -> float:
        false_share, true_share, _ = roc_curve(positive, value, drop_intermediate=False)
        allowed = false_share <= 1 - specificity + 1e-12
        return float(true_share[allowed].max())

    return _by_class(score, labels, logits)


def _brier(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """As scikit-learn: (p - y)^2 for two classes, the sum of it over the classes for more."""
    p = probabilities(logits)
    if p.shape[1] == 2:
        return float(np.mean((p[:, 1] - labels) ** 2))
    one_hot = np.eye(p.shape[1])[labels.astype(np.int64)]
    return float(np.mean(((p - one_hot) ** 2).sum(1)))


def _calibration(bins: int, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """The sum over bins of |correct predictions - sum of confidences|, divided by the samples."""
    confidence = probabilities(logits).max(1)
    if not np.isfinite(confidence).all():
        return np.nan
    bin_of_sample = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(bin_of_sample, (predicted == labels) - confidence, bins)
    return float(np.abs(gaps).sum() / len(labels))


def _log_loss(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    z = logits.astype(np.float64)
    if z.ndim == 1:
        return float(np.mean(np.logaddexp(0, np.where(labels, -z, z))))
    of_label = z[np.arange(len(z)), labels.astype(np.int64)]
    return float(np.mean(np.logaddexp.reduce(z, 1) - of_label))


def _median_error(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    return float(np.median(np.abs(labels - predicted)))


def _poisson_deviance(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """2 mean_b of count_b log(count_b / mu_b) - count_b + mu_b, with 0 log 0 = 0."""
    from scipy.special import xlogy

    counts = labels.astype(np.float64)
    expected = predicted.astype(np.float64)
    return float(2 * np.mean(xlogy(counts, counts / expected) - counts + expected))


def _subset_accuracy(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    return float((labels == predicted).all(1).mean())


def _f1(right: np.ndarray, true: np.ndarray, guessed: np.ndarray) -> np.ndarray:
    """2 TP / (2 TP + FP + FN) from counts; NaN where nothing is true and nothing guessed."""
    with np.errstate(invalid="ignore"):
        return 2 * right / (true + guessed)


def _micro_f1(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    return float(_f1((labels & predicted).sum(), labels.sum(), predicted.sum()))


def _label_f1(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    by_label = _f1((labels & predicted).sum(0), labels.sum(0), predicted.sum(0))
    occurs = ~np.isnan(by_label)
    return float(by_label[occurs].mean()) if occurs.any() else np.nan


def _label_roc_auc(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    areas_of_labels = [
        _roc_auc(labels[:, k], predicted[:, k], logits[:, k]) for k in range(labels.shape[1])
    ]
    defined = [area for area in areas_of_labels if not math.isnan(area)]
    return float(np.mean(defined)) if defined else np.nan


def _c_index(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """Harrell's C, in O(n log n) comparisons: from the latest time on, each event is compared with those that outlast it."""
    time, event = labels.T
    if not np.isfinite(predicted).all():
        return np.nan
    # of equal times, those without an event outlast those with one, so they come first
    order = np.lexsort((event, -time))
    outlasting: list[float] = []
    simultaneous: list[float] = []
    pairs = 0
    concordant = 0.0
    previous = math.nan
    for moment, has_event, risk in zip(time[order], event[order], predicted[order], strict=True):
        if moment != previous:
            for ended in simultaneous:
                insort(outlasting, ended)
            simultaneous.clear()
            previous = moment
        if not has_event:
            insort(outlasting, risk)
            continue
        lower = bisect_left(outlasting, risk)
        equal = bisect_right(outlasting, risk) - lower
        concordant += lower + equal / 2
        pairs += len(outlasting)
        simultaneous.append(risk)
    return concordant / pairs if pairs else np.nan


@registry.register("sensitivity_at")
def sensitivity_at(*, specificity: float = 0.95, positive: str | None = None) -> Metric:
    """Sensitivity at a given specificity.

    It is the largest share of the positive samples above a threshold that leaves this share of the negative ones below it.
    `positive` names the positive class of two; the last one unless given.
    """
    if not 0 < specificity < 1:
        raise UnalikeError(
            f"sensitivity_at: found specificity={specificity!r}, expected a share such as 0.95"
        )
    percent = f"{100 * specificity:.6g}"
    title = f"Sensitivity at {percent} % specificity"
    return Metric(
        name=f"sensitivity_at_{percent.replace('.', '_')}",
        sign=+1,
        title=title,
        word=title.lower(),
        formula=partial(_sensitivity, specificity),
        percent=True,
        two_classes=True,
        positive=positive,
        specificity=specificity,
    )


@registry.register("average_precision")
def average_precision(*, positive: str | None = None) -> Metric:
    """Average precision over all thresholds; of more than two classes the mean over the classes.

    `positive` names the positive class of two; the last one unless given.
    """
    return replace(KNOWN["average_precision"], positive=positive, two_classes=positive is not None)


@registry.register("class_dice")
def class_dice(*, label: int = 1) -> Metric:
    """Dice of one class: its mean over the images that have the class in their mask or prediction."""
    return _of_class("dice", "Dice", overlaps.dice_of, label)


@registry.register("class_iou")
def class_iou(*, label: int = 1) -> Metric:
    """Intersection over union of one class: its mean over the images that have the class in their mask or prediction."""
    return _of_class("iou", "IoU", overlaps.iou_of, label)


def _of_class(name: str, word: str, formula: Callable[..., float], label: int) -> Metric:
    """The metric of this name for one class; `formula` takes the class first."""
    name_of_class = f"class_{name}"
    if label < 0:
        raise UnalikeError(
            f"{name_of_class}: found label={label}, expected the number of a class, from 0"
        )
    return replace(
        KNOWN[name],
        name=f"{name_of_class}_{label}",
        title=f"{word} of class {label}",
        word=f"{word} of class {label}",
        formula=partial(formula, label),
        is_mean=False,
    )


@registry.register("psnr")
def psnr(*, data_range: float = 1.0) -> Metric:
    """Peak signal-to-noise ratio in dB, 10 log10(range^2 / mean squared error), its mean over samples; values span `data_range`."""
    if not 0 < data_range < math.inf:
        raise UnalikeError(
            f"psnr: found data_range={data_range!r}, expected the largest value minus the smallest, such as 1 or 255"
        )
    return Metric(
        name="psnr",
        sign=+1,
        title="PSNR (dB)",
        word="PSNR",
        needs_of_task=SAME_SHAPE,
        formula=partial(overlaps.signal_to_noise, data_range),
        low=-math.inf,
        high=math.inf,
        is_mean=True,
    )


SUMMARIES = {
    "accuracy": "Share of correct predictions.",
    "balanced_accuracy": "Mean recall over the classes.",
    "macro_f1": "Mean F1 score over the classes (f1_macro in scikit-learn).",
    "roc_auc": "Area under the ROC curve: how often a positive sample has a larger risk than a negative one. Of more than two "
    "classes the mean over the classes.",
    "brier_score": "Mean squared error of the predicted probabilities.",
    "calibration_error": "Expected calibration error: mean gap between confidence and accuracy, in ten bins of confidence.",
    "log_loss": "Mean cross-entropy.",
    "r2": "Coefficient of determination.",
    "mae": "Mean absolute error.",
    "rmse": "Root of the mean squared error.",
    "median_absolute_error": "Median of the absolute errors.",
    "poisson_deviance": "Mean Poisson deviance of counts from the expected ones.",
    "subset_accuracy": "Share of samples of which all labels are predicted correctly.",
    "micro_f1": "F1 score of all labels of all samples together (f1_micro in scikit-learn).",
    "label_f1": "Mean F1 score over the labels that occur (f1_macro of several labels in scikit-learn).",
    "label_roc_auc": "Mean area under the ROC curve over the labels that have both values.",
    "c_index": "Concordance of risks and times to an event: share of comparable pairs in the right order (Harrell).",
    "dice": "Dice coefficient of masks: mean over the classes of an image, then over images.",
    "iou": "Intersection over union of masks (Jaccard): mean over the classes of an image, then over images.",
    "pixel_accuracy": "Share of the pixels of an image that are predicted correctly, mean over images.",
    "token_accuracy": "Share of the tokens of a text that are predicted correctly, mean over texts.",
    "perplexity": "exp of the mean loss of a language model.",
    "integrated_brier": "Mean Brier score over time, weighted for censoring; of tasks that give probabilities at times.",
}
ATTACK_SUCCESS = Metric(
    "attack_success", -1, "Attack success", "success rate of the backdoor", percent=True
)
"""The share of samples with the trigger of a backdoor that are taken for its class; a column of runs with one alone."""

KNOWN = {
    metric.name: metric
    for metric in (
        Metric("accuracy", +1, "Accuracy", "accuracy", percent=True),
        Metric("balanced_accuracy", +1, "Balanced accuracy", "balanced accuracy", percent=True),
        Metric("macro_f1", +1, "Macro-F1", "macro F1", percent=True),
        Metric("roc_auc", +1, "ROC AUC", "ROC AUC", formula=_roc_auc, percent=True),
        Metric(
            "average_precision",
            +1,
            "Average precision",
            "average precision",
            formula=_average_precision,
            percent=True,
        ),
        Metric(
            "brier_score", -1, "Brier score", "Brier score", formula=_brier, high=2.0, is_mean=True
        ),
        Metric(
            "calibration_error",
            -1,
            "Calibration error",
            "calibration error",
            formula=partial(_calibration, 10),
        ),
        Metric(
            "log_loss", -1, "Log loss", "log loss", formula=_log_loss, high=np.inf, is_mean=True
        ),
        Metric("rmse", -1, "RMSE", "RMSE", NUMBERS, high=np.inf),
        Metric("mae", -1, "MAE", "MAE", NUMBERS, high=np.inf, is_mean=True),
        Metric("r2", +1, "R²", "R²", NUMBERS, low=-np.inf),
        Metric(
            "median_absolute_error",
            -1,
            "Median absolute error",
            "median absolute error",
            NUMBERS,
            _median_error,
            high=np.inf,
        ),
        Metric(
            "poisson_deviance",
            -1,
            "Poisson deviance",
            "mean Poisson deviance",
            EXPECTED_COUNTS,
            _poisson_deviance,
            high=np.inf,
            is_mean=True,
        ),
        Metric(
            "subset_accuracy",
            +1,
            "Subset accuracy",
            "subset accuracy",
            SEVERAL_LABELS,
            _subset_accuracy,
            percent=True,
            is_mean=True,
        ),
        Metric("micro_f1", +1, "Micro-F1", "micro F1", SEVERAL_LABELS, _micro_f1, percent=True),
        Metric(
            "label_f1",
            +1,
            "F1 of labels",
            "mean F1 of the labels",
            SEVERAL_LABELS,
            _label_f1,
            percent=True,
        ),
        Metric(
            "label_roc_auc",
            +1,
            "ROC AUC of labels",
            "mean ROC AUC of the labels",
            SEVERAL_LABELS,
            _label_roc_auc,
            percent=True,
        ),
        Metric("c_index", +1, "C-index", "C-index", EVENT_TIMES, _c_index),
        Metric(
            "integrated_brier",
            -1,
            "Integrated Brier",
            "integrated Brier score",
            EVENT_TIMES,
            high=np.inf,
        ),
        Metric(
            "dice",
            +1,
            "Dice",
            "mean Dice",
            PIXEL_CLASSES,
            overlaps.mean_dice,
            percent=True,
            is_mean=True,
        ),
        Metric(
            "iou",
            +1,
            "IoU",
            "mean IoU",
            PIXEL_CLASSES,
            overlaps.mean_iou,
            percent=True,
            is_mean=True,
        ),
        Metric(
            "pixel_accuracy",
            +1,
            "Pixel accuracy",
            "pixel accuracy",
            PIXEL_CLASSES,
            overlaps.share_of_right_places,
            percent=True,
            is_mean=True,
        ),
        Metric(
            "token_accuracy",
            +1,
            "Token accuracy",
            "token accuracy",
            TOKEN_CLASSES,
            overlaps.share_of_right_places,
            percent=True,
            is_mean=True,
        ),
        Metric("perplexity", -1, "Perplexity", "perplexity", TOKEN_CLASSES, low=1.0, high=np.inf),
        Metric("loss", -1, "Loss", "loss", needs_of_task="", high=np.inf),
    )
}
"""Column -> metric, with its defaults."""


def metric_named(name: str) -> Metric:
    """The metric of this name: one of ours, or of another package. Raises `UnalikeError` if there is none."""
    return KNOWN[name] if name in KNOWN else registry[name]()


def _register(name: str, column: str) -> None:
    def builder() -> Metric:
        return KNOWN[column]

    builder.__doc__ = SUMMARIES[column]
    builder.__qualname__ = name
    registry.register(name)(builder)


for _column in SUMMARIES:
    _register(_column, _column)
_register("f1_macro", "macro_f1")
