"""Samples that are held out for the server before the data is divided among clients."""

from __future__ import annotations

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.option_types import check_kinds
from unalike._utils.seeds import generator
from unalike.data.array_checks import Pair
from unalike.data.dataset import Dataset


def hold_out(data: Dataset, share: float, seed: int = 0, imbalance: float = 1.0) -> tuple[Dataset, Pair]:
    """Hold out a share of the test samples as proxy data for methods that learn on the server.

    No unit of the data is divided: the server gets all samples of a chosen one's unit. But for that,
    the held-out samples have the same number of each class, n = round(share * tests / classes), at least one; for regression they
    are drawn at random. If there are no test samples, training samples are taken. Li et al. 2023 (FedLAW) hold out 2 %.

    Args:
        data: The data set.
        share: The share of the test samples to hold out.
        seed: The seed of the draw.
        imbalance: Ratio of the largest to the smallest class among the held-out samples: class c of C gets
            round(n * imbalance ** (-c / (C - 1))) of them, at least one (a long tail as of Cui et al. 2019).

    Returns:
        The data set without the held-out samples, and the held-out (x, y).

    Raises:
        UnalikeError: The share is not between 0 and 1, a class has too few samples, or `imbalance` is below 1 or given for
            regression.
    """
    check_kinds(hold_out, {"share": share, "seed": seed, "imbalance": imbalance})
    if not 0 < share < 1:
        raise UnalikeError(
            f"found a share of {share}, expected the part of the test samples for the server, such as 0.02"
        )
    if not imbalance >= 1 or (imbalance > 1 and data.classes is None):
        expected = (
            "1, for labels that are no classes" if data.classes is None else "the ratio of two classes, 1 or more"
        )
        raise UnalikeError(f"found imbalance={imbalance!r}, expected {expected}")
    x, y = data.merged()
    trains = len(data.train[1])
    pool = np.arange(trains if data.test is not None else 0, len(y))
    rng = generator(seed, "hold out")
    if data.classes is None:
        chosen = rng.choice(pool, max(1, round(share * len(pool))), replace=False)
    else:
        each = _sizes(share * len(pool), len(data.classes), imbalance)
        chosen = _drawn(y[torch.from_numpy(pool)].numpy(), pool, each, share, rng)
    if data.unit is not None:  # with every unit of a chosen sample
        chosen = np.flatnonzero(np.isin(data.units, data.units[chosen]))
    held = torch.from_numpy(chosen)
    return data.taken(np.setdiff1d(np.arange(len(y)), chosen)), (x[held], y[held])


def test_apart(data: Dataset, share: float = 0.2) -> tuple[Dataset, Pair]:
    """Hold out the published test set for the server; without one, a `share` of all samples. Returns the rest and (x, y)."""
    if data.test is None:
        return hold_out(data, share)
    count = len(data.train[1])
    groups = {column: values[:count] for column, values in data.groups.items()}
    own = Dataset.divided(data.name, *data.train, count, data.classes, groups, data.encoding, data.unit, data.published)
    return own, data.test


def _sizes(samples: float, classes: int, imbalance: float) -> list[int]:
    """The number of held-out samples of each class."""
    largest = max(1, round(samples / classes))
    return [max(1, round(largest * imbalance ** (-label / max(1, classes - 1)))) for label in range(classes)]


def _drawn(labels: np.ndarray, pool: np.ndarray, each: list[int], share: float, rng: np.random.Generator) -> np.ndarray:
    chosen = []
    for label, count in enumerate(each):
        members = pool[labels == label]
        if len(members) < count:
            raise UnalikeError(
                f"class {label} has {len(members)} samples to choose from, expected {count} for a share of {share}; lower the share"
            )
        chosen.append(rng.choice(members, count, replace=False))
    return np.sort(np.concatenate(chosen))
