"""The registry of partition schemes, and the functions that schemes share.

A scheme is a pure function. The names of its positional parameters select its inputs, its keyword-only parameters are options,
and it returns a list of index arrays, or a `Division` with more detail. The inputs are:

    samples   the number of samples N
    labels    [N] integers, booleans or (regression) floats; every class must then have a sample
    columns   column -> [N] integers or texts: the origin of each sample
    held_out  [N] booleans: True for the test samples that are published with the data set
    clients   the number of clients, which the user must give
    wanted    the number of clients, for a scheme that can choose it; None if the user gave none
    seed      the seed of the division
    rng       the scheme's only source of randomness
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.option_types import check_count
from unalike._utils.registry import Registry

registry = Registry("partition", home="unalike.data.partitioning")

MAX_DRAWS = 1000
"""Number of draws before a scheme with a smallest size gives up."""


@dataclass(frozen=True, eq=False)
class Division:
    """The result of a scheme: `owned[k]` are the samples of client k.

    `test[k]` and `val[k]` are its test and validation samples, a subset of `owned[k]`. If `test[k]` is empty or None, the
    samples are divided by `split`; if `val[k]` is empty or None, a share `val` of the training samples is drawn.
    With `all_tests` there are no test samples but those of `test`.
    `stratified`: the test samples that `split` draws are stratified by outcome (`draw_tests`), not a share of shuffled samples.
    `names` are the clients' names, `clusters` [K] their true clusters. `notes` are warnings, such as of clients that get less than
    was asked for.
    """

    owned: list[np.ndarray]
    test: list[np.ndarray] | None = None
    names: list[str] | None = None
    clusters: np.ndarray | None = None
    val: list[np.ndarray] | None = None
    notes: tuple[str, ...] = ()
    stratified: bool = False
    all_tests: bool = False


def by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Return the indices of each class that occurs, smallest label first. Raises `UnalikeError` for labels that are no classes."""
    if labels.dtype.kind == "f":
        raise UnalikeError(
            "this scheme divides by classes, found labels that are no classes: give groups, the owner of each sample, which "
            "'natural' divides by, or use 'iid' or 'quantity(beta=0.5)'"
        )
    return by_value(labels)[1]


def by_value(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the different values, sorted, and the indices of each, in order."""
    kinds, inverse = np.unique(values, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(kinds)))
    return kinds, np.split(order, ends[:-1])


def deal(rows: list[np.ndarray], counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle each class's indices and give client k `counts[c, k]` of `rows[c]`."""
    shares = []
    for row, sizes in zip(rows, counts):
        ends = np.cumsum(sizes)
        shares.append(np.split(rng.permutation(row), ends[:-1]))
    return [np.concatenate(parts) for parts in zip(*shares)]


def check_smallest(name: str, min_size: int, clients: int, samples: int) -> None:
    """Raise `UnalikeError` for a smallest size below 0, or one that there are too few samples for."""
    check_count(name, 0, min_size=min_size)
    if min_size * clients > samples:
        raise UnalikeError(
            f"{name} with min_size={min_size} and {clients} clients needs "
            f"{min_size * clients} samples, found {samples}: lower min_size or clients"
        )


def draw_until_large(name: str, min_size: int, draw: Callable[[], np.ndarray | None]) -> np.ndarray:
    """Return the first drawn counts [..., K] that give every client `min_size` samples; None counts as a failed draw.

    Raises `UnalikeError` after `MAX_DRAWS` draws.
    """
    best = 0
    for _ in range(MAX_DRAWS):
        counts = draw()
        if counts is None:
            continue
        smallest = int(counts.reshape(-1, counts.shape[-1]).sum(0).min())
        if smallest >= min_size:
            return counts
        best = max(best, smallest)
    raise UnalikeError(
        f"{name}: the smallest client reached {best} of min_size={min_size} in the best of "
        f"{MAX_DRAWS} draws; lower min_size or clients, or make the partition more even"
    )
