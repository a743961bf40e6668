"""Compact sequences for millions of clients: index arrays of different lengths, and numbered names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.fingerprint import Widened


class Ragged(Sequence[np.ndarray]):
    """K index arrays of different lengths, stored as one array and K + 1 offsets.

    Both are int32 where the values fit, which halves the memory of a million clients; `ragged[k]` and `sizes` are int64.

    >>> rows = Ragged.of([[4, 2], [], [7]])
    >>> rows[0], rows.sizes
    (array([4, 2]), array([2, 0, 1]))
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: np.ndarray, offsets: np.ndarray):
        self.values = _narrow(np.asarray(values))
        self.offsets = _narrow(np.asarray(offsets))
        ends = self.offsets[[0, -1]].tolist() if len(self.offsets) else []
        falls = (self.offsets[1:] < self.offsets[:-1]).any()
        if ends != [0, len(self.values)] or falls:
            raise UnalikeError(
                f"offsets run over {ends}, expected them to rise from 0 to the {len(self.values)} "
                "values"
            )

    @classmethod
    def of(cls, arrays: Iterable[Any]) -> Ragged:
        """Concatenate one array of indices per client."""
        rows = [np.asarray(array, np.int64) for array in arrays]
        sizes = np.array([len(row) for row in rows], np.int64)
        # An empty row more, because no rows at all cannot be concatenated.
        values = np.concatenate([*rows, np.empty(0, np.int64)])
        return cls(values, _offsets(sizes))

    @classmethod
    def ranges(cls, starts: np.ndarray, sizes: np.ndarray) -> Ragged:
        """Make rows of consecutive numbers: row k is starts[k], ..., starts[k] + sizes[k] - 1."""
        offsets = _offsets(sizes)
        largest = max((starts + sizes).max(initial=0), offsets[-1])
        kind = np.int32 if largest <= MAX_INT32 else np.int64
        # Entry i of row k is starts[k] + (i - offsets[k]); adding in place spares a second array of all entries.
        values = np.repeat((starts - offsets[:-1]).astype(kind), sizes)
        values += np.arange(offsets[-1], dtype=kind)
        return cls(values, offsets)

    @classmethod
    def zeros(cls, sizes: np.ndarray) -> Ragged:
        """Make rows of `sizes[k]` zeros; a broadcast view, so the zeros take no memory."""
        offsets = _offsets(sizes)
        return cls(np.broadcast_to(np.int32(0), offsets[-1]), offsets)

    @classmethod
    def empty(cls, count: int) -> Ragged:
        return cls(np.empty(0, np.int32), np.broadcast_to(np.int32(0), count + 1))

    @property
    def sizes(self) -> np.ndarray:
        """The length of each row, [K]."""
        return np.subtract(self.offsets[1:], self.offsets[:-1], dtype=np.int64)

    @property
    def hashed(self) -> tuple[Widened, Widened]:
        """The values and the offsets as fingerprints hash them, as int64."""
        return Widened(self.values), Widened(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The row of each entry of `values`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, k: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, k: slice) -> Ragged: ...
    def __getitem__(self, k: int | slice) -> np.ndarray | Ragged:
        if isinstance(k, slice):
            return Ragged.of(self[i] for i in range(*k.indices(len(self))))
        if not 0 <= k < len(self):
            k = range(len(self))[k]
        first, end = self.offsets[k], self.offsets[k + 1]
        return self.values[first:end].astype(np.int64)


class NumberedNames(Sequence[str]):
    """The names client-0, client-1, ..., made when they are asked for."""

    __slots__ = ("total",)

    def __init__(self, total: int):
        self.total = total

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, k: int) -> str: ...
    @overload
    def __getitem__(self, k: slice) -> list[str]: ...
    def __getitem__(self, k: int | slice) -> str | list[str]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(self.total))]
        return client_name(range(self.total)[k])

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the number in the name. Raises `ValueError` for any other name."""
        digits = str(name).removeprefix("client-")
        # The name is compared as a whole, since "client-01" has a number, too.
        if digits.isdecimal() and client_name(int(digits)) == name and int(digits) < self.total:
            return int(digits)
        raise ValueError(f"{name!r} is not one of client-0 to client-{self.total - 1}")


def client_name(k: int) -> str:
    """Return the name of the k-th client if it has none of its own."""
    return f"client-{k}"


MAX_INT32 = np.iinfo(np.int32).max
"""The largest number that 32 bits hold."""


def _narrow(values: np.ndarray) -> np.ndarray:
    """Convert integers to int32 if they fit, else to int64."""
    if values.dtype == np.int32:
        return values
    fits = not len(values) or -MAX_INT32 <= values.min() <= values.max() <= MAX_INT32
    kind = np.int32 if fits else np.int64
    return values.astype(kind, copy=False)


def _offsets(sizes: np.ndarray) -> np.ndarray:
    """The place at which each row begins, and the end of the last one, [K + 1]."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
