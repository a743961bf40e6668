"""The executor `batched`: clients stacked in chunks, trained by `torch.vmap` or, for chains of layers, in compiled loops.

Clients are sorted by their number of samples and cut into chunks of similar ones. Within a chunk shorter batches and finished
clients are padded with rows of weight 0, which never count; a step of padding alone changes nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import join_nests
from unalike.core.types import Broadcast, ClientUpdate, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Batches
from unalike.engine.base import AcceptedRounds, Executor, client_costs
from unalike.engine.batch_schedule import BatchSchedule
from unalike.engine.client_chunk import ClientChunk, ClientInputs, StackedBatches, is_out_of_memory
from unalike.engine.compiled import compiled_training
from unalike.engine.compiled.layer_chain import chain_of
from unalike.engine.threads import KEPT
from unalike.methods.method import Method
from unalike.methods.roles import Personalizer, Phase
from unalike.training.client.client_update import stepwise, train, tune
from unalike.training.server.update_checks import find_faults, has_suspicious_loss
from unalike.training.server.updates import UpdateSink

CACHE = 15 * 2**20
"""Bytes of the parameters, gradients and momenta of a chunk on a CPU: about as much as its caches hold."""
DEVICE = 2**30
"""The same on an accelerator."""
SUMMED = 4
"""Chunks of compiled loops hold this many times as many clients if only the sum of their updates is written."""
STRETCH = 2**36
"""Products of weights and numbers in a chunk of compiled loops: one or two seconds, for which an interrupt has to wait."""

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
    _fits: list[int] = field(
        default_factory=list, compare=False
    )  # smaller widths, found when memory ran out

    def __post_init__(self) -> None:
        if self.chunk is not None and (not isinstance(self.chunk, int) or self.chunk < 1):
            raise UnalikeError(
                f"batched(chunk={self.chunk!r}): expected a whole number of clients, at least 1, or None"
            )

    def feed(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink
    ) -> None:
        for chunk, (client_update, summed) in self._each_chunk(
            ids, partial(self._train, sink, broadcast, accepted)
        ):
            sink.add(chunk, client_update, summed)

    def tune(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> Iterator[tuple[int, Tree]]:
        for chunk, tuned in self._each_chunk(ids, partial(self._tune, broadcast, accepted)):
            yield from ((client, tree.row(tuned, i)) for i, client in enumerate(chunk))

    def _each_chunk(
        self, ids: Sequence[int], work: Callable[[list[int]], Any]
    ) -> Iterator[tuple[list[int], Any]]:
        """Each chunk and `work(chunk)`. A chunk that does not fit into memory is halved, and so are all after it."""
        waiting = deque(self._chunks(ids))
        while waiting:
            chunk = waiting.popleft()
            try:
                done = work(chunk)
            except RuntimeError as error:
                if len(chunk) == 1 or not is_out_of_memory(error):
                    raise
                half = -(-len(chunk) // 2)
                self._fits.append(half)
                waiting = deque(
                    c[i : i + half] for c in (chunk, *waiting) for i in range(0, len(c), half)
                )
                continue
            yield chunk, done

    @cached_property
    def settings(self) -> StageSettings:
        """The stage's settings with the task in the form that is fastest under `torch.vmap`."""
        return replace(self.client_pool.settings, task=self.client_pool.settings.task.stacked)

    def _chunks(self, ids: Sequence[int]) -> list[list[int]]:
        """The clients sorted by their number of samples and cut into chunks; [] without clients."""
        clients, sizes = np.array(ids, np.int64), self.client_pool.counts(ids)
        order = np.lexsort((clients, sizes))
        places = cuts(sizes[order], self.width)
        if (
            self.client_pool.method.draws_poisson_batches
        ):  # a batch may be empty before a client has finished: all finish at once
            steps = np.array([self.client_pool.steps(n) for n in sizes[order].tolist()])
            places = sorted({*places, *(np.flatnonzero(np.diff(steps)) + 1).tolist()})
        chunks = np.split(clients[order], places)
        return [chunk.tolist() for chunk in chunks if len(chunk)]

    @property
    def width(self) -> int:
        """Clients per chunk."""
        if self._fits or self.chunk is not None:
            return min([*self._fits, *([self.chunk] if self.chunk else [])])
        if self.uses_compiled_loops:
            return self._loops_width
        model = tree.nbytes(self.client_pool.settings.model.params)
        if self.client_pool.method.local_gradient is not None:
            model *= self.client_pool.settings.work.batch_size or self.client_pool.typical
        return max(
            1, (CACHE if self.client_pool.source.x.device.type == "cpu" else DEVICE) // (3 * model)
        )

    @cached_property
    def _loops_width(self) -> int:
        """Clients per chunk in compiled loops: the results fit memory that is kept (`KEPT`), and a chunk takes a second."""
        client_pool, params = self.client_pool, self.client_pool.settings.model.params
        [rows] = client_costs(
            client_pool.method, client_pool.settings.work, np.array([client_pool.typical])
        )
        kept = max(1, KEPT // tree.nbytes(params)) * (
            SUMMED
            if client_pool.method.needs_sums_only and client_pool.method.returns_update_only
            else 1
        )
        chain = chain_of(client_pool.settings.model)
        assert chain is not None  # see `uses_compiled_loops`
        products = chain.products(
            client_pool.source.x.shape[1:], sum(w.numel() for w in params.values())
        )
        passes = compiled_training.passes(client_pool.method)
        return min(kept, max(1, STRETCH // (int(rows) * products * passes)))

    @property
    def uses_compiled_loops(self) -> bool:
        """Whether compiled loops train all clients, also those with the largest batches."""
        return self.compiled_loops and self.loops_obstacle is None

    @cached_property
    def loops_obstacle(self) -> str | None:
        """The reason why compiled loops cannot train all clients; None if they can."""
        method, x = self.client_pool.method, self.client_pool.source.x
        largest = int(self.client_pool.sizes.max(initial=0))
        rows = min(self.settings.work.batch_size or largest, largest)
        return compiled_training.obstacle(method, method.phases, self.settings, x, rows)

    def _in_loops(self, method: Method, phases: Sequence[Phase], chunk: ClientChunk) -> bool:
        """Whether compiled loops train the phases of this chunk."""
        filled = [batches for batches in chunk.phases if batches]
        if not self.compiled_loops or not filled:
            return False
        rows = max(batches.index.shape[2] for batches in filled)
        return (
            compiled_training.obstacle(method, phases, self.settings, filled[0].samples, rows)
            is None
        )

    def _train(
        self, sink: UpdateSink, broadcast: Broadcast, accepted: AcceptedRounds, ids: list[int]
    ) -> tuple[ClientUpdate, bool]:
        """The updates of a chunk, and whether they are summed up already."""
        client_pool, method, summed = self.client_pool, self.client_pool.method, False
        schedules = client_pool.schedules(ids, broadcast.round)
        with self._chunk(broadcast, "dropout of chunks", ids, schedules, accepted) as chunk:
            if self._in_loops(method, method.phases, chunk):
                client_update, kept, summed = compiled_training.train(chunk, sink.factors(ids))
                # each client's own update shows which one is at fault
                if summed and (
                    has_suspicious_loss(client_update.loss) or find_faults(ids, client_update)
                ):
                    client_update, kept, summed = compiled_training.train(chunk)
            else:
                client_update, kept = self.graphs.attempt(
                    partial(self.graphs.train, chunk),
                    partial(chunk.each, partial(train, trainers=STACKED)),
                )
        client_pool.client_states.put_stacked(ids, broadcast.round, kept, accepted)
        return client_update, summed

    def _tune(self, broadcast: Broadcast, accepted: AcceptedRounds, ids: list[int]) -> Tree:
        method, schedules = (
            self.client_pool.method,
            self.client_pool.tuning_schedules(ids, broadcast.round),
        )
        with self._chunk(broadcast, "dropout of tuned chunks", ids, schedules, accepted) as chunk:
            if method.finetuning_phase is not None and self._in_loops(
                method.finetuning_method, (method.finetuning_phase,), chunk
            ):
                return compiled_training.tune(chunk)
            return self.tuning_graphs.attempt(
                partial(self.tuning_graphs.tune, chunk),
                partial(chunk.each, partial(tune, trainers=STACKED)),
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
        """The clients stacked, with torch's generator seeded for them as long as the context lasts."""
        client_pool = self.client_pool
        *phases, whole = self._batches(
            broadcast.round, ids, [*schedules, client_pool.whole(ids, broadcast.round)]
        )
        # seeded by the first client, which no other process and no other model group trains in this round
        dropout = seeds.number(client_pool.settings.seed, purpose, broadcast.round, ids[0])
        with seeds.isolated(dropout, client_pool.source.x.device), torch.no_grad():
            asked = (
                ids if self._has_own_inputs(broadcast) else ids[:1]
            )  # without own inputs one client stands for all
            own = zip(asked, *schedules)
            apart = [self._given(k, broadcast, batches, accepted.get(k)) for k, *batches in own]
            given = {
                "client_state": client_pool.client_states.stacked(ids, accepted),
                "size": client_pool.sizes_of(ids),
            }
            given |= join_nests(apart, torch.stack)
            yield ClientChunk(client_pool.method, self.settings, broadcast, given, phases, whole)

    @cached_property
    def _begins_stacked(self) -> bool:
        """Whether `begin` of all parts can be stacked; else it runs for one client after another."""
        return all(p.vmappable for p in self.client_pool.method.role(Personalizer))

    def _has_own_inputs(self, broadcast: Broadcast) -> bool:
        """Whether clients have inputs of their own beside their states and sizes."""
        client_pool = self.client_pool
        has_facts = client_pool.method.has_facts(client_pool.settings.work)
        return bool(broadcast.own) or has_facts or not self._begins_stacked

    def _given(
        self, client: int, broadcast: Broadcast, batches: list[Batches], accepted: int | None
    ) -> ClientInputs:
        """A client's inputs beside its state and size; with the parameters it begins with, if `begin` cannot be stacked."""
        client_pool, messages = self.client_pool, broadcast.own.get(client, {})
        if self._begins_stacked:
            return {"context": client_pool.context(client), "messages": messages}
        [size] = client_pool.sizes_of([client])
        task = client_pool.task(
            client, size, broadcast, batches, accepted, client_pool.settings
        ).begin()
        return {
            "context": task.context,
            "messages": messages,
            "begun": task.begun,
            "client_state": task.client_state,
        }

    @profiled_function("data")
    def _batches(
        self, round: int, ids: list[int], parts: list[BatchSchedule]
    ) -> list[StackedBatches]:
        """The clients' batches stacked and transformed, one entry per schedule."""
        source, transform = self.client_pool.source, self.client_pool.transform
        found = [StackedBatches.of(source.x, source.y, part) for part in parts]
        if transform is None:
            return found
        drawn = [
            self.client_pool.numbers(k, round, own) for k, *own in zip(ids, *parts, strict=True)
        ]
        return [
            rows.transformed(
                transform(rows.x, _padded(numbers, rows.index.shape).to(rows.x.device))
            )
            if rows
            else rows
            for rows, numbers in zip(found, zip(*drawn), strict=True)
        ]


def cuts(sizes: np.ndarray, width: int) -> list[int]:
    """The positions at which clients of ascending `sizes` are cut into chunks of at most `width` clients and half padding."""
    if 0 < len(sizes) <= width and sizes[0] == sizes[-1]:
        return []
    found, first, rows = [], 0, 0
    for i, size in enumerate(sizes.tolist()):
        rows += size
        if i - first == width or (i - first + 1) * size > 2 * rows:
            found.append(i)
            first, rows = i, size
    return found


def _padded(drawn: Sequence[list[Tensor]], shape: torch.Size) -> Tensor:
    """The random numbers [b, draws] of every batch as one tensor [K, T, B, draws]; padding gets zeros."""
    some = next(u for batches in drawn for u in batches)
    laid = torch.zeros(*shape[:3], some.shape[1], dtype=some.dtype)
    for k, batches in enumerate(drawn):
        for t, u in enumerate(batches):
            laid[k, t, : len(u)] = u
    return laid
