"""Test samples that are drawn within each client: stratified by outcome, with the samples of a unit on one side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unalike._utils.seeds import generator


def draw_tests(
    owned: Sequence[np.ndarray],
    labels: np.ndarray,
    units: np.ndarray,
    seed: int,
    split: float,
    folds: int | None = None,
    min_test: int = 0,
) -> list[np.ndarray]:
    """Draw the test samples of each client.

    A client's units are put in order of their outcome (the mean of their labels), at random among equal outcomes, and are drawn at
    equal distances from a random start (systematic sampling). So every class, and every range of a numeric outcome, has its share
    of test samples up to one, and each unit tests with the same probability, even the only one with its outcome. Of n units
    floor(split n), at least 1, train. A unit with samples of several clients is on the side that the first of them draws.

    With `folds` = k the seeds are those of repeated k-fold cross-validation: seed s tests fold s mod k of repetition
    floor(s / k), so that k seeds in a row test every sample once.

    Args:
        owned: The samples of each client.
        labels: The label of each sample: classes, binary labels or numbers.
        units: The number of each sample's unit, such as a patient; the sample's own number where every sample is a unit.
        seed: The seed of the draw.
        split: The training share of each client's units.
        folds: The number of folds, at least 2; `split` then has no effect.
        min_test: The smallest number of units that test.

    Returns:
        For each client whether each of its samples tests.

    Shapes:
        labels, units: [N]. owned[k], returned[k]: [n_k].
    """
    tests = np.zeros(units.max(initial=-1) + 1, bool)
    drawn = np.zeros_like(tests)
    found = []
    for k, rows in enumerate(owned):
        own, place = np.unique(units[rows], return_inverse=True)
        outcome = np.bincount(place, labels[rows].astype(float)) / np.bincount(place)
        free = ~drawn[own]
        rng = generator(seed, "stratified", k) if folds is None else generator(seed // folds, "folds", k)
        ordered = own[free][np.lexsort((rng.random(free.sum()), outcome[free]))]
        n = len(ordered)
        if folds is None:
            # 0.29 * 100 is 28.999...: the small term keeps floor from losing a sample to rounding.
            size = n - min(max(int(split * n + 1e-9), 1), max(n - min_test, 0))
            chosen = ((np.arange(size) + rng.random()) * n / max(size, 1)).astype(int)
        else:
            chosen = np.flatnonzero((np.arange(n) + rng.integers(folds)) % folds == seed % folds)
            chosen = chosen if n > 1 else chosen[:0]
        tests[ordered[chosen]], drawn[own] = True, True
        found.append(tests[units[rows]])
    return found
