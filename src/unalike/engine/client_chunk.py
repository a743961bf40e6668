"""A chunk of stacked clients: their inputs and their batches, and functions of one client applied to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Batch, Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import LazySequence
from unalike.engine.batch_schedule import BatchSchedule
from unalike.methods.method import Method
from unalike.methods.roles import Personalizer, Phase
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import (
    TrainedClient,
    Trainers,
    make_client_update,
    run_phases,
    without_solver_state,
)

ClientInputs = dict[str, Any]
"""`client_state`, `size`, `context`, `messages` and perhaps `begun` of a client; stacked, every tensor has a leading [K]."""
Rows = Mapping[str, Tensor]
"""Batches of one client: `x` [T, B, ...], `y` [T, B], and `weight` [T, B] where some rows are padding."""


class StepPadding(NamedTuple):
    """The padding of a step: `full` if every row counts, `idle` if some client has no row that counts."""

    full: bool
    idle: bool


@dataclass(frozen=True, eq=False)
class StackedBatches(Mapping[str, Tensor]):
    """The batches of stacked clients in one phase, fetched when they are needed.

    As a mapping: `x` [K, T, B, ...], `y` [K, T, B] and, if some rows are padding, `weight` [K, T, B]; empty without batches.

    `samples` are [N, ...], `labels` [N], `index` the sample of each row [K, T, B], where rows of padding repeat the client's
    first sample, and `sizes` the rows that count in each step [K, T].
    """

    samples: Tensor
    labels: Tensor
    index: Tensor
    sizes: np.ndarray

    @classmethod
    def of(cls, samples: Tensor, labels: Tensor, schedules: BatchSchedule) -> StackedBatches:
        sizes = schedules.sizes
        most = sizes.max(initial=0)
        if sizes.min(initial=most) == most:
            places = schedules.rows.reshape(*sizes.shape, most)
        else:
            counts = np.arange(most) < sizes[:, :, None]
            first = [own.rows[0] if len(own.rows) else 0 for own in schedules]
            places = np.broadcast_to(np.reshape(first, (-1, 1, 1)), counts.shape).astype(np.int64)
            places[counts] = schedules.rows
        return cls(samples, labels, torch.from_numpy(places).to(samples.device), sizes)

    def transformed(self, x: Tensor) -> StackedBatches:
        """The same batches with other samples `x` [K, T, B, ...]."""
        index = torch.arange(self.index.numel(), device=self.index.device).view(self.index.shape)
        return replace(self, samples=x.flatten(0, 2), labels=self.y.flatten(), index=index)

    def at_once(self, times: int) -> StackedBatches:
        """`times` batches of all rows, of batches that are filled one after the other."""
        index = self.index.flatten(1)[:, None].expand(-1, times, -1).contiguous()
        return replace(self, index=index, sizes=self.sizes.sum(1, keepdims=True).repeat(times, 1))

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
    def paddings(self) -> list[StepPadding]:
        return [
            StepPadding(least == self.index.shape[2], least == 0)
            for least in self.sizes.min(0).tolist()
        ]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if not self.paddings:
            return ()
        return (
            ("x", "y") if all(padding.full for padding in self.paddings) else ("x", "y", "weight")
        )


@dataclass(frozen=True)
class ClientChunk:
    """Stacked clients.

    `given` are each client's inputs, `phases` the batches of each phase; `whole` has all of the clients' samples once, for
    methods that need them.
    """

    method: Method
    settings: StageSettings
    broadcast: Broadcast
    given: ClientInputs
    phases: Sequence[StackedBatches]
    whole: StackedBatches

    def __len__(self) -> int:
        return len(self.given["size"])

    @property
    def task(self) -> ClientTask:
        """The task of all clients at once, with stacked batches."""
        data = ClientBatches([BatchSequence(rows, rows.paddings) for rows in self.phases])
        return self._task(self.given, self.broadcast._replace(buffers=self._buffers), data)

    def begin(self) -> ClientChunk:
        """The chunk with the parameters that each client starts from, and its state by then."""
        if "begun" in self.given:
            return self
        if self.method.role(Personalizer):
            begun, states = self.each(_begin)
        else:
            begun, states = self._rows_of(self.broadcast.params), self.given["client_state"]
        return replace(self, given=self.given | {"begun": begun, "client_state": states})

    @property
    def tuner(self) -> ClientChunk:
        """The chunk in the fine-tuning before its evaluation, whose batches it has."""
        given = self.given | {"client_state": without_solver_state(self.given["client_state"])}
        return replace(self, method=self.method.finetuning_method, given=given)

    def run(self, phases: Sequence[Phase], trainers: Trainers) -> TrainedClient:
        """The clients after these phases of training, every tensor [K, ...]."""
        task = self.task
        trained = run_phases(task, phases, trainers(task))
        steps, loss = (
            torch.as_tensor(t, device=task.size.device).expand(len(self))
            for t in (trained.steps, trained.loss)
        )
        return trained._replace(steps=steps, loss=loss)

    def client_updates(self, trained: TrainedClient) -> tuple[ClientUpdate, PartTrees]:
        """The client updates and new states after training, every tensor [K, ...]."""
        if self.method.parts_after_training:  # parts look at the trained parameters of each client
            return self.each(make_client_update, trained)
        return make_client_update(self.task, trained)

    def each(self, function: Callable[..., Any], *stacked: Any) -> Any:
        """`function(task, *own)` of every client by `torch.vmap`, stacked; `own` are its entries of `stacked`."""
        phases, whole = [dict(rows) for rows in self.phases], dict(self.whole)

        def one(
            given: ClientInputs,
            buffers: Any,
            phases: list[dict[str, Tensor]],
            whole: Rows,
            *own: Any,
        ) -> Any:
            batches = [
                BatchSequence(rows, known.paddings)
                for rows, known in zip(phases, self.phases, strict=True)
            ]
            data = ClientBatches(batches, BatchSequence(whole, self.whole.paddings))
            broadcast = self.broadcast.with_messages(given["messages"])._replace(buffers=buffers)
            return function(self._task(given, broadcast, data), *own)

        return torch.vmap(one, randomness="different")(
            self.given, self._buffers, phases, whole, *stacked
        )

    @property
    def _buffers(self) -> Tree:
        """The received buffers, with a row for each client: batch norms update them in place."""
        return self._rows_of(self.broadcast.buffers)

    def _rows_of(self, values: Tree) -> Tree:
        return tree.map(lambda t: t.expand(len(self), *t.shape), values)

    def _task(self, given: ClientInputs, broadcast: Broadcast, data: ClientBatches) -> ClientTask:
        state, context, size = given["client_state"], given["context"], given["size"]
        return ClientTask(
            self.method, self.settings, broadcast, state, data, context, size, given.get("begun")
        )


def _begin(task: ClientTask) -> tuple[Tree, PartTrees]:
    task = task.begin()
    return task.start, task.client_state


@dataclass(frozen=True)
class BatchSequence(LazySequence[Batch]):
    """One client's batches, each cut out of `rows` when it is asked for; `paddings` as in `StackedBatches`."""

    rows: Rows
    paddings: list[StepPadding]

    def __len__(self) -> int:
        return len(self.paddings)

    def __iter__(self) -> Iterator[Batch]:
        for t, (full, idle) in enumerate(self.paddings):
            weight = None if full or "weight" not in self.rows else self.rows["weight"][t]
            yield Batch(self.rows["x"][t], self.rows["y"][t], weight, idle)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, on an accelerator or on the CPU."""
    messages = "can't allocate memory", "out of memory"  # of the CPU, and of Apple's devices
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in messages
    )
