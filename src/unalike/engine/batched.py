"""Many clients at once: their models stacked along a leading dimension, one `torch.vmap(train)` per chunk.

Clients are sorted by their number of samples and cut into chunks of like ones. Within a chunk shorter batches and finished clients
are padded with rows of weight 0, which never count; a step of padding alone changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import join_nests
from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import Batches
from unalike.engine.base import AcceptedRounds, BaseExecutor, ClientPool, client_costs
from unalike.engine.batch_schedule import BatchSchedule
from unalike.engine.client_chunk import ClientChunk, ClientInputs, StackedBatches, out_of_client_state
from unalike.engine.compiled_step import CompiledPrograms, NotCompiled
from unalike.engine.dense.compiled_training import supports_compiled
from unalike.engine.dense.step import supports_dense
from unalike.engine.stacked_training import StackedTraining
from unalike.engine.threads import KEPT
from unalike.methods.roles import Personalizer
from unalike.training.aggregation import UpdateSink
from unalike.training.client_update import begin_training, train, tune, without_solver_state
from unalike.training.local_step import functional_gradient
from unalike.training.update_checks import find_faults

CACHE = 15 * 2**20
"""Bytes that the parameters, gradients and momenta of a chunk may take on a CPU: about what stays in its caches."""
DEVICE = 2**30
"""The same on an accelerator."""
SUMMED = 4
"""How many times as many clients are in a chunk of which nothing but a sum is written."""
STRETCH = 2**36
"""Products of weights and samples in a chunk of compiled loops: a second or two, for which an interruption waits."""


@dataclass(frozen=True)
class Batched(BaseExecutor):
    """Runs `train` for chunks of stacked clients. `chunk`: clients per chunk, None: by the size of the model.

    `compile`: steps that are not made by hand are compiled; where that fails, `remark` says why and nothing else changes.
    `fused`: dense models train in compiled loops, where the extra `fast` is installed and the method adds at most a
    pull (`Part.pull`) to the gradient of the task's loss.
    """

    client_pool: ClientPool
    chunk: int | None = None
    compile: bool = False
    fused: bool = True
    _fits: list[int] = field(default_factory=list, compare=False)  # clients that were left when memory ran out

    def __post_init__(self) -> None:
        if self.chunk is not None and (not isinstance(self.chunk, int) or self.chunk < 1):
            raise UnalikeError(
                f"batched(chunk={self.chunk!r}): expected a whole number of clients, at least 1, or None"
            )

    def feed(self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink) -> None:
        for chunk, (client_update, summed) in self._each_chunk(ids, partial(self._train, sink, broadcast, accepted)):
            sink.add(chunk, client_update, summed)

    def tune(self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds) -> Iterator[tuple[int, Tree]]:
        for chunk, tuned in self._each_chunk(ids, partial(self._tune, broadcast, accepted)):
            yield from ((client, tree.row(tuned, i)) for i, client in enumerate(chunk))

    def _each_chunk(self, ids: Sequence[int], work: Callable[[list[int]], Any]) -> Iterator[tuple[list[int], Any]]:
        """Chunks with what `work` makes of them. One that does not fit into memory is halved, and so are all after it."""
        waiting = deque(self._chunks(ids))
        while waiting:
            chunk = waiting.popleft()
            try:
                done = work(chunk)
            except RuntimeError as error:
                if len(chunk) == 1 or not out_of_client_state(error):
                    raise
                self._fits.append(-(-len(chunk) // 2))
                waiting = deque(part for c in (chunk, *waiting) for part in _cut(c, self._fits[-1]))
                continue
            yield chunk, done

    @cached_property
    def settings(self) -> StageSettings:
        """The setting with the task as it is fastest when stacked."""
        return replace(self.client_pool.settings, task=self.client_pool.settings.task.stacked)

    def _chunks(self, ids: Sequence[int]) -> list[list[int]]:
        """The clients by their number of samples, cut into chunks; none where all who train are other processes'."""
        clients, sizes = np.array(ids, np.int64), self.client_pool.counts(ids)
        broadcast = np.lexsort((clients, sizes))
        chunks = np.split(clients[broadcast], cuts(sizes[broadcast], self.width))
        return [chunk.tolist() for chunk in chunks if len(chunk)]

    @property
    def width(self) -> int:
        """Clients per chunk."""
        if self._fits or self.chunk is not None:
            return min([*self._fits, *([self.chunk] if self.chunk else [])])
        if self.fuses:
            return self._fused_width
        model = tree.nbytes(self.client_pool.settings.model.params)
        return max(1, (CACHE if self.client_pool.source.x.device.type == "cpu" else DEVICE) // (3 * model))

    @cached_property
    def _fused_width(self) -> int:
        """The same for compiled loops: what clients come to is written to memory that is kept, and a chunk is soon done."""
        client_pool, params = self.client_pool, self.client_pool.settings.model.params
        [rows] = client_costs(client_pool.method, client_pool.settings.work, np.array([client_pool.typical]))
        kept = max(1, KEPT // tree.nbytes(params)) * (
            SUMMED if client_pool.method.linear and client_pool.method.only_adds else 1
        )
        return min(kept, max(1, STRETCH // (int(rows) * sum(w.numel() for w in params.values()))))

    @cached_property
    def fuses(self) -> bool:
        """Whether compiled loops train the clients, even those with the largest batches."""
        client_pool, settings, largest = self.client_pool, self.settings, int(self.client_pool.sizes.max(initial=0))
        rows = min(settings.work.batch_size or largest, largest)
        by_hand = self.fused and supports_dense(client_pool.method, settings, client_pool.source.x)
        return by_hand and supports_compiled(
            client_pool.method, client_pool.method.phases, settings, client_pool.source.x, rows
        )

    def _train(
        self, sink: UpdateSink, broadcast: Broadcast, accepted: AcceptedRounds, ids: list[int]
    ) -> tuple[ClientUpdate, bool]:
        """The reports of a chunk, and whether their updates are summed up already."""
        client_pool, method, summed = self.client_pool, self.client_pool.method, False
        schedules = self.client_pool.schedules(ids, broadcast.round)
        with self._chunk(broadcast, "dropout of chunks", ids, schedules, accepted) as chunk:
            if supports_dense(method, self.settings, self.client_pool.source.x):
                course = StackedTraining(
                    method, method.phases, self.settings, chunk, None, self.fused, sink.factors(ids)
                )
                (client_update, kept), summed = course.client_updates, course.summed
                if summed and find_faults(ids, client_update):  # whose it is shows when they are apart
                    (client_update, kept), summed = replace(course, factors=None).client_updates, False
            else:
                client_update, kept = self._compiled(chunk) or chunk.each(self._trained)
        client_pool.client_states.put_stacked(ids, broadcast.round, kept, accepted)
        return client_update, summed

    @cached_property
    def programs(self) -> CompiledPrograms:
        """What was compiled."""
        return CompiledPrograms(
            "" if self.client_pool.settings.work.schedule == 1 else "the learning rate changes from round to round"
        )

    @property
    def remark(self) -> str:
        return self.programs.remark if self.compile else ""

    def _compiled(self, chunk: ClientChunk) -> tuple[ClientUpdate, PartTrees] | None:
        """Reports and memories by compiled steps, if there are any."""
        method = self.client_pool.method
        if not self.compile or self.programs.problem:
            return None
        try:
            return StackedTraining(method, method.phases, self.settings, chunk, self.programs).client_updates
        except NotCompiled:
            return None

    def _trained(
        self, given: ClientInputs, broadcast: Broadcast, data: ClientBatches
    ) -> tuple[ClientUpdate, PartTrees]:
        client_state, context, size = (given[name] for name in ("client_state", "context", "size"))
        method, begun = self.client_pool.method, given.get("begun")
        return train(method, self.settings, broadcast, client_state, size, data, context, functional_gradient, begun)

    def _tune(self, broadcast: Broadcast, accepted: AcceptedRounds, ids: list[int]) -> Tree:
        method, schedules = self.client_pool.method, self.client_pool.tuning_schedules(ids, broadcast.round)
        with self._chunk(broadcast, "dropout of tuned chunks", ids, schedules, accepted) as chunk:
            if method.tuning is not None and supports_dense(method.tuner, self.settings, self.client_pool.source.x):
                client_state = without_solver_state(chunk.given["client_state"])
                chunk = replace(chunk, given=chunk.given | {"client_state": client_state})
                trained = StackedTraining(
                    method.tuner, (method.tuning,), self.settings, chunk, fused=self.fused
                ).trained
                return trained.params | trained.buffers
            return chunk.each(self._tuned)

    def _tuned(self, given: ClientInputs, broadcast: Broadcast, data: ClientBatches) -> Tree:
        client_state, context, begun = given["client_state"], given["context"], given.get("begun")
        return tune(
            self.client_pool.method, self.settings, broadcast, client_state, data, context, functional_gradient, begun
        )

    @contextmanager
    def _chunk(
        self,
        broadcast: Broadcast,
        purpose: str,
        ids: list[int],
        schedules: list[BatchSchedule],
        accepted: AcceptedRounds,
    ) -> Iterator[ClientChunk]:
        """The clients stacked, while torch draws numbers of their own."""
        client_pool = self.client_pool
        lots = self._lots(broadcast.round, ids, [*schedules, client_pool.whole(ids, broadcast.round)])
        # by its first client, whom no other process and no other group trains in this round
        dropout = seeds.number(client_pool.settings.seed, purpose, broadcast.round, ids[0])
        with seeds.isolated(dropout, client_pool.source.x.device), torch.no_grad():
            told = ids if self._tells(broadcast) else ids[:1]  # nothing, which is the same for all
            own = zip(told, *schedules)
            given = {
                "client_state": client_pool.client_states.stacked(ids, accepted),
                "size": client_pool.sizes_of(ids),
            }
            given |= join_nests([self._given(k, broadcast, lesson, accepted.get(k)) for k, *lesson in own], torch.stack)
            yield ClientChunk(broadcast, given, lots[:-1], lots[-1], [lot.kinds for lot in lots])

    @cached_property
    def _begins_stacked(self) -> bool:
        """Whether nobody has to look at clients one by one before their training starts."""
        return all(p.vmappable for p in self.client_pool.method.role(Personalizer))

    def _tells(self, broadcast: Broadcast) -> bool:
        """Whether clients are told anything of their own beside their memories."""
        return bool(broadcast.own) or self.client_pool.method.has_facts or not self._begins_stacked

    def _given(self, client: int, broadcast: Broadcast, lesson: list[Batches], accepted: int | None) -> ClientInputs:
        """What `train` is told of a client beside its size and its memory, all of it tensors; with how it begins, if need be."""
        client_pool, context = self.client_pool, self.client_pool.context(client)
        given = {"context": context, "messages": broadcast.own.get(client, {})}
        if self._begins_stacked:
            return given
        client_state = client_pool.client_states.get(client, accepted)
        data = client_pool.data(client, broadcast.round, lesson, client_pool.settings.model)
        begun, client_state = begin_training(
            client_pool.method, client_pool.settings, broadcast.to(client), client_state, data, context
        )
        return given | {"begun": begun, "client_state": client_state}

    @profiled_function("data")
    def _lots(self, round: int, ids: list[int], parts: list[BatchSchedule]) -> list[StackedBatches]:
        """Each part of the clients' batches stacked, transformed."""
        source, transform = self.client_pool.source, self.client_pool.transform
        found = [StackedBatches.of(source.x, source.y, part) for part in parts]
        if transform is None:
            return found
        drawn = [self.client_pool.numbers(k, round, own) for k, *own in zip(ids, *parts, strict=True)]
        return [
            lot.transformed(transform(lot.x, _laid_out(numbers, lot.index.shape).to(lot.x.device))) if lot else lot
            for lot, numbers in zip(found, zip(*drawn), strict=True)
        ]


def cuts(sizes: np.ndarray, width: int) -> list[int]:
    """Where clients of ascending `sizes` are cut into chunks of at most `width`, of whose rows at most half are padding."""
    if 0 < len(sizes) <= width and sizes[0] == sizes[-1]:
        return []
    found, first, rows = [], 0, 0
    for i, size in enumerate(sizes.tolist()):
        rows += size
        if i - first == width or (i - first + 1) * size > 2 * rows:
            found.append(i)
            first, rows = i, size
    return found


def _cut(clients: list[int], width: int) -> list[list[int]]:
    return [clients[i : i + width] for i in range(0, len(clients), width)]


def _laid_out(drawn: Sequence[list[Tensor]], shape: torch.Size) -> Tensor:
    """Numbers [b, draws] of every batch as one tensor [K, T, B, draws]; padding gets zeros."""
    some = next(u for batches in drawn for u in batches)
    laid = torch.zeros(*shape[:3], some.shape[1], dtype=some.dtype)
    for k, batches in enumerate(drawn):
        for t, u in enumerate(batches):
            laid[k, t, : len(u)] = u
    return laid
