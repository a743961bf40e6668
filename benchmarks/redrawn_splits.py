"""Simulate intervals for other patients of the same hospitals: real models, trained again on redrawn splits.

    python benchmarks/redrawn_splits.py [data sets per row, 400 unless given]

A data set is drawn from known hospitals, two methods are trained on each split of it, and the interval of their mean difference is
compared with the true one: the expected difference over new data sets and new patients of these hospitals.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import numpy as np

from unalike.statistics.moderated_t import moderated_t

HOSPITALS: dict[str, tuple[list[int], float]] = {
    "4 hospitals of 40 to 300": ([40, 90, 160, 300], 0.5),
    "the same, 1 in 7 ill": ([40, 90, 160, 300], 0.14),
    "10 hospitals of 30": ([30] * 10, 0.5),
}
"""Name -> patients of each hospital, and about the share of them that is ill."""
FEATURES = 8
EVERY = list(range(FEATURES + 1))
Methods = tuple[tuple[bool, list[int]], tuple[bool, list[int]]]
PAIRS: dict[str, Methods] = {
    "local against shared": ((True, EVERY), (False, EVERY)),
    "no difference": ((True, [0, 1, 2, 3, 4, 5, FEATURES]), (True, [2, 3, 4, 5, 6, 7, FEATURES])),
}
"""Name -> two methods: whether hospitals share a model, and its features. Features are alike, so that the second pair is equal."""
STEPS, TRUTHS = 12, 200
Rule = Callable[[np.random.Generator, np.ndarray, np.ndarray, int], np.ndarray]


def patients(
    rng: np.random.Generator, sets: int, sizes: list[int], ill: float
) -> tuple[np.ndarray, ...]:
    """Inputs [sets, N, D], labels [sets, N] and hospitals [N]; hospitals differ in their share of ill patients."""
    hospital = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.standard_normal((sets, len(hospital), FEATURES))
    offset = np.linspace(-0.7, 0.7, len(sizes)) + 1.3 * np.log(ill / (1 - ill))
    y = rng.random((sets, len(hospital))) < 1 / (1 + np.exp(-0.6 * x.sum(-1) - offset[hospital]))
    return np.concatenate([x, np.ones((*y.shape, 1))], -1), y.astype(float), hospital


def fixed(rng: np.random.Generator, y: np.ndarray, hospital: np.ndarray, seeds: int) -> np.ndarray:
    """Test samples [sets, seeds, N]: the same for all seeds, as every fifth row was."""
    return np.repeat(_drawn(rng, y, hospital, 1, None), seeds, axis=1)


def redrawn(
    rng: np.random.Generator, y: np.ndarray, hospital: np.ndarray, seeds: int
) -> np.ndarray:
    """Others for each seed: a quarter of each hospital's patients, stratified."""
    return _drawn(rng, y, hospital, seeds, None)


def five_folds(
    rng: np.random.Generator, y: np.ndarray, hospital: np.ndarray, seeds: int
) -> np.ndarray:
    """The folds of repeated 5-fold cross-validation."""
    return _drawn(rng, y, hospital, seeds, 5)


