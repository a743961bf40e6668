"""The batches of clients: the order of many at once, and the samples of one, fetched a few at a time while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Protocol, TypeGuard

import numpy as np
import torch
from torch import Tensor

from unalike._utils import seeds
from unalike._utils.profiler_regions import profiled
from unalike.core.inputs import Inputs, sample_bytes, split_rows
from unalike.core.types import Batch
from unalike.core.work import Batches, LazySequence, Work, share_of_steps
from unalike.loops import crew as compiled_loops

MIN_CLIENTS_FOR_LOOPS = 32
"""Clients from which on the compiled loops are loaded: loading takes as long as NumPy takes to draw for hundreds."""
FETCHED_BYTES = 2**23
"""Bytes of samples fetched at once (or one batch, if it is larger): one large gather is faster than many small ones."""


class Indices(Protocol):
    """One index array per client."""

    def __getitem__(self, k: int) -> np.ndarray: ...


class Flat(Indices, Protocol):
    """Index arrays in one array: client k has values[offsets[k]:offsets[k + 1]]."""

    @property
    def values(self) -> np.ndarray: ...
    @property
    def offsets(self) -> np.ndarray: ...


def is_flat(rows: Indices) -> TypeGuard[Flat]:
    """Whether the index arrays are one array.

    `isinstance` with a protocol would take as long as drawing for a hundred clients.
    """
    return hasattr(rows, "offsets")


def distinct(numbers: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The distinct values of some whole numbers, and the index of each number's value; fast if all are equal."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [int(numbers[0])], np.zeros(len(numbers), np.int64)
    values, which = np.unique(numbers, return_inverse=True)
    return values.tolist(), which


class BatchSchedule(LazySequence[Batches]):
    """The batches of clients in one phase of a round.

    `rows` are the sample indices of all clients, one after the other; `kinds` distinct tuples of batch sizes, of which there
    are few, since clients with equally many samples share one; `which` is the kind of each client.
    """

    def __init__(self, rows: np.ndarray, kinds: Sequence[tuple[int, ...]], which: np.ndarray):
        self.rows = rows
        self.kinds = kinds
        self.which = which

    @classmethod
    def of(cls, batches: Sequence[Batches]) -> BatchSchedule:
        """The schedule of clients with these batches."""
        kinds = list(dict.fromkeys(b.sizes for b in batches))
        numbers = {sizes: number for number, sizes in enumerate(kinds)}
        which = np.array([numbers[b.sizes] for b in batches], np.int64)
        # an empty array first, or no clients would leave nothing to join
        rows = np.concatenate([np.zeros(0, np.int64), *(b.rows for b in batches)])
        return cls(rows, kinds, which)

    @classmethod
    def nothing(cls, clients: int) -> BatchSchedule:
        """The schedule of clients without batches."""
        return cls(np.zeros(0, np.int64), [()], np.zeros(clients, np.int64))

    @classmethod
    def drawn(
        cls, work: Work, rows: Indices, ids: Sequence[int], number: int, purpose: str, *path: int
    ) -> BatchSchedule:
        """`work.batches(rows[k], seeds.generator(number, purpose, *path, k))` of each client; compiled loops draw the same bits."""
        loops = None
        # the loop uses every row of a permutation
        if len(ids) >= MIN_CLIENTS_FOR_LOOPS and not work.drop_last:
            loops = compiled_loops.loops("unalike.loops.shuffle_loops")
        if loops is None or not is_flat(rows):
            batches = []
            for client in ids:
                rng = seeds.generator(number, purpose, *path, client)
                batches.append(work.batches(rows[client], rng))
            return cls.of(batches)

        clients = np.array(ids, np.int64)
        starts = rows.offsets[clients].astype(np.int64)
        counts = rows.offsets[clients + 1] - starts
        distinct_counts, which = distinct(counts)
        kinds = [work.sizes_for(count) for count in distinct_counts]
        schedule = cls(np.zeros(0, np.int64), kinds, which)
        schedule.rows = np.empty(schedule.ends[-1], np.int64)
        # the loop continues each client's entropy with its number, as `seeds.generator` does
        head = np.array(seeds.entropy(number, purpose, *path), np.uint32)
        loops.shuffle(
            head,
            clients.astype(np.uint32),
            rows.values,
            starts,
            counts,
            schedule.ends,
            schedule.rows,
        )
        return schedule

    def shortened(self, shares: np.ndarray) -> BatchSchedule:
        """The schedule of the clients' first batches: a share of each one's, rounded down."""
        shortened = []
        for batches, share in zip(self, shares.tolist(), strict=True):
            sizes = batches.sizes[: share_of_steps(len(batches), share)]
            shortened.append(Batches(batches.rows[: sum(sizes)], sizes))
        return BatchSchedule.of(shortened)

    @cached_property
    def ends(self) -> np.ndarray:
        """The first entry of each client in `rows`, and the end of the last one."""
        rows_of_kind = np.array([sum(sizes) for sizes in self.kinds], np.int64)
        return np.concatenate([[0], np.cumsum(rows_of_kind[self.which])])

    @property
    def sizes(self) -> np.ndarray:
        """The batch sizes of all clients [K, T]; 0 after a client's last batch."""
        by_step = np.array([*zip_longest(*self.kinds, fillvalue=0)], np.int64)
        by_kind = np.ascontiguousarray(by_step.reshape(-1, len(self.kinds)).T)
        return by_kind[self.which]

    def __len__(self) -> int:
        return len(self.which)

    def __iter__(self) -> Iterator[Batches]:
        bounds = pairwise(self.ends.tolist())
        for (start, end), kind in zip(bounds, self.which.tolist(), strict=True):
            yield Batches(self.rows[start:end], self.kinds[kind])


class LazyBatches(LazySequence[Batch]):
    """Batches of samples that are not kept, however many epochs there are.

    `rows` are the sample indices of each batch; take(x, index) gives rows of x, change(samples, place) transforms the samples
    of the batch at this place.
    """

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        rows: Batches,
        take: Callable[[Inputs, Tensor], Inputs],
        change: Callable[[Tensor, int], Tensor] | None = None,
    ):
        self.x = x
        self.y = y
        self.rows = rows
        self.take = take
        self.change = change

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Batch]:
        index = torch.from_numpy(self.rows.rows).to(self.y.device)
        change = self.change
        row = place = 0
        for sizes in self._groups():
            with profiled("data"):
                group_index = index[row : row + sum(sizes)]
                xs = split_rows(self.take(self.x, group_index), sizes)
                ys = self.y.index_select(0, group_index).split(sizes)
                if change is not None:
                    xs = tuple(change(x, place + i) for i, x in enumerate(xs))
            yield from map(Batch, xs, ys)
            row += len(group_index)
            place += len(sizes)

    def _groups(self) -> Iterator[list[int]]:
        """The sizes of the batches, grouped into what is fetched at once."""
        most = FETCHED_BYTES // max(1, sample_bytes(self.x))
        group: list[int] = []
        rows = 0
        for size in self.rows.sizes:
            if group and rows + size > most:
                yield group
                group, rows = [], 0
            group.append(size)
            rows += size
        if group:
            yield group
