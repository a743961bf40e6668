"""The table of partition schemes.

A scheme is a pure function that asks for what it needs by the names of its positional parameters, takes its options as
keyword-only parameters and returns a list of index arrays, or a `Division` that says more:

    samples   the number of samples N
    labels    [N] integers, booleans or (regression) floats; a scheme that asks for them divides by classes
    columns   column -> [N] integers or texts: where each sample comes from
    held_out  [N] booleans: whether the data publishes the sample as a test sample
    clients   the number of clients asked for; `wanted` for a scheme that can do without (None: it was not said)
    rng       the scheme's only randomness
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry

registry = Registry("partition", home="unalike.data.partitioning")

DRAWS = 1000
"""How often a scheme with a smallest size draws before it gives up."""


@dataclass(frozen=True, eq=False)
class Division:
    """Who owns what: `owned[k]` are the samples of client k.

    `test[k]` are those of them that test (none: the client's samples are divided by `split`), `val[k]` those that
    validate (none: a share `val` of its training samples); `names` are the clients' names; `clusters` [K] numbers the
    true cluster of each.
    """

    owned: list[np.ndarray]
    test: list[np.ndarray] | None = None
    names: list[str] | None = None
    clusters: np.ndarray | None = None
    val: list[np.ndarray] | None = None


def by_class(labels: np.ndarray) -> list[np.ndarray]:
    """The indices of each class that occurs, smallest label first. Raises `UnalikeError` for regression labels."""
    if labels.dtype.kind == "f":
        raise UnalikeError("this scheme divides by classes, found regression labels; use 'iid' or 'quantity(beta=0.5)'")
    kinds, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    return np.split(order, np.cumsum(np.bincount(inverse, minlength=len(kinds)))[:-1])


def deal(rows: list[np.ndarray], counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle each class's indices and deal them out: client k gets `counts[c, k]` of `rows[c]`."""
    hands = [np.split(rng.permutation(row), np.cumsum(count)[:-1]) for row, count in zip(rows, counts)]
    return [np.concatenate(hand) for hand in zip(*hands)]


def check_positive(name: str, **values: float) -> None:
    """Refuse a parameter that is not a finite number above 0."""
    for parameter, value in values.items():
        if not (isinstance(value, Real) and 0 < value < np.inf):
            raise UnalikeError(f"{name}: found {parameter}={value!r}, expected a finite number above 0")


def check_not_negative(name: str, **values: float) -> None:
    """Refuse a parameter that is not a finite number of 0 or more."""
    for parameter, value in values.items():
        if not (isinstance(value, Real) and 0 <= value < np.inf):
            raise UnalikeError(f"{name}: found {parameter}={value!r}, expected a finite number of 0 or more")


def check_count(name: str, least: int = 1, /, **values: int) -> None:
    """Refuse a parameter that is not a whole number of `least` or more."""
    for parameter, value in values.items():
        if not (isinstance(value, Integral) and value >= least):
            raise UnalikeError(f"{name}: found {parameter}={value!r}, expected a whole number of {least} or more")


def check_smallest(name: str, min_size: int, clients: int, samples: int) -> None:
    """Refuse a smallest size below 0, and one that the samples cannot give to every client."""
    check_count(name, 0, min_size=min_size)
    if min_size * clients > samples:
        raise UnalikeError(
            f"{name} with min_size={min_size} and {clients} clients needs {min_size * clients} samples, "
            f"found {samples}: lower min_size or clients"
        )


def gave_up(name: str, best: int, min_size: int) -> UnalikeError:
    """The error after `DRAWS` draws of which none gave every client enough."""
    return UnalikeError(
        f"{name}: the smallest client reached {best} of min_size={min_size} in the best of {DRAWS} draws; "
        "lower min_size or clients, or make the partition more even"
    )
