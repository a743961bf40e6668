"""Many clients at once: their models stacked along a leading dimension, one `torch.vmap(train)` per chunk.

Clients are sorted by their number of steps and cut into chunks. Within a chunk shorter batches and finished clients are padded
with rows of weight 0, which never count; a step of padding alone changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unalike.core import seed, tree
from unalike.core.client import begin, train, tune
from unalike.core.gather import Sink, join
from unalike.core.local import Data, Setting
from unalike.core.part import Personaliser
from unalike.core.stepping import functional
from unalike.core.types import Batch, Drawers, Order, Report, Tree
from unalike.executors.base import Accepted, Answering, Site

CACHE = 12 * 2**20
"""Bytes that the parameters, gradients and momenta of a chunk may take on a CPU: about what stays in its caches."""
DEVICE = 2**30
"""The same on an accelerator."""

Lessons = dict[int, list[list[np.ndarray]]]
"""Client -> its batches in each phase, as index arrays."""
Given = dict[str, Any]
"""What `train` is told of a client, by name; stacked, every tensor has a leading [K]."""
Rows = dict[str, Tensor]
"""Batches of a chunk: `x` [K, T, B, ...], `y` [K, T, B], and `weight` [K, T, B] where some rows are padding."""


@dataclass(frozen=True)
class Batched(Answering):
    """Runs `train` for chunks of stacked clients. `chunk`: clients per chunk, None: by the size of the model."""

    site: Site
    chunk: int | None = None
    _fits: list[int] = field(default_factory=list, compare=False)  # clients that were left when memory ran out

    def feed(self, order: Order, ids: Sequence[int], accepted: Accepted, sink: Sink) -> None:
        lessons = {client: self.site.training(client, order.round) for client in ids}
        for chunk, report in self._each_chunk(order, lessons, accepted, self._train):
            sink.add(chunk, report)

    def tune(self, order: Order, ids: Sequence[int], accepted: Accepted) -> Iterator[tuple[int, Tree]]:
        lessons = {client: self.site.tuning(client, order.round) for client in ids}
        for chunk, tuned in self._each_chunk(order, lessons, accepted, self._tune):
            yield from ((client, tree.row(tuned, i)) for i, client in enumerate(chunk))

    def _each_chunk(
        self, order: Order, lessons: Lessons, accepted: Accepted, work: Callable[..., Any]
    ) -> Iterator[tuple[list[int], Any]]:
        """Chunks with what `work` makes of them. One that does not fit into memory is halved, and so are all after it."""
        waiting, number = deque(self._chunks(lessons)), 0
        while waiting:
            chunk = waiting.popleft()
            try:
                done = work(order, number, {k: lessons[k] for k in chunk}, accepted)
            except RuntimeError as error:
                if len(chunk) == 1 or not _out_of_memory(error):
                    raise
                self._fits.append(-(-len(chunk) // 2))
                waiting = deque(part for c in (chunk, *waiting) for part in _cut(c, self._fits[-1]))
                continue
            number += 1
            yield chunk, done

    @cached_property
    def setting(self) -> Setting:
        """The setting with the task as it is fastest when stacked."""
        return replace(self.site.setting, task=self.site.setting.task.stacked)

    def _chunks(self, lessons: Lessons) -> list[list[int]]:
        """The clients by length of their lessons, cut into chunks."""

        def length(client: int) -> tuple[int, int, int]:
            batches = [batch for phase in lessons[client] for batch in phase]
            return len(batches), sum(map(len, batches)), client

        return _cut(sorted(lessons, key=length), self.width)

    @property
    def width(self) -> int:
        """Clients per chunk."""
        if self._fits or self.chunk is not None:
            return min([*self._fits, *([self.chunk] if self.chunk else [])])
        budget = CACHE if self.site.source.x.device.type == "cpu" else DEVICE
        return max(1, budget // (3 * tree.nbytes(self.site.setting.model.params)))

    def _train(self, order: Order, number: int, lessons: Lessons, accepted: Accepted) -> Report:
        site = self.site

        def one(given: Given, order: Order, data: Data) -> tuple[Report, Drawers]:
            memory, context, size = (given[name] for name in ("memory", "context", "size"))
            begun = given.get("begun")
            return train(site.method, self.setting, order, memory, size, data, context, functional, begun)

        report, kept = self._stacked(one, order, number, "dropout of chunks", lessons, accepted)
        for i, client in enumerate(lessons):
            own = {
                name: tree.map(Tensor.clone, tree.row(t, i)) for name, t in kept.items()
            }  # not to pin the whole chunk
            site.memories.put(client, order.round, own, accepted.get(client))
        return report

    def _tune(self, order: Order, number: int, lessons: Lessons, accepted: Accepted) -> Tree:
        site = self.site

        def one(given: Given, order: Order, data: Data) -> Tree:
            memory, context, begun = given["memory"], given["context"], given.get("begun")
            return tune(site.method, self.setting, order, memory, data, context, functional, begun)

        return self._stacked(one, order, number, "dropout of tuned chunks", lessons, accepted)

    def _stacked(
        self,
        function: Callable[[Given, Order, Data], Any],
        order: Order,
        number: int,
        purpose: str,
        lessons: Lessons,
        accepted: Accepted,
    ) -> Any:
        """`function` for each client of a chunk: given its memory and facts, the order and its data."""
        site, ids = self.site, list(lessons)
        parts = [[*lessons[k], site.whole(k, order.round)] for k in ids]
        *phases, whole = self._parts(order.round, ids, parts)
        *kinds, last = [_kinds(list(part)) for part in zip(*parts)]
        # norms update buffers in place, which needs a row of them for each client
        buffers = tree.map(lambda b: b.expand(len(ids), *b.shape), order.buffers)

        def one(given: Given, buffers: Tree, phases: list[Rows], whole: Rows) -> Any:
            data = Data([_batches(*part) for part in zip(phases, kinds, strict=True)], _batches(whole, last))
            return function(given, order.with_mail(given["mail"])._replace(buffers=buffers), data)

        dropout = seed.number(site.setting.seed, purpose, order.round, number)
        with seed.isolated(dropout, site.source.x.device), torch.no_grad():
            given = join([self._given(k, order, lessons[k], accepted.get(k)) for k in ids], torch.stack)
            return torch.vmap(one, randomness="different")(given, buffers, phases, whole)

    def _given(self, client: int, order: Order, lesson: list[list[np.ndarray]], accepted: int | None) -> Given:
        """What `train` is told of a client, all of it tensors."""
        site = self.site
        memory, context = site.memories.get(client, accepted), site.context(client)
        given = {"memory": memory, "context": context, "size": site.size(client), "mail": order.own.get(client, {})}
        if all(p.vmappable for p in site.method.role(Personaliser)):
            return given
        data = site.data(client, order.round, lesson)
        begun, memory = begin(site.method, site.setting, order.to(client), memory, data, context)
        return given | {"begun": begun, "memory": memory}

    def _parts(self, round: int, ids: list[int], parts: list[list[list[np.ndarray]]]) -> list[Rows]:
        """Each part of the clients' batches (by client, then part) as stacked rows, transformed."""
        found = [self._rows(list(part)) for part in zip(*parts)]
        transform = self.site.transform
        if transform is None:
            return found
        drawn = [self.site.numbers(k, round, own) for k, own in zip(ids, parts, strict=True)]
        return [
            rows | {"x": transform(rows["x"], _laid_out(numbers, rows["y"].shape).to(rows["x"].device))} if rows else {}
            for rows, numbers in zip(found, zip(*drawn), strict=True)
        ]

    def _rows(self, batches: list[list[np.ndarray]]) -> Rows:
        if not any(batches):
            return {}
        index, weight = _padded(batches)
        source = self.site.source
        rows = {"x": source.x[index], "y": source.y[index]}
        return rows if weight is None else rows | {"weight": weight.to(source.x.device)}


