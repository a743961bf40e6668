"""Schemes in which a class's rank decides its count: `zipf`, `even`, and the FedMix testbed `mixture` with its kinds of clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.option_types import check_positive
from unalike.data.partitioning.scheme import Division, by_class, registry


@registry.register("zipf")
def zipf(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    a: float = 2,
    size: int = 6000,
    order: str = "random",
) -> Division:
    """Label skew by Zipf's law: a client's r-th class gets max(1, floor(size p_r)) samples, p_r ~ r^-a over the C classes.

    `order` ranks the classes of each client: "random" is a permutation per client; "swap" exchanges class 0 and class k mod C
    for client k, as in the FedMix authors' code. A client draws without replacement; clients may overlap; a class with too few
    samples gives all it has.

    Source: FedMix. Limit: a = 0 is `even`.
    """
    rows = by_class(labels)
    counts = _counts(size, a, len(rows))
    ranks = _ranks(order, clients, len(rows), rng)
    owned = [_draw(rows, rank, counts, rng) for rank in ranks]
    scheme = "zipf" if a else "even"
    sizes = [int(counts.sum())] * clients
    return Division(owned, notes=_shortfall(scheme, sizes, owned))


@registry.register("even")
def even(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, size: int = 6000
) -> Division:
    """Every client has max(1, floor(size / C)) samples of each class: `zipf(a=0)`. Clients may overlap. Source: FedMix."""
    return zipf(labels, clients, rng, a=0, size=size)


class Kind(NamedTuple):
    """A kind of client: the exponent a of `zipf`, and its numbers of training and test samples."""

    a: float
    train: int
    test: int

    def scaled(self, factor: float, classes: int) -> Kind:
        """The kind with other numbers of samples, but enough for one of each class."""
        train = max(classes, round(factor * self.train))
        test = max(classes, round(factor * self.test))
        return self._replace(train=train, test=test)


KINDS = {
    "zipf_more": Kind(2, 6000, 1000),
    "zipf_less": Kind(2, 600, 100),
    "even_more": Kind(0, 6000, 1000),
    "even_less": Kind(0, 600, 100),
}
"""The kinds of clients in the FedMix testbed."""

TRAIN_SHARE = 6 / 7
"""Share of each class that is reserved for training, so that no client trains on another client's test samples."""


@registry.register("mixture")
def mixture(
    labels: np.ndarray,
    wanted: int | None,
    rng: np.random.Generator,
    *,
    zipf_more: int = 0,
    zipf_less: int = 0,
    even_more: int = 0,
    even_less: int = 0,
    scale: float = 1,
    order: str = "random",
) -> Division:
    """Clients of several kinds: the number of each, such as mixture(zipf_more=9, even_more=1).

    "zipf" and "even" are the schemes of those names. "more" has 6000 training and 1000 test samples, "less" 600 and 100, both
    with the same order of classes. Training and test samples come from separate parts of each class; clients may overlap within
    a part; a class with too few samples gives all it has there. `scale` multiplies the numbers of samples, such as 0.25 for data
    with few samples or for cheap trials; every client keeps at least one sample of each class. `split` is not used.

    Source: FedMix. Limit: scale = 1 is the paper's testbed.
    """
    numbers = {
        "zipf_more": zipf_more,
        "zipf_less": zipf_less,
        "even_more": even_more,
        "even_less": even_less,
    }
    if min(numbers.values()) < 0 or not any(numbers.values()):
        raise UnalikeError(
            f"mixture: found {numbers}, expected numbers of clients such as zipf_more=9, "
            "even_more=1"
        )
    check_positive("mixture", scale=scale)
    kinds: list[Kind] = []
    for name, number in numbers.items():
        kinds += [KINDS[name]] * number
    if scale != 1:
        classes = len(np.unique(labels))
        kinds = [kind.scaled(scale, classes) for kind in kinds]
    if wanted not in (None, len(kinds)):
        raise UnalikeError(
            f"mixture: the kinds add up to {len(kinds)} clients, found clients={wanted}; make them "
            "equal"
        )
    return _testbed(labels, kinds, order, rng)


