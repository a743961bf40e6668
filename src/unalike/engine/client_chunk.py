"""A chunk of stacked clients: their inputs and their batches, and functions of one client applied to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.inputs import Inputs, map_inputs, take_rows
from unalike.core.types import Batch, Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import LazySequence
from unalike.engine.batch_schedule import BatchSchedule
from unalike.methods.method import Method
from unalike.methods.roles import Personalizer
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import (
    TrainedClient,
    Trainers,
    make_client_update,
    run_phases,
)

ClientInputs = dict[str, Any]
"""`client_state`, `size`, `context`, `messages` and perhaps `begun` of a client; stacked, every tensor has a leading [K]."""
Rows = Mapping[str, Inputs]
"""Batches of one client: `x` [T, B, ...], `y` [T, B], and `weight` [T, B] where some rows are padding."""


class StepPadding(NamedTuple):
    """The padding of a step: `full` if every row counts, `idle` if some client has no row that counts."""

    full: bool
    idle: bool


@dataclass(frozen=True, eq=False)
class StackedBatches(Mapping[str, Inputs]):
    """The batches of stacked clients in one phase, fetched when they are needed.

    As a mapping: `x` [K, T, B, ...], `y` [K, T, B] and, if some rows are padding, `weight` [K, T, B]; empty without batches.

    `samples` are [N, ...], one tensor or a tree, `labels` [N], `index` the sample of each row [K, T, B], where rows of padding
    repeat the client's first sample, and `sizes` the rows that count in each step [K, T].
    """

    samples: Inputs
    labels: Tensor
    index: Tensor
    sizes: np.ndarray

    @classmethod
    def of(cls, samples: Inputs, labels: Tensor, schedules: BatchSchedule) -> StackedBatches:
        """The batches of these schedules, one for each client."""
        sizes = schedules.sizes
        longest = sizes.max(initial=0)
        # without padding the schedule has the places already
        if sizes.min(initial=longest) == longest:
            places = schedules.rows.reshape(*sizes.shape, longest)
        else:
            counts = np.arange(longest) < sizes[:, :, None]
            first = [batches.rows[0] if len(batches.rows) else 0 for batches in schedules]
            repeated = np.broadcast_to(np.reshape(first, (-1, 1, 1)), counts.shape)
            places = repeated.astype(np.int64)
            places[counts] = schedules.rows
        return cls(samples, labels, torch.from_numpy(places).to(labels.device), sizes)

    def transformed(self, x: Tensor) -> StackedBatches:
        """The same batches with other samples `x` [K, T, B, ...]."""
        index = torch.arange(self.index.numel(), device=self.index.device).view(self.index.shape)
        return replace(self, samples=x.flatten(0, 2), labels=self.y.flatten(0, 2), index=index)

    def at_once(self, times: int) -> StackedBatches:
        """`times` batches of all rows, of batches that are filled one after the other."""
        index = self.index.flatten(1)[:, None].expand(-1, times, -1).contiguous()
        return replace(self, index=index, sizes=self.sizes.sum(1, keepdims=True).repeat(times, 1))

    @cached_property
    def x(self) -> Inputs:
        rows = take_rows(self.samples, self.index.flatten())
        return map_inputs(lambda t: t.unflatten(0, self.index.shape), rows)

    @cached_property
    def y(self) -> Tensor:
        rows = self.labels.index_select(0, self.index.flatten())
        return rows.unflatten(0, self.index.shape)

    @cached_property
    def weight(self) -> Tensor:
        counts = np.arange(self.index.shape[2]) < self.sizes[:, :, None]
        return torch.from_numpy(counts.astype(np.float32)).to(self.labels.device)

    @cached_property
    def paddings(self) -> list[StepPadding]:
        longest = self.index.shape[2]
        fewest_rows = self.sizes.min(0).tolist()
        return [StepPadding(full=rows == longest, idle=rows == 0) for rows in fewest_rows]

    def __getitem__(self, name: str) -> Inputs:
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
        if all(padding.full for padding in self.paddings):
            return "x", "y"
        return "x", "y", "weight"


class ClientFunction(Protocol):
    """A function of one client's task and of its entries of stacked nests."""

    def __call__(self, task: ClientTask, *own: Any) -> Any: ...


