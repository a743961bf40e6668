"""Samples that are held out: tests within each client, and the server's, before the data is divided among clients."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.option_types import check_kinds
from unalike._utils.seeds import generator
from unalike.core.inputs import map_inputs, take_rows
from unalike.data.array_checks import Pair
from unalike.data.dataset import Dataset
from unalike.data.time_order import are_latest, are_of_latest_units, count_of_tests, first_moments


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

    Returns for each client whether each of its samples tests, [n_k]. `labels` and `units` are [N]: classes, binary labels or
    numbers, and the number of each sample's unit, such as a patient. `split` is the training share of each client's units,
    `min_test` the smallest number of units that test.
    """

    def drawn(k: int, rows: np.ndarray, place: np.ndarray, is_free: np.ndarray) -> np.ndarray:
        outcome = np.bincount(place, labels[rows].astype(float)) / np.bincount(place)
        if folds is None:
            rng = generator(seed, "stratified", k)
        else:
            # The seeds of one repetition share the order, of which each tests another part.
            rng = generator(seed // folds, "folds", k)
        order = np.lexsort((rng.random(is_free.sum()), outcome[is_free]))

        count = len(order)
        if folds is None:
            size = count_of_tests(count, split, min_test)
            distance = (np.arange(size) + rng.random()) * count / max(size, 1)
            places = distance.astype(int)
        else:
            fold = (np.arange(count) + rng.integers(folds)) % folds
            places = np.flatnonzero(fold == seed % folds)
            if count <= 1:  # the only unit trains
                places = places[:0]
        tests = np.zeros(count, bool)
        tests[order[places]] = True
        return tests

    return _tests_of_units(owned, units, drawn)


def later_tests(
    owned: Sequence[np.ndarray],
    moments: np.ndarray,
    units: np.ndarray,
    split: float,
    min_test: int = 0,
) -> list[np.ndarray]:
    """The test samples of each client by time: its later ones, so that earlier ones train.

    Of a client's n units, in order of their first sample, floor(split n), at least 1, train, unless some of them have the moment
    of the first one that tests: equal moments test together. A client whose units have one moment has no test samples.

    Returns and arguments are those of `draw_tests`; `moments` [N] are the times of the samples.
    """

    def later(k: int, rows: np.ndarray, place: np.ndarray, is_free: np.ndarray) -> np.ndarray:
        begins = first_moments(moments[rows], place)[is_free]
        return are_latest(begins, count_of_tests(len(begins), split, min_test))

    return _tests_of_units(owned, units, later)


def _tests_of_units(
    owned: Sequence[np.ndarray],
    units: np.ndarray,
    choose: Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray],
) -> list[np.ndarray]:
    """Whether each sample of each client tests, where all samples of a unit are on one side.

    `choose(k, rows, place, is_free)` says which of client k's units that no client before it has placed test, [units that are
    free]: of the client's samples `rows`, `place` is the number of each one's unit among the client's, and `is_free` says which
    units are to be placed.
    """
    units_that_test = np.zeros(units.max(initial=-1) + 1, bool)
    is_placed = np.zeros_like(units_that_test)
    is_test = []
    for k, rows in enumerate(owned):
        # Units of several clients are on the side that the first of them chose, so that only the others are placed here.
        members, place = np.unique(units[rows], return_inverse=True)
        is_free = ~is_placed[members]
        tests = choose(k, rows, place, is_free)
        units_that_test[members[is_free][tests]] = True
        is_placed[members] = True
        is_test.append(units_that_test[units[rows]])
    return is_test


def hold_out(
    data: Dataset, share: float, seed: int = 0, imbalance: float = 1.0
) -> tuple[Dataset, Pair]:
    """Hold out a share of the test samples as proxy data for methods that learn on the server.

    No unit of the data is divided: the server gets all samples of a chosen one's unit. But for that,
    the held-out samples have the same number of each class, n = round(share * tests / classes), at least one; for regression they
    are drawn at random. If there are no test samples, training samples are taken. Li et al. 2023 (FedLAW) hold out 2 %.

    With `imbalance` r, class c of C gets round(n r ** (-c / (C - 1))) samples, at least one (a long tail as of Cui et al.
    2019). Returns the data set without the held-out samples, and these. Raises `UnalikeError` for a share that is not between 0
    and 1, a class with too few samples, and `imbalance` below 1 or for regression.
    """
    check_kinds(hold_out, {"share": share, "seed": seed, "imbalance": imbalance})
    _check_share(share)
    if not imbalance >= 1 or (imbalance > 1 and data.classes is None):
        expected = "the ratio of two classes, 1 or more"
        if data.classes is None:
            expected = "1, for labels that are no classes"
        raise UnalikeError(f"found imbalance={imbalance!r}, expected {expected}")
    x, y = data.merged()
    first = 0 if data.test is None else len(data.train[1])
    pool = np.arange(first, len(y))
    rng = generator(seed, "hold out")
    if data.classes is None:
        rows = rng.choice(pool, max(1, round(share * len(pool))), replace=False)
    else:
        classes = len(data.classes)
        largest = max(1, round(share * len(pool) / classes))
        counts = []
        for label in range(classes):
            factor = imbalance ** (-label / max(1, classes - 1))
            counts.append(max(1, round(largest * factor)))
        labels = y[torch.from_numpy(pool)].numpy()
        rows = _draw_of_classes(labels, pool, counts, share, rng)
    if data.unit is not None:  # with every unit of a chosen sample
        rows = np.flatnonzero(np.isin(data.units, data.units[rows]))
    others = np.setdiff1d(np.arange(len(y)), rows)
    index = torch.from_numpy(rows)
    return data.taken(others), (take_rows(x, index), y[index])


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UnalikeError(
            f"found a share of {share}, expected the part of the test samples for the server, such "
            "as 0.02"
        )


def hold_out_tests(data: Dataset, share: float) -> tuple[Dataset, Pair]:
    """Hold out test samples for the server: as `hold_out`, or where data with a time has no test set, this share of the latest."""
    if data.time is None or data.test is not None:
        return hold_out(data, share)
    check_kinds(hold_out_tests, {"share": share})
    _check_share(share)
    x, y = data.merged()
    units = len(y) if data.unit is None else len(np.unique(data.units))
    is_test = are_of_latest_units(data.time, data.units, count_of_tests(units, 1 - share))
    tests = torch.from_numpy(is_test)
    return data.taken(np.flatnonzero(~is_test)), (map_inputs(lambda t: t[tests], x), y[tests])


def take_test_set(data: Dataset) -> tuple[Dataset, Pair]:
    """Hold out the published test set for the server; without one, a fifth of all samples. Returns the rest and (x, y)."""
    if data.test is None:
        return hold_out_tests(data, 0.2)
    count = len(data.train[1])
    groups = {column: values[:count] for column, values in data.groups.items()}
    time = None if data.time is None else data.time[:count]
    beside = None if data.beside is None else data.beside.iloc[:count]
    rest = replace(data, test=None, groups=groups, time=time, beside=beside)
    return rest, data.test


def _draw_of_classes(
    labels: np.ndarray, pool: np.ndarray, counts: list[int], share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw `counts[c]` samples of each class c from a pool with these labels, [n], in ascending order."""
    parts = []
    for label, count in enumerate(counts):
        members = pool[labels == label]
        if len(members) < count:
            raise UnalikeError(
                f"class {label} has {len(members)} samples to choose from, expected {count} for a "
                f"share of {share}; lower the share"
            )
        parts.append(rng.choice(members, count, replace=False))
    return np.sort(np.concatenate(parts))
