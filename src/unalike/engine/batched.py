"""The executor `batched`: clients stacked in chunks, trained by `torch.vmap` or, for chains of layers, in compiled loops.

Clients are sorted by their number of samples and cut into chunks of similar ones. Within a chunk shorter batches and finished
clients are padded with rows of weight 0, which never count; a step of padding alone changes nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import join_nests
from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Batches
from unalike.engine.base import AcceptedRounds, Executor, client_costs
from unalike.engine.batch_schedule import BatchSchedule
from unalike.engine.client_chunk import ClientChunk, ClientInputs, StackedBatches, is_out_of_memory
from unalike.engine.compiled import compiled_training
from unalike.engine.compiled.layer_chain import chain_of
from unalike.engine.threads import MAX_KEPT_BYTES
from unalike.engine.training_kind import TrainingKind
from unalike.methods.roles import Personalizer
from unalike.training.client.client_update import (
    finetune,
    stepwise,
    train,
    without_solver_state,
)
from unalike.training.server.update_checks import find_faults, has_suspicious_loss
from unalike.training.server.updates import UpdateSink

CACHE_BYTES = 15 * 2**20
"""Bytes of the parameters, gradients and momenta of a chunk on a CPU: about as much as its caches hold."""
DEVICE_BYTES = 2**30
"""The same on an accelerator."""
SUMMED_CHUNK_FACTOR = 4
"""Chunks of compiled loops hold this many times as many clients if only the sum of their updates is written."""
MAX_CHUNK_PRODUCTS = 2**36
"""Products of weights and numbers in a chunk of compiled loops: one or two seconds, for which an interrupt has to wait."""

R = TypeVar("R")

STACKED = partial(stepwise, stacked=True)
"""Trainers under `torch.vmap`."""


@dataclass(frozen=True)
class Batched(Executor):
    """Trains chunks of stacked clients.

    `chunk` clients are stacked; None: as many as fit the cache, or the accelerator's memory. `compiled_loops`: these may train
    chains of layers (see `engine.compiled`).
    """

    stacked: ClassVar[bool] = True
    chunk: int | None = None
    compiled_loops: bool = True
    _fitting_widths: list[int] = field(default_factory=list, compare=False)
    """Smaller widths, found when memory ran out."""

    def __post_init__(self) -> None:
        if self.chunk is not None and (not isinstance(self.chunk, int) or self.chunk < 1):
            raise UnalikeError(
                f"batched(chunk={self.chunk!r}): expected a whole number of clients, at least 1, or None"
            )

    def feed(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink
    ) -> None:
        train_chunk = partial(self._train, sink, broadcast, accepted)
        for chunk_ids, (client_update, is_sum) in self._each_chunk(ids, train_chunk):
            sink.add(chunk_ids, client_update, is_sum)

    def finetune(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> Iterator[tuple[int, Tree]]:
        finetune_chunk = partial(self._finetune, broadcast, accepted)
        for chunk_ids, models in self._each_chunk(ids, finetune_chunk):
            for row, client in enumerate(chunk_ids):
                yield client, tree.row(models, row)

    def _each_chunk(
        self, ids: Sequence[int], work: Callable[[list[int]], R]
    ) -> Iterator[tuple[list[int], R]]:
        """Each chunk and `work(chunk)`. A chunk that does not fit into memory is halved, and so are all after it."""
        waiting = deque(self._chunks(ids))
        while waiting:
            chunk_ids = waiting.popleft()
            try:
                result = work(chunk_ids)
            except RuntimeError as error:
                if len(chunk_ids) == 1 or not is_out_of_memory(error):
                    raise
                half = -(-len(chunk_ids) // 2)
                self._fitting_widths.append(half)
                waiting.appendleft(chunk_ids)
                waiting = deque(
                    longer[i : i + half] for longer in waiting for i in range(0, len(longer), half)
                )
                continue
            yield chunk_ids, result

    @cached_property
    def settings(self) -> StageSettings:
        """The stage's settings with the task in the form that is fastest under `torch.vmap`."""
        return replace(self.client_pool.settings, task=self.client_pool.settings.task.stacked)

    def _chunks(self, ids: Sequence[int]) -> list[list[int]]:
        """The clients sorted by their number of samples and cut into chunks; [] without clients."""
        pool = self.client_pool
        clients, sizes = np.array(ids, np.int64), pool.counts(ids)
        order = np.lexsort((clients, sizes))
        places = cuts(sizes[order], self.width)
        # a batch may be empty before a client has finished: then all clients of a chunk have to finish at once
        if pool.method.draws_own_batches:
            steps = np.array([pool.steps(n) for n in sizes[order].tolist()])
            changes = np.flatnonzero(np.diff(steps)) + 1
            places = sorted({*places, *changes.tolist()})
        chunks = np.split(clients[order], places)
        return [chunk.tolist() for chunk in chunks if len(chunk)]

    @property
    def width(self) -> int:
        """Clients per chunk."""
        if self._fitting_widths or self.chunk is not None:
            wanted = [] if self.chunk is None else [self.chunk]
            return min([*self._fitting_widths, *wanted])
        if self.uses_compiled_loops:
            return self._loops_width
        pool = self.client_pool
        nbytes = tree.nbytes(pool.settings.model.params)
        # a rule of its own holds the gradients of single samples
        if pool.method.local_gradient is not None:
            nbytes *= pool.settings.work.batch_size or pool.typical
        room = CACHE_BYTES if pool.source.y.device.type == "cpu" else DEVICE_BYTES
        return max(1, room // (3 * nbytes))

    @cached_property
    def _loops_width(self) -> int:
        """Clients per chunk in compiled loops: the results fit memory that is kept, and a chunk takes a second."""
        pool = self.client_pool
        method, params = pool.method, pool.settings.model.params
        chain = chain_of(pool.settings.model)
        assert chain is not None  # see `uses_compiled_loops`

        # the rows of results of the clients, or of a sum, lie in memory that the process keeps
        fitting = max(1, MAX_KEPT_BYTES // tree.nbytes(params))
        if method.needs_sums_only and method.returns_update_only:
            fitting *= SUMMED_CHUNK_FACTOR

        # products in the training of one client of mean size
        [rows] = client_costs(method, pool.settings.work, np.array([pool.typical]))
        weights = sum(w.numel() for w in params.values())
        products = chain.products(pool.source.x.shape[1:], weights)
        products_of_client = int(rows) * products * compiled_training.passes(method)
        return min(fitting, max(1, MAX_CHUNK_PRODUCTS // products_of_client))

    @property
    def uses_compiled_loops(self) -> bool:
        """Whether compiled loops train all clients, also those with the largest batches."""
        return self.compiled_loops and self.loops_obstacle is None

    @cached_property
    def loops_obstacle(self) -> str | None:
        """The reason why compiled loops cannot train all clients; None if they can."""
        pool = self.client_pool
        largest = int(pool.sizes.max(initial=0))
        rows = min(self.settings.work.batch_size or largest, largest)
        return compiled_training.obstacle(pool.method, self.settings, pool.source.x, rows)

    def _in_loops(self, chunk: ClientChunk) -> bool:
        """Whether compiled loops train this chunk."""
        with_batches = [batches for batches in chunk.phases if batches]
        if not self.compiled_loops or not with_batches:
            return False
        rows = max(batches.index.shape[2] for batches in with_batches)
        x = with_batches[0].samples
        return compiled_training.obstacle(chunk.method, self.settings, x, rows) is None

    def _train(
        self, sink: UpdateSink, broadcast: Broadcast, accepted: AcceptedRounds, ids: list[int]
    ) -> tuple[ClientUpdate, bool]:
        """The updates of a chunk, and whether they are summed up already."""
        pool = self.client_pool
        is_sum = False
        with self._chunk(pool.round_training, broadcast, ids, accepted) as chunk:
            if self._in_loops(chunk):
                update, states, is_sum = compiled_training.train(chunk, sink.factors(ids))
                # each client's own update shows which one is at fault
                if is_sum and (has_suspicious_loss(update.loss) or find_faults(ids, update)):
                    update, states, is_sum = compiled_training.train(chunk)
            else:
                update, states = self.graphs.attempt(
                    recorded=partial(self._train_recorded, chunk),
                    unrecorded=partial(chunk.each, partial(train, trainers=STACKED)),
                )
        pool.client_states.put_stacked(ids, broadcast.round, states, accepted)
        return update, is_sum

    def _train_recorded(self, chunk: ClientChunk) -> tuple[ClientUpdate, PartTrees]:
        chunk = chunk.begin()
        return chunk.client_updates(self.graphs.train(chunk))

    def _finetune(self, broadcast: Broadcast, accepted: AcceptedRounds, ids: list[int]) -> Tree:
        """The models of a chunk after fine-tuning: training as above, of which nothing is sent."""
        graphs = self.finetuning_graphs
        with self._chunk(self.client_pool.finetuning, broadcast, ids, accepted) as chunk:
            if self._in_loops(chunk):
                return compiled_training.finetune(chunk)
            return graphs.attempt(
                recorded=lambda: graphs.train(chunk.begin()).model,
                unrecorded=partial(chunk.each, partial(finetune, trainers=STACKED)),
            )

    @contextmanager
    def _chunk(
        self,
        kind: TrainingKind,
        broadcast: Broadcast,
        ids: list[int],
        accepted: AcceptedRounds,
    ) -> Iterator[ClientChunk]:
        """The clients stacked, with torch's generator seeded for them as long as the context lasts."""
        pool, round = self.client_pool, broadcast.round
        schedules = pool.schedules(ids, round, kind)
        *phases, whole = self._batches(round, ids, [*schedules, pool.whole(ids, round)])
        # seeded by the first client, which no other process and no other model group trains in this round
        dropout_seed = seeds.number(pool.settings.seed, kind.chunk_dropout, round, ids[0])
        with seeds.isolated(dropout_seed, pool.source.y.device), torch.no_grad():
            inputs: ClientInputs = {
                "client_state": pool.client_states.stacked(ids, accepted),
                "size": pool.sizes_of(ids),
            }
            # without inputs of their own one client stands for all
            asked = ids if self._has_own_inputs(broadcast) else ids[:1]
            by_client = [
                self._inputs_of(client, broadcast, batches, accepted.get(client), kind)
                for client, *batches in zip(asked, *schedules)
            ]
            inputs |= join_nests(by_client, torch.stack)
            if not kind.sends:
                inputs["client_state"] = without_solver_state(inputs["client_state"])
            yield ClientChunk(kind.method, self.settings, broadcast, inputs, phases, whole)

    @cached_property
    def _begins_stacked(self) -> bool:
        """Whether `begin` of all parts can be stacked; else it runs for one client after another."""
        return all(p.vmappable for p in self.client_pool.method.role(Personalizer))

    def _has_own_inputs(self, broadcast: Broadcast) -> bool:
        """Whether clients have inputs of their own beside their states and sizes."""
        pool = self.client_pool
        has_facts = pool.method.has_facts(pool.settings.work)
        return bool(broadcast.own) or has_facts or not self._begins_stacked

    def _inputs_of(
        self,
        client: int,
        broadcast: Broadcast,
        batches: list[Batches],
        accepted: int | None,
        kind: TrainingKind,
    ) -> ClientInputs:
        """A client's inputs beside its state and size; with the parameters it begins with, if `begin` cannot be stacked."""
        pool, messages = self.client_pool, broadcast.own.get(client, {})
        if self._begins_stacked:
            return {"context": pool.context(client), "messages": messages}
        [size] = pool.sizes_of([client])
        task = pool.task(client, size, broadcast, batches, accepted, pool.settings, kind).begin()
        return {
            "context": task.context,
            "messages": messages,
            "begun": task.begun,
            "client_state": task.client_state,
        }

    @profiled_function("data")
    def _batches(
        self, round: int, ids: list[int], schedules: list[BatchSchedule]
    ) -> list[StackedBatches]:
        """The clients' batches stacked and transformed, one entry per schedule."""
        source, transform = self.client_pool.source, self.client_pool.transform
        stacked = [StackedBatches.of(source.x, source.y, schedule) for schedule in schedules]
        if transform is None:
            return stacked
        # each client draws its numbers for all schedules at once, as it does by itself
        by_client = [
            self.client_pool.numbers(client, round, batches)
            for client, *batches in zip(ids, *schedules, strict=True)
        ]
        transformed = []
        for rows, numbers in zip(stacked, zip(*by_client), strict=True):
            if rows:
                padded = _padded(numbers, rows.index.shape).to(rows.x.device)
                rows = rows.transformed(transform(rows.x, padded))
            transformed.append(rows)
        return transformed


def cuts(sizes: np.ndarray, width: int) -> list[int]:
    """The positions at which clients of ascending `sizes` are cut into chunks of at most `width` clients and half padding."""
    if 0 < len(sizes) <= width and sizes[0] == sizes[-1]:
        return []
    positions: list[int] = []
    first = rows = 0
    for i, size in enumerate(sizes.tolist()):
        rows += size
        # the last client so far is the largest: all are padded to its size
        padded_rows = (i - first + 1) * size
        if i - first == width or padded_rows > 2 * rows:
            positions.append(i)
            first, rows = i, size
    return positions


def _padded(numbers: Sequence[list[Tensor]], shape: torch.Size) -> Tensor:
    """The random numbers [b, draws] of every batch as one tensor [K, T, B, draws]; padding gets zeros."""
    example = next(u for batches in numbers for u in batches)
    padded = torch.zeros(*shape[:3], example.shape[1], dtype=example.dtype)
    for k, batches in enumerate(numbers):
        for t, u in enumerate(batches):
            padded[k, t, : len(u)] = u
    return padded
