"""A chunk of clients: what each of them is told, stacked, and functions of one client for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Batch, Broadcast, StackedBatch
from unalike.core.views import ClientBatches
from unalike.engine.batch_schedule import BatchSchedule

ClientInputs = dict[str, Any]
"""What `train` is told of a client, by name; stacked, every tensor has a leading [K]."""
Rows = Mapping[str, Tensor]
"""Batches of a chunk: `x` [K, T, B, ...], `y` [K, T, B], and `weight` [K, T, B] where some rows are padding."""


class StepPadding(NamedTuple):
    """What is known of a step of a chunk: whether every row counts, and whether some client has no rows at all."""

    full: bool
    idle: bool


@dataclass(frozen=True, eq=False)
class StackedBatches(Rows):
    """Batches of stacked clients: sample index[k, t, b] of all `samples` and its label, of which sizes[k, t] count.

    As rows they have a `weight` where some do not count; without any batches they have no names.
    """

    samples: Tensor
    labels: Tensor
    index: Tensor
    sizes: np.ndarray

    @classmethod
    def of(cls, samples: Tensor, labels: Tensor, schedules: BatchSchedule) -> StackedBatches:
        """Those of one phase. Padding repeats a client's first sample, whatever its numbers are."""
        sizes = schedules.sizes
        most = sizes.max(initial=0)
        if sizes.min(initial=most) == most:
            places = schedules.rows.reshape(*sizes.shape, most)
        else:
            counts = np.arange(most) < sizes[:, :, None]
            first = [own.rows[0] if own.sizes else 0 for own in schedules]
            places = np.broadcast_to(np.reshape(first, (-1, 1, 1)), counts.shape).astype(np.int64)
            places[counts] = schedules.rows
        return cls(samples, labels, torch.from_numpy(places).to(samples.device), sizes)

    def transformed(self, x: Tensor) -> StackedBatches:
        """The same with other samples `x` [K, T, B, ...]."""
        index = torch.arange(self.index.numel(), device=self.index.device).view(self.index.shape)
        return replace(self, samples=x.flatten(0, 2), labels=self.y.flatten(), index=index)

    @cached_property
    def x(self) -> Tensor:
        return self.samples.index_select(0, self.index.flatten()).unflatten(0, self.index.shape)

    @cached_property
    def y(self) -> Tensor:
        return self.labels.index_select(0, self.index.flatten()).view(self.index.shape)

    @cached_property
    def weight(self) -> Tensor:
        counts = np.arange(self.index.shape[2]) < self.sizes[:, :, None]
        return torch.from_numpy(counts.astype(np.float32)).to(self.samples.device)

    @cached_property
    def kinds(self) -> list[StepPadding]:
        """What is known of every step."""
        return [StepPadding(least == self.index.shape[2], least == 0) for least in self.sizes.min(0).tolist()]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        found: Tensor = getattr(self, name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if not self.kinds:
            return ()
        return ("x", "y") if all(kind.full for kind in self.kinds) else ("x", "y", "weight")


@dataclass(frozen=True)
class ClientChunk:
    """Stacked clients: the order to all, what each is `given`, the rows of each phase and all of their rows where asked for.

    `kinds` says what is known of the steps of each phase, and of those over all rows.
    """

    broadcast: Broadcast
    given: ClientInputs
    phases: Sequence[Rows]
    whole: Rows
    kinds: list[list[StepPadding]]

    def __len__(self) -> int:
        return len(self.given["size"])

    def each(self, function: Callable[..., Any], *stacked: Any) -> Any:
        """`function(given, broadcast, data, *own)` of every client, its own of the `stacked` things; stacked again."""
        # norms update buffers in place, which needs a row of them for each client
        buffers = tree.map(lambda b: b.expand(len(self), *b.shape), self.broadcast.buffers)
        *kinds, last = self.kinds
        phases, whole = [dict(rows) for rows in self.phases], dict(self.whole)

        def one(given: ClientInputs, buffers: Any, phases: list[dict[str, Tensor]], whole: Rows, *own: Any) -> Any:
            data = ClientBatches(
                [BatchSequence(rows, k) for rows, k in zip(phases, kinds, strict=True)], BatchSequence(whole, last)
            )
            return function(
                given, self.broadcast.with_messages(given["messages"])._replace(buffers=buffers), data, *own
            )

        return torch.vmap(one, randomness="different")(self.given, buffers, phases, whole, *stacked)

    @property
    def alike(self) -> ClientChunk:
        """The same where nothing is known of single steps: all of a phase are masked if one has to be."""
        return replace(self, kinds=[[StepPadding("weight" not in r, "weight" in r)] * len(k) for r, k in self._parts])

    @property
    def schedules(self) -> list[BatchSequence]:
        """The stacked batches of each phase."""
        return [BatchSequence(*part, stacked=True) for part in self._parts[:-1]]

    @property
    def _parts(self) -> list[tuple[Rows, list[StepPadding]]]:
        return [*zip([*self.phases, self.whole], self.kinds, strict=True)]


@dataclass(frozen=True)
class BatchSequence(Sequence[Batch]):
    """The batches [T, B, ...] of one client one by one, cut out when somebody looks; of `stacked` ones from [K, T, B, ...]."""

    rows: Rows
    kinds: list[StepPadding]
    stacked: bool = False

    def __len__(self) -> int:
        return len(self.kinds)

    @overload
    def __getitem__(self, t: int) -> Batch: ...
    @overload
    def __getitem__(self, t: slice) -> list[Batch]: ...
    def __getitem__(self, t: int | slice) -> Batch | list[Batch]:
        if isinstance(t, slice):
            return [self[i] for i in range(*t.indices(len(self)))]
        full, idle = self.kinds[t]
        at = (slice(None), t) if self.stacked else (t,)
        weight = None if full or "weight" not in self.rows else self.rows["weight"][at]
        return (StackedBatch if self.stacked else Batch)(self.rows["x"][at], self.rows["y"][at], weight, idle)


def out_of_client_state(error: RuntimeError) -> bool:
    """Whether an allocation failed, on an accelerator or on the CPU."""
    told = "can't allocate memory", "out of memory"  # by the CPU, and by Apple's devices
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in told)
