"""Division into training and test samples: how many test, and by time which: the later ones."""

import numpy as np

LATER = "later"
"""The value of `split` for which the order of the samples is their time."""


def count_of_tests(count: int, split: float, min_test: int = 0) -> int:
    """The number of n = `count` units that test: all but floor(split n), of which there is at least 1 and `min_test` are left."""
    trains = min(max(floor_of_share(split, count), 1), max(count - min_test, 0))
    return count - trains


def floor_of_share(share: float, count: int) -> int:
    """floor(share n) of n = `count` units."""
    # 0.29 * 100 is 28.999...: the small term keeps floor from losing a unit to rounding
    return int(share * count + 1e-9)


def are_latest(moments: np.ndarray, count: int) -> np.ndarray:
    """Whether each moment is one of the `count` latest, bool [n].

    Equal moments are on one side, so that more than `count` may be chosen; those of the first moment never are.
    """
    if not count:
        return np.zeros(len(moments), bool)
    first_chosen = np.sort(moments)[-count]
    if first_chosen == moments.min():
        return moments > first_chosen
    return moments >= first_chosen


def are_of_latest_units(moments: np.ndarray, units: np.ndarray | None, count: int) -> np.ndarray:
    """Whether each sample is of one of the `count` latest units, bool [n]; `units` [n] of the samples, None: each is one by itself.

    The moment of a unit, such as a patient, is that of its first sample.
    """
    if units is None:
        return are_latest(moments, count)
    _, place = np.unique(units, return_inverse=True)
    return are_latest(first_moments(moments, place), count)[place]


def first_moments(moments: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The earliest moment of each unit, [units]; `place` [n] is the number of each sample's unit."""
    first = np.full(place.max(initial=-1) + 1, np.inf)
    np.minimum.at(first, place, moments)
    return first