def _register_uniform(name: str, kind: Kind) -> None:
    def uniform(
        labels: np.ndarray, clients: int, rng: np.random.Generator, *, order: str = "random"
    ) -> Division:
        return _testbed(labels, [kind] * clients, order, rng)

    uniform.__doc__ = f"All clients are of the FedMix kind {name}: {kind.train} training and {kind.test} test samples."
    registry.register(name)(uniform)


for _name, _kind in KINDS.items():
    _register_uniform(_name, _kind)


def _testbed(
    labels: np.ndarray, kinds: list[Kind], order: str, rng: np.random.Generator
) -> Division:
    """One client of each kind; training and test samples come from separate parts of each class."""
    train, test = [], []
    for row in by_class(labels):
        # 0.29 * 100 is 28.999...: the small term keeps floor from losing a sample to rounding.
        cut = max(1, int(TRAIN_SHARE * len(row) + 1e-9))
        mixed = rng.permutation(row)
        train.append(mixed[:cut])
        test.append(mixed[cut:])

    classes = len(train)
    owned, tests, sizes = [], [], []
    for kind, rank in zip(kinds, _ranks(order, len(kinds), classes, rng)):
        test_counts = _counts(kind.test, kind.a, classes)
        train_counts = _counts(kind.train, kind.a, classes)
        test_rows = _draw(test, rank, test_counts, rng)
        train_rows = _draw(train, rank, train_counts, rng)
        tests.append(test_rows)
        owned.append(np.concatenate([train_rows, test_rows]))
        sizes.append(int(train_counts.sum() + test_counts.sum()))
    return Division(owned, tests, notes=_shortfall("mixture", sizes, owned))


def _shortfall(scheme: str, sizes: list[int], owned: list[np.ndarray]) -> tuple[str, ...]:
    """A note, with numbers, if clients get fewer samples than the `sizes` that the scheme asks for."""
    short = [(len(rows), size) for rows, size in zip(owned, sizes) if len(rows) < size]
    if not short:
        return ()
    smallest, expected = min(short)
    return (
        f"{scheme}: {len(short)} of {len(owned)} clients get fewer samples than asked for, "
        f"the smallest {smallest:,} instead of {expected:,}, because their classes have "
        "too few samples; give more data or smaller clients",
    )


def _counts(size: int, a: float, classes: int) -> np.ndarray:
    """Return max(1, floor(size p_r)) for each rank r, [C]."""
    if size < classes:
        raise UnalikeError(
            f"zipf: found size={size}, expected at least one sample for each of the {classes} "
            "classes"
        )
    if not 0 <= a < math.inf:
        raise UnalikeError(
            f"zipf: found a={a!r}, expected the exponent, a finite number of 0 or more"
        )
    p = np.arange(1, classes + 1, dtype=float) ** -a
    # 0.1 * 6000 / (10 * 0.1) may fall short of 600 by rounding.
    counts = np.floor(size * p / p.sum() + 1e-9).astype(np.int64)
    return np.maximum(1, counts)


def _draw(
    rows: list[np.ndarray], rank: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw `counts[r]` samples, or all if there are fewer, of the class `rank[r]` for each rank r."""
    parts = []
    for c, count in zip(rank, counts):
        parts.append(rng.choice(rows[c], min(count, len(rows[c])), replace=False))
    return np.concatenate(parts)


def _ranks(order: str, clients: int, classes: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return each client's classes, the most frequent first."""
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    return [ORDERS[order](k, classes, rng) for k in range(clients)]


def _swapped(k: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    order = np.arange(classes)
    order[[0, k % classes]] = order[[k % classes, 0]]
    return order


ORDERS: dict[str, Callable[[int, int, np.random.Generator], np.ndarray]] = {
    "random": lambda k, classes, rng: rng.permutation(classes),
    "swap": _swapped,
}