@dataclass(frozen=True)
class ClientChunk:
    """Stacked clients.

    `inputs` are each client's own, `phases` the batches of each phase of the method; `whole` has all of the clients' samples
    once, for methods that need them.
    """

    method: Method
    settings: StageSettings
    broadcast: Broadcast
    inputs: ClientInputs
    phases: Sequence[StackedBatches]
    whole: StackedBatches

    def __len__(self) -> int:
        return len(self.inputs["size"])

    @property
    def task(self) -> ClientTask:
        """The task of all clients at once, with stacked batches."""
        data = ClientBatches([BatchSequence(rows, rows.paddings) for rows in self.phases])
        return self._task(self.inputs, self.broadcast._replace(buffers=self._buffers), data)

    def begin(self) -> ClientChunk:
        """The chunk with the parameters that each client starts from, and its state by then."""
        if "begun" in self.inputs:
            return self
        if self.method.role(Personalizer):
            begun, states = self.each(_begin)
        else:
            begun = self._rows_of(self.broadcast.params)
            states = self.inputs["client_state"]
        return replace(self, inputs=self.inputs | {"begun": begun, "client_state": states})

    def run(self, trainers: Trainers) -> TrainedClient:
        """The clients, which have begun, after their training, every tensor [K, ...]."""
        task = self.task
        trained = run_phases(task, trainers(task))
        return trained._replace(
            steps=self._by_client(trained.steps), loss=self._by_client(trained.loss)
        )

    def client_updates(self, trained: TrainedClient) -> tuple[ClientUpdate, PartTrees]:
        """The client updates and new states after training, every tensor [K, ...]."""
        # parts look at the trained parameters of each client
        if self.method.parts_after_training:
            return self.each(make_client_update, trained)
        return make_client_update(self.task, trained)

    def each(self, function: ClientFunction, *stacked: Any) -> Any:
        """`function(task, *own)` of every client by `torch.vmap`, stacked; `own` are its entries of `stacked`."""
        phases = [dict(rows) for rows in self.phases]
        whole = dict(self.whole)

        def one(
            inputs: ClientInputs,
            buffers: Any,
            phases: list[dict[str, Inputs]],
            whole: Rows,
            *own: Any,
        ) -> Any:
            # paddings are known for all clients together: they stay outside of vmap
            batches = [
                BatchSequence(rows, stacked_rows.paddings)
                for rows, stacked_rows in zip(phases, self.phases, strict=True)
            ]
            data = ClientBatches(batches, BatchSequence(whole, self.whole.paddings))
            broadcast = self.broadcast.with_messages(inputs["messages"])._replace(buffers=buffers)
            return function(self._task(inputs, broadcast, data), *own)

        return torch.vmap(one, randomness="different")(
            self.inputs, self._buffers, phases, whole, *stacked
        )

    @property
    def _buffers(self) -> Tree:
        """The received buffers, with a row for each client: batch norms update them in place."""
        return self._rows_of(self.broadcast.buffers)

    def _rows_of(self, values: Tree) -> Tree:
        return tree.map(lambda t: t.expand(len(self), *t.shape), values)

    def _by_client(self, number: Tensor | float) -> Tensor:
        """A number of each client [K]; one number stands for all."""
        return torch.as_tensor(number, device=self.inputs["size"].device).expand(len(self))

    def _task(self, inputs: ClientInputs, broadcast: Broadcast, data: ClientBatches) -> ClientTask:
        return ClientTask(
            method=self.method,
            settings=self.settings,
            broadcast=broadcast,
            client_state=inputs["client_state"],
            data=data,
            context=inputs["context"],
            size=inputs["size"],
            begun=inputs.get("begun"),
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
            x = map_inputs(itemgetter(t), self.rows["x"])
            yield Batch(x, self.rows["y"][t], weight, idle)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, on an accelerator or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    # of the CPU, and of Apple's devices
    messages = "can't allocate memory", "out of memory"
    return any(words in str(error) for words in messages)
