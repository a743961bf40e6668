"""A table with a tree in each row, growing by blocks, and the index from (client, round) to row."""

import mmap
from collections.abc import Callable, Iterator
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree

MIN_BLOCK_BYTES = 2**20
"""Least number of bytes of a block."""
ALIGNMENT_BYTES = 64
"""Columns start at multiples of this many bytes."""
NO_ROUND = -1
"""Round of a row without a state."""


class TableBlock(NamedTuple):
    """Rows of a table from `first` on: for each name a column [rows, ...]."""

    first: int
    columns: Tree

    @property
    def device(self) -> torch.device:
        return next(iter(self.columns.values())).device


class StateTable:
    """Trees like `like`, one in a row: on its device up to `budget` bytes, beyond that in memory-mapped temporary files.

    Row 0 holds `like` itself. Rows stay where they are, so that growing copies nothing. What is read are copies, contiguous
    ones, as a file would hold them: a run that goes on from files computes the same.
    """

    def __init__(self, like: Tree, budget: int):
        self.like = like
        self.budget = budget
        self.rows = 0
        self._blocks: list[TableBlock] = []
        self._row_bytes = max(1, tree.nbytes(like))

    @property
    def device(self) -> torch.device:
        return next(iter(self.like.values())).device

    def read(self, rows: np.ndarray) -> Tree:
        """Copies of these rows, stacked along a leading [K]."""
        parts = [*self._parts(rows)]
        # rows of one block are in the right order already
        if len(parts) == 1:
            [(block, _, at)] = parts
            return tree.map(
                lambda column: column.index_select(0, at).to(self.device), block.columns
            )
        stacked = tree.map(lambda t: t.new_empty(len(rows), *t.shape), self.like)
        for block, places, at in parts:
            for name, t in stacked.items():
                values = block.columns[name].index_select(0, at)
                t.index_copy_(0, places, values.to(self.device))
        return stacked

    def write(self, rows: np.ndarray, stacked: Tree) -> None:
        """Write trees, stacked along a leading [K], over these rows."""
        parts = [*self._parts(rows)]
        for block, places, at in parts:
            for name, column in block.columns.items():
                values = stacked[name].detach().to(self.device)
                # large ones are not copied twice
                if len(parts) > 1:
                    values = values.index_select(0, places)
                column.index_copy_(0, at, values.to(block.device))

    def _parts(self, rows: np.ndarray) -> Iterator[tuple[TableBlock, Tensor, Tensor]]:
        """Each block that holds some of the rows, the places of these among all `rows`, and their places in the block."""
        while self.rows <= rows.max(initial=0):
            self._grow()
        first_rows = [block.first for block in self._blocks]
        block_of_row = np.searchsorted(first_rows, rows, side="right") - 1
        for number in np.unique(block_of_row).tolist():
            block = self._blocks[number]
            places = np.flatnonzero(block_of_row == number)
            at = torch.from_numpy(rows[places].astype(np.int64) - block.first)
            yield block, torch.from_numpy(places).to(self.device), at.to(block.device)

    def _grow(self) -> None:
        """Add a block of a quarter of the rows so far: few blocks, and little unused room."""
        rows = max(1, MIN_BLOCK_BYTES // self._row_bytes, self.rows // 4)
        used_bytes = sum(tree.nbytes(block.columns) for block in self._blocks)
        rows_in_budget = (self.budget - used_bytes) // self._row_bytes
        if rows_in_budget > 0:
            rows = min(rows, rows_in_budget)
            columns = _columns(self.like, rows, self._beside)
        else:
            columns = _columns(self.like, rows, _mapped)
        # row 0 holds `like` itself
        if not self._blocks:
            for name, t in self.like.items():
                columns[name][0].copy_(t.detach())
        self._blocks.append(TableBlock(self.rows, columns))
        self.rows += rows

    def _beside(self, size: int) -> Tensor:
        """Bytes on the device of `like`. On a CPU they are pages of their own, so that other tensors do not fragment them."""
        if self.device.type != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        pages = mmap.mmap(-1, max(1, size), access=mmap.ACCESS_COPY)
        # a page that is touched for the first time costs as much as a step of a small model
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return _bytes(pages)[:size]


class RowIndex:
    """Index from (client, round) to row. The rows of a client are a linked list, newest first, that ends with row 0."""

    def __init__(self) -> None:
        # by client
        self._newest = np.zeros(0, np.int32)
        # by row: the same client's row before it, and its round
        self._before = np.zeros(1, np.int32)
        self._round = np.full(1, NO_ROUND, np.int32)
        self._used = 1
        self._free = np.zeros(0, np.int32)

    def find(self, clients: np.ndarray, rounds: np.ndarray) -> np.ndarray:
        """The row of each client's round, [K]; 0 where there is none."""
        rows_of_round = np.zeros(len(clients), np.int32)
        for rows in self._chains(clients):
            np.copyto(rows_of_round, rows, where=self._round[rows] == rounds)
        return rows_of_round

    def keep(self, clients: np.ndarray, rounds: np.ndarray) -> None:
        """Free the clients' rows except those of `rounds`, [n, K]."""
        newest = np.zeros(len(clients), np.int32)
        free = [self._free]
        # from the oldest on, each row that stays points to the one before it that stays
        for rows in reversed([*self._chains(clients)]):
            is_row = rows > 0
            stays = is_row & (self._round[rows] == rounds).any(0)
            self._before[rows[stays]] = newest[stays]
            newest[stays] = rows[stays]
            free.append(rows[is_row & ~stays])
        self._newest[clients] = newest
        # at last: whatever interrupts this, no row is both free and in a chain
        self._free = np.sort(np.concatenate(free))

    def free(self, count: int) -> np.ndarray:
        """The first `count` unused rows."""
        fresh = self._used + np.arange(max(0, count - len(self._free)), dtype=np.int32)
        return np.append(self._free[:count], fresh)

    def add(self, clients: np.ndarray, round: int, rows: np.ndarray) -> None:
        """Enter the rows of `clients` in `round`; `rows` were `free`."""
        self._free = self._free[np.count_nonzero(rows < self._used) :]
        self._used = max(self._used, int(rows.max()) + 1)
        self._before = _long(self._before, self._used)
        self._round = _long(self._round, self._used)
        self._before[rows] = self._newest[clients]
        self._round[rows] = round
        self._newest[clients] = rows

    def _chains(self, clients: np.ndarray) -> Iterator[np.ndarray]:
        """The clients' newest rows, those before them, and so on, as long as there are any."""
        self._newest = _long(self._newest, int(clients.max(initial=-1)) + 1)
        rows = self._newest[clients]
        while rows.any():
            yield rows
            rows = self._before[rows]


def _columns(like: Tree, rows: int, allocate: Callable[[int], Tensor]) -> Tree:
    """A column [rows, ...] for each tensor of `like`, in one piece of memory; `allocate` makes so many bytes."""
    sizes = [rows * t.nbytes for t in like.values()]
    aligned_sizes = [-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes]
    pieces = allocate(sum(aligned_sizes)).split(aligned_sizes)
    columns = {}
    for piece, size, (name, t) in zip(pieces, sizes, like.items(), strict=True):
        columns[name] = piece[:size].view(t.dtype).view(rows, *t.shape)
    return columns


def _mapped(size: int) -> Tensor:
    """Bytes of a temporary file that is deleted with them."""
    with TemporaryFile(prefix="unalike-") as file:
        file.truncate(max(1, size))
        return _bytes(mmap.mmap(file.fileno(), 0))[:size]


def _bytes(pages: mmap.mmap) -> Tensor:
    return torch.frombuffer(pages, dtype=torch.uint8)


def _long(array: np.ndarray, size: int) -> np.ndarray:
    """The array with room for `size` entries."""
    if size <= len(array):
        return array
    # more than it takes, so that it seldom grows
    longer = np.zeros(max(size, len(array) * 5 // 4), array.dtype)
    longer[: len(array)] = array
    return longer
