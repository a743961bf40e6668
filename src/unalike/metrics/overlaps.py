"""Formulas of metrics for arrays of classes, [n, ...]: masks of images, and classes of tokens.

Places whose label is below 0 do not count. Each formula is that of one sample first, and then the mean over samples, so that an
image or a text counts as one, however many of its places count.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Overlaps:
    """The places that count of each sample by class, [n, C]: those that have it, that are predicted to, and that both are."""

    true: np.ndarray
    guessed: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, predicted: np.ndarray) -> "Overlaps":
        """The counts of labels and predictions [n, ...]."""
        rows = len(labels)
        flat_labels = labels.reshape(rows, -1)
        flat_guesses = predicted.reshape(rows, -1)
        classes = int(max(labels.max(initial=0), predicted.max(initial=0))) + 1
        counts = flat_labels >= 0
        first_cell = np.arange(rows)[:, None] * classes

        def count(cells: np.ndarray) -> np.ndarray:
            return np.bincount(cells, minlength=rows * classes).reshape(rows, classes)

        cell_of_label = first_cell + flat_labels
        return cls(
            true=count(cell_of_label[counts]),
            guessed=count((first_cell + flat_guesses)[counts]),
            right=count(cell_of_label[flat_labels == flat_guesses]),
        )

    @property
    def dice(self) -> np.ndarray:
        """2 |A and B| / (|A| + |B|) by sample and class, [n, C]; NaN where a sample has the class nowhere."""
        with np.errstate(invalid="ignore"):
            return 2 * self.right / (self.true + self.guessed)

    @property
    def iou(self) -> np.ndarray:
        """|A and B| / |A or B| by sample and class, [n, C]; NaN where a sample has the class nowhere."""
        with np.errstate(invalid="ignore"):
            return self.right / (self.true + self.guessed - self.right)


def mean_dice(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """The mean over samples of the mean Dice over the classes that a sample has in its label or prediction."""
    return float(np.nanmean(Overlaps.of(labels, predicted).dice, axis=1).mean())


def mean_iou(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """The mean over samples of the mean IoU over the classes that a sample has in its label or prediction."""
    return float(np.nanmean(Overlaps.of(labels, predicted).iou, axis=1).mean())


def dice_of(label: int, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """The mean Dice of one class over the samples that have it in their label or prediction; NaN if none has."""
    return _mean_of_class(Overlaps.of(labels, predicted).dice, label)


def iou_of(label: int, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """The mean IoU of one class over the samples that have it in their label or prediction; NaN if none has."""
    return _mean_of_class(Overlaps.of(labels, predicted).iou, label)


def share_of_right_places(labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> float:
    """The mean over samples of the share of its places that are predicted correctly."""
    rows = len(labels)
    right = (labels == predicted).reshape(rows, -1).sum(1)
    counted = (labels >= 0).reshape(rows, -1).sum(1)
    return float((right / counted).mean())


def signal_to_noise(
    data_range: float, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray
) -> float:
    """The mean over samples of 10 log10(range^2 / mean squared error), in dB; infinite for a sample that is predicted exactly."""
    errors = (predicted.astype(np.float64) - labels) ** 2
    with np.errstate(divide="ignore"):
        decibels = 10 * np.log10(data_range**2 / errors.reshape(len(labels), -1).mean(1))
    return float(decibels.mean())


def _mean_of_class(values: np.ndarray, label: int) -> float:
    """The mean over samples of values [n, C] of one class that are not NaN."""
    if label >= values.shape[1]:
        return float("nan")
    of_class = values[:, label]
    occurs = ~np.isnan(of_class)
    return float(of_class[occurs].mean()) if occurs.any() else float("nan")
