"""A client's batches, whose samples are fetched as training comes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import torch
from torch import Tensor

from unalike._utils.profiler_regions import profiled
from unalike.core.types import Batch
from unalike.core.work import Batches

AT_ONCE = 2**23
"""Bytes of samples that are fetched at once, if a batch does not take more: many rows one after the other take less time."""


class LazyBatches(Sequence[Batch]):
    """The samples x and y of these `rows` in batches; none are kept, however many epochs there are.

    `take(x, index)` gives rows of x. `change` makes training samples of those of a batch, given its place.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        rows: Batches,
        take: Callable[[Tensor, Tensor], Tensor],
        change: Callable[[Tensor, int], Tensor] | None = None,
    ):
        self.x, self.y, self.rows, self.take, self.change = x, y, rows, take, change

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, t: int) -> Batch: ...
    @overload
    def __getitem__(self, t: slice) -> list[Batch]: ...
    def __getitem__(self, t: int | slice) -> Batch | list[Batch]:
        return [*self][t]

    def __iter__(self) -> Iterator[Batch]:
        index, change = torch.from_numpy(self.rows.rows).to(self.x.device), self.change
        done = place = 0
        for sizes in self._runs():
            with profiled("data"):
                some = index[done : done + sum(sizes)]
                xs, ys = self.take(self.x, some).split(sizes), self.y.index_select(0, some).split(sizes)
                changed = xs if change is None else [change(x, place + i) for i, x in enumerate(xs)]
            yield from map(Batch, changed, ys)
            done, place = done + len(some), place + len(sizes)

    def _runs(self) -> Iterator[list[int]]:
        """The sizes of batches that are fetched at once."""
        most = AT_ONCE // max(1, self.x.shape[1:].numel() * self.x.element_size())
        run, rows = list[int](), 0
        for size in self.rows.sizes:
            if run and rows + size > most:
                yield run
                run, rows = [], 0
            run.append(size)
            rows += size
        if run:
            yield run