def _cut(clients: list[int], width: int) -> list[list[int]]:
    return [clients[i : i + width] for i in range(0, len(clients), width)]


def _out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, on an accelerator or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _laid_out(drawn: Sequence[list[Tensor]], shape: torch.Size) -> Tensor:
    """Numbers [b, draws] of every batch as one tensor [K, T, B, draws]; padding gets zeros."""
    some = next(u for batches in drawn for u in batches)
    laid = torch.zeros(*shape[:3], some.shape[1], dtype=some.dtype)
    for k, batches in enumerate(drawn):
        for t, u in enumerate(batches):
            laid[k, t, : len(u)] = u
    return laid


class Kind(NamedTuple):
    """What is known of a step of a chunk: whether every row counts, and whether some client has no rows at all."""

    full: bool
    idle: bool


def _kinds(batches: list[list[np.ndarray]]) -> list[Kind]:
    sizes = [[len(b) for b in column] for column in zip_longest(*batches, fillvalue=())]
    width = max(map(max, sizes), default=0)
    return [Kind(min(column) == width, min(column) == 0) for column in sizes]


def _batches(rows: Rows, kinds: list[Kind]) -> list[Batch]:
    """The batches [T, B, ...] of one client one by one."""
    weights = rows.get("weight")
    return [
        Batch(rows["x"][t], rows["y"][t], None if full or weights is None else weights[t], idle)
        for t, (full, idle) in enumerate(kinds)
    ]


def _padded(batches: list[list[np.ndarray]]) -> tuple[Tensor, Tensor | None]:
    """Indices [K, T, B] and weights [K, T, B], None where nothing is padded. Padding repeats sample 0 with weight 0."""
    sizes = np.array(list(zip_longest(*([len(b) for b in client] for client in batches), fillvalue=0)), np.int64).T
    counts = np.arange(sizes.max()) < sizes[:, :, None]
    index = np.zeros(counts.shape, np.int64)
    index[counts] = np.concatenate([batch for client in batches for batch in client])
    return torch.from_numpy(index), None if counts.all() else torch.from_numpy(counts.astype(np.float32))
