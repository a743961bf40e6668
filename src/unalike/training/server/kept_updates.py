"""Client updates that are kept, each by itself: in memory, or in files that are read one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import index_of, map_tensors, select_rows, tensors_of
from unalike.core.types import ClientUpdate, Tree
from unalike.core.update_spread import weighted_sum_and_spread
from unalike.core.views import Cohort, Members, ServerState
from unalike.methods import return_checks
from unalike.methods.method import Method
from unalike.methods.notes import note
from unalike.training.server.server_round import ServerRound, seen_by
from unalike.training.server.update_checks import find_faults, find_oversized, update_norms
from unalike.training.server.updates import Combined, decode_updates, sum_of_folds


class UpdateRows(Protocol):
    """The place of kept updates: memory (`UpdateBuffer`), or the files of a federation (`UpdateStore`)."""

    def row(self, client: int) -> ClientUpdate:
        """The update of one client, along a leading [1]."""

    def stacked(self, clients: Sequence[int]) -> ClientUpdate:
        """The updates of these clients along a leading [k]."""


class UpdateBuffer:
    """Keeps the updates of `ids`, in that order, in the rows of tensors that are allocated once for all clients.

    Joining a list of updates at the end would hold every layer twice. Keeping many small tensors would fragment the process's
    memory between the freed tensors of local training.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self._arrived: set[int] = set()
        self._rows: ClientUpdate | None = None

    @cached_property
    def _row_of(self) -> dict[int, int]:
        """Client -> row."""
        return {client: place for place, client in enumerate(self.ids)}

    def factors(self, ids: Sequence[int]) -> None:
        """None: the buffer keeps every update."""

    @profiled_function("aggregation")
    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None:
        assert not summed, "a buffer keeps every update, and was given their sum"
        self._arrived.update(ids)
        if list(ids) == self.ids:
            self._rows = map_tensors(Tensor.contiguous, client_update)
            return
        if self._rows is None:
            count = len(self.ids)
            self._rows = map_tensors(lambda t: t.new_empty((count, *t.shape[1:])), client_update)
        index = index_of([self._row_of[client] for client in ids])
        for rows, t in zip(tensors_of(self._rows), tensors_of(client_update), strict=True):
            rows[index] = t

    @property
    def arrived(self) -> list[int]:
        """The clients whose updates have arrived."""
        if len(self._arrived) == len(self.ids):
            return self.ids
        return [client for client in self.ids if client in self._arrived]

    def row(self, client: int) -> ClientUpdate:
        return self._select([self._row_of[client]])

    def stacked(self, clients: Sequence[int]) -> ClientUpdate:
        if list(clients) == self.ids and len(self._arrived) == len(self.ids):
            assert self._rows is not None
            return self._rows
        return self._select([self._row_of[client] for client in clients])

    def _select(self, rows: list[int]) -> ClientUpdate:
        assert self._rows is not None, "no update has arrived"
        return select_rows(self._rows, torch.tensor(rows))


@dataclass(frozen=True)
class KeptUpdates:
    """Client updates that are kept, each by itself (see `Updates`).

    `rows` has the whole updates. They are read when a method looks at all of them at once, or one by one to be added up.
    """

    ids: tuple[int, ...]
    numbers: ClientUpdate
    rows: UpdateRows
    refused: Mapping[int, str] = field(default_factory=dict)
    oversized: Mapping[int, str] = field(default_factory=dict)
    started_from: Mapping[int, int] = field(default_factory=dict)
    bytes_each: int = 0

    @classmethod
    def in_memory(cls, ids: Sequence[int], stacked: ClientUpdate) -> KeptUpdates:
        """The updates of `ids`, every tensor [K, ...]."""
        rows = UpdateBuffer(ids)
        rows.add(ids, stacked)
        return cls(ids=tuple(ids), numbers=stacked.numbers, rows=rows)

    @classmethod
    def checked(
        cls, ids: Sequence[int], stacked: ClientUpdate, method: Method, sent: ServerState
    ) -> KeptUpdates:
        """The usable ones among the updates of `ids`, which were asked to train the model of the state `sent`."""
        refused = find_faults(ids, stacked)
        if refused:
            valid_rows = [row for row, client in enumerate(ids) if client not in refused]
            ids = [ids[row] for row in valid_rows]
            stacked = select_rows(stacked, torch.tensor(valid_rows, dtype=torch.int64))
        if not ids:
            return cls(ids=(), numbers=stacked.numbers, rows=UpdateBuffer(()), refused=refused)
        kept = cls.in_memory(ids, stacked)
        # what counts is the size of an update as it is applied, not as it was encoded
        decoded = decode_updates(method, stacked.update, sent)
        return cls(
            ids=kept.ids,
            numbers=kept.numbers,
            rows=kept.rows,
            refused=refused,
            oversized=find_oversized(update_norms(ids, decoded)),
            bytes_each=tree.nbytes(stacked.update) // len(ids),
        )

    @property
    def stacked(self) -> ClientUpdate:
        """All updates as they were sent, every tensor [K, ...]."""
        return self.rows.stacked(self.ids)

    def cohort(self, server: ServerRound, members: Members) -> Cohort:
        cohort = Cohort(
            ids=self.ids,
            stacked=self.stacked,
            members=members,
            rounds_late=server.rounds_since(self.started_from),
        )
        return cohort.with_update(decode_updates(server.method, cohort.update, server.state))

    def combined(
        self, server: ServerRound, cohort: Cohort, screened: Cohort, weights: Tensor
    ) -> Combined:
        if len(screened.ids) == len(cohort.ids):
            note("weight", weights)
        update, spread = _combined_update(server, screened, weights)

        # The folds count every client's own update, whatever the aggregator was shown of it.
        importance = server.importance(cohort)
        folded = {}
        for part in server.method.parts:
            message = seen_by(part, cohort).message
            folded[part.name] = sum_of_folds(part, cohort.update, message, importance)

        buffers = _combined_buffers(server, screened, weights)
        return Combined(update=update, buffers=buffers, folded=folded, spread=spread)


def _combined_update(server: ServerRound, cohort: Cohort, weights: Tensor) -> tuple[Tree, Tree]:
    """The aggregator's update, and the spread of the cohort if a part needs it: one pass over the updates gives both."""
    if not cohort.update:  # all parameters are private
        return {}, {}
    method = server.method
    is_measured = any(part.needs == "spread" for part in method.parts)
    if method.combines_by_weighted_sum and is_measured:
        return weighted_sum_and_spread(cohort.update, server.coefficients(cohort, weights))
    rule = method.aggregator
    update = rule.combine(server.view(rule, cohort.update), seen_by(rule, cohort), weights)
    return return_checks.check_names(rule, "combine", update, cohort.update), {}


def _combined_buffers(server: ServerRound, cohort: Cohort, weights: Tensor) -> Tree:
    """Float buffers by the aggregator's rule, integer ones their maximum, in the order and dtype of the model."""
    stacked = cohort.stacked.buffers
    if server.settings.buffers == "first":
        return tree.row(stacked, 0)
    floats = {name: b for name, b in stacked.items() if b.is_floating_point()}
    combined = server.method.aggregator.combine_buffers(floats, weights) if floats else {}
    return {name: combined[name] if name in combined else b.amax(0) for name, b in stacked.items()}