def _drawn(
    rng: np.random.Generator, y: np.ndarray, hospital: np.ndarray, seeds: int, folds: int | None
) -> np.ndarray:
    """The draws of `unalike.data.partitioning.hold_out.draw_tests`, for many data sets at once."""
    sets, tests = len(y), np.zeros((len(y), seeds, len(hospital)), bool)
    for k in np.unique(hospital):
        rows = np.flatnonzero(hospital == k)
        n, drawn = len(rows), seeds if folds is None else -(-seeds // folds)
        order = (y[:, None, rows] + rng.random((sets, drawn, n))).argsort(-1)
        own = np.zeros((sets, seeds, n), bool)
        if folds is None:
            size = n - int(0.75 * n)
            places = ((np.arange(size) + rng.random((sets, seeds, 1))) * n / size).astype(int)
            np.put_along_axis(own, np.take_along_axis(order, places, -1), True, -1)
        else:
            fold = np.zeros((sets, drawn, n), int)
            of_place = (np.arange(n) + rng.integers(folds, size=(sets, drawn, 1))) % folds
            np.put_along_axis(fold, order, of_place, -1)
            own = np.stack([fold[:, j // folds] == j % folds for j in range(seeds)], 1)
        tests[:, :, rows] = own
    return tests


def logits(
    rng: np.random.Generator,
    x: np.ndarray,
    y: np.ndarray,
    hospital: np.ndarray,
    train: np.ndarray,
    shared: bool,
) -> np.ndarray:
    """Logits [sets, seeds, N] of logistic regressions, trained from random weights by a few steps of gradient descent."""
    found = np.zeros(train.shape)
    groups = (
        [np.arange(len(hospital))]
        if shared
        else [np.flatnonzero(hospital == k) for k in np.unique(hospital)]
    )
    for rows in groups:
        inputs, weight = x[:, rows], train[:, :, rows].astype(float)
        model = 0.3 * rng.standard_normal((*train.shape[:2], x.shape[-1]))
        for _ in range(STEPS):
            risk = 1 / (1 + np.exp(-model @ inputs.swapaxes(1, 2)))
            slope = ((risk - y[:, None, rows]) * weight) @ inputs + 0.1 * model
            model = model - 2.5 * slope / (weight.sum(-1, keepdims=True) + 1)
        found[:, :, rows] = model @ inputs.swapaxes(1, 2)
    return found


def differences(
    rng: np.random.Generator,
    x: np.ndarray,
    y: np.ndarray,
    hospital: np.ndarray,
    tests: np.ndarray,
    pair: str,
) -> np.ndarray:
    """Accuracy of the second method minus that of the first, [sets, seeds]."""
    right = [
        (logits(rng, x[..., kept], y, hospital, ~tests, shared) > 0) == (y[:, None] > 0.5)
        for shared, kept in PAIRS[pair]
    ]
    return np.asarray((tests * (right[1] * 1.0 - right[0])).sum(-1) / tests.sum(-1))


@cache
def expected_difference(hospitals: str, pair: str) -> float:
    """The true difference: over data sets, trained on three quarters of their sizes, of many new patients."""
    if pair == "no difference":
        return 0.0
    sizes, ill = HOSPITALS[hospitals]
    rng = np.random.default_rng(1)
    x, y, hospital = patients(rng, TRUTHS, [4 * size for size in sizes], ill)
    train = np.concatenate([np.arange(4 * size) < int(0.75 * size) for size in sizes])
    right = [
        (
            (logits(rng, x[..., kept], y, hospital, np.tile(train, (TRUTHS, 1, 1)), shared) > 0)[
                :, 0
            ]
            == (y > 0.5)
        )
        for shared, kept in PAIRS[pair]
    ]
    return float((right[1][:, ~train] * 1.0 - right[0][:, ~train]).mean())


@cache
def simulated(
    sets: int, hospitals: str, pair: str, seeds: int, rule: Rule, corrected: bool, gain: float = 0.0
) -> tuple[float, float, float]:
    """Shares of data sets whose interval covers the truth, and in which the second method is better at 5 %; mean width.

    `gain` is added to every difference, as if the second method were better by so much.
    """
    d, overlap = _differences(sets, hospitals, pair, seeds, rule)
    found = moderated_t(d[:, :, None] + gain, overlap=overlap if corrected else 0.0)
    true = expected_difference(hospitals, pair) + gain
    low, high = found.low[:, 0], found.high[:, 0]
    return (
        float(((low <= true) & (true <= high)).mean()),
        float((low > 0).mean()),
        float(np.nanmean(high - low)),
    )


@cache
def _differences(
    sets: int, hospitals: str, pair: str, seeds: int, rule: Rule
) -> tuple[np.ndarray, float]:
    """Differences [sets, seeds], and test samples divided by training samples."""
    rng = np.random.default_rng(seeds)
    x, y, hospital = patients(rng, sets, *HOSPITALS[hospitals])
    tests = rule(rng, y, hospital, seeds)
    return differences(rng, x, y, hospital, tests, pair), float(
        tests[0, 0].sum() / (~tests[0, 0]).sum()
    )


RULES: dict[str, tuple[Rule, bool]] = {
    "fixed": (fixed, False),
    "redrawn": (redrawn, False),
    "corrected": (redrawn, True),
    "folds": (five_folds, True),
}
"""Name -> how test samples are drawn, and whether the test allows for overlapping training sets."""


def main(sets: int) -> None:
    heads = [f"{n} seeds: {' / '.join(RULES)}" for n in (3, 5, 10)]
    for title, pair, number in (
        ("Coverage of the 95 % interval, %", None, 0),
        ("Called better, %, without a difference", "no difference", 1),
        ("Width of the interval, points", "no difference", 2),
    ):
        print(
            f"\n{title}\n\n| Hospitals | Methods | {' | '.join(heads)} |\n| :-- | :-- | --: | --: | --: |"
        )
        for hospitals in HOSPITALS:
            for name in [pair] if pair else PAIRS:
                cells = [
                    " / ".join(
                        f"{100 * simulated(sets, hospitals, name, n, *rule)[number]:.{min(1, number)}f}"
                        for rule in RULES.values()
                    )
                    for n in (3, 5, 10)
                ]
                print(f"| {hospitals} | {name} | {' | '.join(cells)} |", flush=True)
    print(
        "\nCalled better, %, by `corrected`, if the second method is better by 2 / 5 / 10 points\n"
    )
    print("| Hospitals | 3 seeds | 5 seeds | 10 seeds |\n| :-- | --: | --: | --: |")
    for hospitals in HOSPITALS:
        cells = [
            " / ".join(
                f"{100 * simulated(sets, hospitals, 'no difference', n, redrawn, True, gain)[1]:.0f}"
                for gain in (0.02, 0.05, 0.1)
            )
            for n in (3, 5, 10)
        ]
        print(f"| {hospitals} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
