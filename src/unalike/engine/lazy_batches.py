"""A client's batches, fetched a few at a time while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unalike._utils.profiler_regions import profiled
from unalike.core.types import Batch
from unalike.core.work import Batches, LazySequence

AT_ONCE = 2**23
"""Bytes of samples fetched at once (or one batch, if it is larger): one large gather is faster than many small ones."""


class LazyBatches(LazySequence[Batch]):
    """Batches of samples that are not kept, however many epochs there are.

    Args:
        x: all samples.
        y: all labels.
        rows: the sample indices of each batch.
        take: take(x, index) gives rows of x.
        change: change(samples, place) transforms the samples of the batch at this place.
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

    def __iter__(self) -> Iterator[Batch]:
        index, change = torch.from_numpy(self.rows.rows).to(self.x.device), self.change
        done = place = 0
        for sizes in self._groups():
            with profiled("data"):
                some = index[done : done + sum(sizes)]
                xs, ys = self.take(self.x, some).split(sizes), self.y.index_select(0, some).split(sizes)
                changed = xs if change is None else [change(x, place + i) for i, x in enumerate(xs)]
            yield from map(Batch, changed, ys)
            done, place = done + len(some), place + len(sizes)

    def _groups(self) -> Iterator[list[int]]:
        """The sizes of the batches, grouped into what is fetched at once."""
        most = AT_ONCE // max(1, self.x.shape[1:].numel() * self.x.element_size())
        group, rows = list[int](), 0
        for size in self.rows.sizes:
            if group and rows + size > most:
                yield group
                group, rows = [], 0
            group.append(size)
            rows += size
        if group:
            yield group
