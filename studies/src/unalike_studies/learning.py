"""Whether the networks of a study have learned anything: a run at chance measures nothing, whatever its numbers are.

A quantity reads the scores of some methods. `seeds_at_chance` finds the seeds that say nothing about it, and
`is_far_below_printed` compares the level of the scores with that of the paper.
"""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

import numpy as np

from unalike_studies.results import CellResult, Results

LEARNED_SHARE = 0.1
"""A run has learned when its accuracy has left chance by this share of the way from chance to 1."""
LEAST_SHARE_OF_PRINTED = 0.5
"""An accuracy below this share of the printed one is that of another experiment."""
ACCURACY = "accuracy"
"""Ending of the columns that tell whether a run has learned."""
ACCURACIES = ("accuracy", "personal_accuracy")
"""Such columns where a quantity reads others, the first one that a run has."""
ROUNDS_OF_SCORE = 10
"""Evaluated rounds at the end of a run that its accuracy is the mean of, where a quantity reads no score."""
CLASSES_OF_DATA = {"cifar100": 100, "tiny_imagenet": 200, "glyphs": 62, "emnist": 62}
"""Data set -> its classes, where results keep no counts of labels: those of many clients and classes."""


class Group(NamedTuple):
    """Runs of a method in a setting, and what is read of them.

    Attributes:
        method: label of the method.
        setting: label of the setting.
        column: the column that is read; empty for none in particular.
        last: the evaluated rounds at the end of a run that tell its level.
        is_curve: whether the shape of the curve is read, and not its level.
    """

    method: str
    setting: str
    column: str = ""
    last: int = ROUNDS_OF_SCORE
    is_curve: bool = False


class WatchedResults(Results):
    """Results that note what is read of them."""

    read: dict[Group, dict[int, CellResult]]
    """What was read: seed -> cell of each group."""

    def __init__(self, results: Results):
        super().__init__(results.cells)
        # the base class is frozen
        object.__setattr__(self, "read", {})

    def of(self, method: str, setting: str) -> dict[int, CellResult]:
        cells = super().of(method, setting)
        self.read[Group(method, setting)] = cells
        return cells

    def scores(
        self, method: str, setting: str, column: str = "accuracy", last: int = 10
    ) -> dict[int, float]:
        self.read[Group(method, setting, column, last)] = super().of(method, setting)
        return Results(self.cells).scores(method, setting, column, last)

    def curves(self, method: str, setting: str, column: str = "accuracy") -> dict[int, list[float]]:
        group = Group(method, setting, column, is_curve=True)
        self.read[group] = super().of(method, setting)
        return Results(self.cells).curves(method, setting, column)


def seeds_at_chance(results: WatchedResults) -> dict[int, list[str]]:
    """Seed -> the methods at chance, of the seeds that say nothing about what was read.

    That is where all methods are at chance, and where one is that has gone farther under another seed by `LEARNED_SHARE`: its
    scores are of two kinds, and a mean of them describes neither. The score of a method that stays near chance under every seed
    beside others that learn is kept: that it does not learn is the result. The shape of a curve at chance never counts.
    """
    progress: dict[Group, dict[int, float]] = {}
    for group, cells in results.read.items():
        progress[group] = {seed: _progress(cell, group) for seed, cell in cells.items()}

    seeds = sorted({seed for cells in results.read.values() for seed in cells})
    methods_by_seed = {}
    for seed in seeds:
        read_here = [group for group, by_seed in progress.items() if seed in by_seed]
        at_chance = [group for group in read_here if progress[group][seed] < LEARNED_SHARE]
        without_meaning = []
        for group in at_chance:
            farthest = max(progress[group].values())
            has_two_kinds = farthest > progress[group][seed] + LEARNED_SHARE
            if has_two_kinds or group.is_curve:
                without_meaning.append(group)
        if without_meaning or (at_chance and len(at_chance) == len(read_here)):
            methods_by_seed[seed] = list(dict.fromkeys(group.method for group in at_chance))
    return methods_by_seed


def _progress(cell: CellResult, group: Group) -> float:
    """The share of the way from chance to 1 that the accuracy of a run has gone; inf where it has none, or chance is not known."""
    accuracy = _accuracy(cell, group)
    chance = chance_of(cell)
    if accuracy is None or chance is None:
        return math.inf
    return (accuracy - chance) / (1 - chance)


def _accuracy(cell: CellResult, group: Group) -> float | None:
    """The accuracy of a run in the column that is read where it is one, else that of its shared model; None where it has none.

    It is the mean of the same rounds as the score that is judged: an earlier part of the curve is not its level.
    """
    columns = (group.column,) if group.column.endswith(ACCURACY) else ACCURACIES
    for name in columns:
        if cell.column(name):
            return cell.score(name, group.last)
    return None


def chance_of(cell: CellResult) -> float | None:
    """The accuracy of always predicting the most frequent class; None where the classes are not known."""
    if cell.label_counts:
        counts = np.sum(cell.label_counts, axis=0)
        return float(counts.max() / counts.sum())
    data = str(cell.options.get("data", "")).partition("(")[0]
    return 1 / CLASSES_OF_DATA[data] if data in CLASSES_OF_DATA else None


def is_far_below_printed(results: WatchedResults, printed_percent: float) -> bool:
    """Whether an accuracy that was read is below half of the smallest one that the paper prints.

    The difference of a method at its printed level and one far below it is that of two experiments.
    """
    levels = []
    for group, cells in results.read.items():
        if not group.column.endswith(ACCURACY):
            continue
        accuracies = [_accuracy(cell, group) for cell in cells.values()]
        known = [accuracy for accuracy in accuracies if accuracy is not None]
        if known:
            levels.append(100 * fmean(known))
    return bool(levels) and min(levels) < LEAST_SHARE_OF_PRINTED * printed_percent


def in_words(methods_by_seed: Mapping[int, list[str]]) -> tuple[str, ...]:
    """The runs at chance, seed by seed."""
    return tuple(
        f"{' and '.join(methods)} (seed {seed})" for seed, methods in methods_by_seed.items()
    )
