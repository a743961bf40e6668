"""Sinks for the client updates of a round: `UpdateBuffer` keeps all of them, `StreamingSum` only the sums of a linear method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import map_tensors, select_rows, tensors_of
from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import ServerState
from unalike.methods.method import Method
from unalike.methods.part import Part, overrides
from unalike.methods.roles import Upload
from unalike.training.server.update_checks import all_finite, find_faults, update_norms


class UpdateSink(Protocol):
    """Takes client updates as they arrive."""

    def factors(self, ids: Sequence[int]) -> Tensor | None:
        """Coefficients [k] of the updates of `ids` in the sum, if the sink keeps their sum only; else None."""

    @profiled_function("aggregation")
    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None:
        """Add the stacked updates of `ids`.

        Every tensor is [k, ...]. `summed`: the executor has multiplied the updates by `factors` and summed them; then
        `client_update.update` is this sum, [1, ...], and everything in `client_update` is finite.
        """

    @profiled_function("aggregation")
    def merge(self, other: Any) -> None:
        """Add what another sink of the same round has taken."""


class BufferedUpdates(NamedTuple):
    """Client updates that have arrived. `stacked` has every tensor of the K clients `ids` along a leading [K]."""

    ids: list[int]
    stacked: ClientUpdate


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
            self._rows = map_tensors(
                lambda t: t.new_empty((len(self.ids), *t.shape[1:])), client_update
            )
        index = _index([self._row_of[client] for client in ids])
        for rows, t in zip(tensors_of(self._rows), tensors_of(client_update), strict=True):
            rows[index] = t

    @profiled_function("aggregation")
    def merge(self, other: BufferedUpdates) -> None:
        self.add(*other)

    @property
    def taken(self) -> BufferedUpdates | None:
        """The updates that have arrived; None before the first."""
        if self._rows is None:
            return None
        if len(self._arrived) == len(self.ids):
            return BufferedUpdates(self.ids, self._rows)
        rows = [row for client, row in self._row_of.items() if client in self._arrived]
        return BufferedUpdates(
            [self.ids[i] for i in rows], select_rows(self._rows, torch.tensor(rows))
        )


@dataclass(frozen=True)
class SumWeights:
    """Factors of the clients' updates and buffers in the sums of a linear method.

    Of K clients: `weights` [K] are the factors of their buffers, `coefficients` [K] those of their updates;
    `fold` is given their `importance` [K] in the objective.
    """

    ids: tuple[int, ...]
    weights: Tensor
    coefficients: Tensor
    importance: Tensor

    @cached_property
    def places(self) -> dict[int, int]:
        """Client -> its index among `ids`."""
        return {client: place for place, client in enumerate(self.ids)}

    def of(self, ids: Sequence[int]) -> SumWeights:
        """The factors of some of the clients."""
        ids = tuple(ids)
        if ids == self.ids:
            return self
        some = _index([self.places[client] for client in ids])
        return SumWeights(ids, self.weights[some], self.coefficients[some], self.importance[some])


@dataclass
class UpdateSums:
    """The sums over the client updates that have arrived.

    `update` is sum_k c_k update_k, empty before the first one; `buffers` sum_k p_k buffers_k, of integers the maximum; `folded`
    the sum of each part's `fold`. `taken` are the client updates without update, buffers and messages, None if no valid one has
    arrived; `refused` says why an update does not count; `sent` are the bytes of one; `norms` of updates that were seen one by one.
    """

    update: Tree
    buffers: Tree
    folded: PartTrees
    taken: BufferedUpdates | None
    refused: dict[int, str]
    sent: int = 0
    norms: dict[int, float] = field(default_factory=dict)


class StreamingSum:
    """Adds up client updates as they arrive: the memory of one model for any number of clients.

    `shares` are the factors of the clients. For a linear method they follow from numbers that are known before the clients
    answer (`server_update.sum_weights`). An invalid update is left out; `server_update.advance_from_sums` corrects the
    factors of the others. `sent` has the round and the model that the clients were sent. With `encoded` the sum is that of the
    updates as they were sent, in the precision of the model, for uploads that are `additive`.

    Sums depend on the order of addition: add in a fixed order to get the same bits twice.
    """

    def __init__(
        self,
        method: Method,
        sent: Broadcast | ServerState,
        shares: SumWeights,
        buffers: str = "average",
        encoded: bool = False,
    ):
        self.method, self.sent, self.shares, self.rule, self.encoded = (
            method,
            sent,
            shares,
            buffers,
            encoded,
        )
        self.folding = [p for p in method.parts if overrides(p, "fold")]
        self._sums = UpdateSums({}, {}, {}, None, {})
        self._numbers = UpdateBuffer(shares.ids)
        self._first = len(shares.ids)

    @property
    def sums(self) -> UpdateSums:
        """The sums so far."""
        sums = self._sums
        update, buffers = (
            tree.map(Tensor.contiguous, part) for part in (sums.update, sums.buffers)
        )
        folded = map_tensors(Tensor.contiguous, sums.folded)
        return replace(
            sums, update=update, buffers=buffers, folded=folded, taken=self._numbers.taken
        )

    def factors(self, ids: Sequence[int]) -> Tensor | None:
        """The coefficients of `ids`; None if a part reads single updates (`fold`, uploads)."""
        if self.folding or self.method.role(Upload):
            return None
        return self.shares.of(ids).coefficients

    @profiled_function("aggregation")
    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None:
        """Add the stacked updates of `ids`; see `UpdateSink.add`. Invalid updates are left out and noted."""
        mine = self.shares.of(ids)
        total = (
            tree.row(client_update.update, 0)
            if summed
            else self._finite_sum(mine.coefficients, client_update)
        )
        norms = (
            {} if summed or self.method.role(Upload) else update_norms(ids, client_update.update)
        )
        # a finite sum has finite terms, and so has a finite norm: then the updates need not be read again to find faults
        read = total is not None or (norms and all(map(math.isfinite, norms.values())))
        if not summed and (
            faults := find_faults(ids, client_update._replace(update={}) if read else client_update)
        ):
            self._sums.refused |= faults
            if keep := [i for i, client in enumerate(ids) if client not in faults]:
                self.add([ids[i] for i in keep], select_rows(client_update, torch.tensor(keep)))
            return
        sums = self._sums
        sums.sent = tree.nbytes(client_update.update) // (1 if summed else len(ids))
        update = decode_updates(self.method, client_update.update, self.sent)
        sums.norms |= norms or ({} if summed else update_norms(ids, update))
        if total is None:
            # encoded numbers may be too coarse to be multiplied
            kept = (
                tree.map(lambda t: t.to(tree.dtype(self.sent.params)), client_update.update)
                if self.encoded
                else update
            )
            sums.update = _add_weighted(sums.update, kept, mine.coefficients)
        else:
            sums.update = _add_onto(sums.update, total)
        self._add_buffers(client_update.buffers, mine)
        for p in self.folding:
            folded = sum_of_folds(
                p, update, client_update.messages.get(p.name, {}), mine.importance
            )
            sums.folded[p.name] = tree.total(sums.folded.get(p.name, {}), folded)
        self._numbers.add(ids, client_update.numbers)

    def _finite_sum(self, factors: Tensor, client_update: ClientUpdate) -> Tree | None:
        """sum_k factors_k update_k over several clients, if it is finite; None if it is not, or cannot be computed at once.

        A client's update enters only with a factor other than 0, and encoded updates have to be decoded first.
        """
        if len(factors) == 1 or not factors.all() or self.method.role(Upload):
            return None
        found = _add_weighted({}, client_update.update, factors)
        return found if all_finite(found.values()) else None

    @profiled_function("aggregation")
    def merge(self, other: UpdateSums) -> None:
        """Add the sums of another `StreamingSum` of the same round."""
        mine, theirs = self._sums, other.taken.ids if other.taken else []
        first = min((self.shares.places[client] for client in theirs), default=self._first)
        mine.update = tree.total(mine.update, other.update)
        mine.buffers = self._joined(other.buffers, first)
        for name, folded in other.folded.items():
            mine.folded[name] = tree.total(mine.folded.get(name, {}), folded)
        if other.taken:
            self._numbers.merge(other.taken)
        mine.refused |= other.refused
        mine.norms |= other.norms
        mine.sent = mine.sent or other.sent

    def _add_buffers(self, stacked: Tree, mine: SumWeights) -> None:
        if not stacked:
            return
        places = [self.shares.places[client] for client in mine.ids]
        first = min(places)
        if self.rule == "first":
            found = tree.row(stacked, places.index(first))
        else:
            floats = {n: b for n, b in stacked.items() if b.is_floating_point()}
            means = _add_weighted({}, floats, mine.weights)
            found = {n: means[n] if n in means else b.amax(0) for n, b in stacked.items()}
        self._sums.buffers = self._joined(found, first)

    def _joined(self, found: Tree, first: int) -> Tree:
        """The buffers so far with those of other clients; `first` is the least index of these clients among `shares.ids`."""
        before, earlier = self._sums.buffers, first < self._first
        self._first = min(first, self._first)
        if not before or not found:
            return before or found
        if self.rule == "first":
            return found if earlier else before
        return tree.map(
            lambda a, b: a + b if a.is_floating_point() else torch.maximum(a, b), before, found
        )


def decode_updates(method: Method, update: Tree, sent: Broadcast | ServerState) -> Tree:
    """The stacked updates as they were before the uploads encoded them; `sent` has the round, and names and shapes."""
    for u in reversed(method.role(Upload)):
        update = u.decode(update, sent.params, sent.round)
    return update


def decode_update(method: Method, update: Tree, sent: Broadcast | ServerState) -> Tree:
    """`decode_updates` for the update of one client."""
    return tree.row(decode_updates(method, tree.map(lambda t: t[None], update), sent), 0)


def _index(rows: list[int]) -> Tensor | slice:
    """An index of these rows; a slice if they are consecutive, which is faster."""
    first = rows[0]
    consecutive = rows == [*range(first, first + len(rows))]
    return slice(first, first + len(rows)) if consecutive else torch.tensor(rows)


def sum_of_folds(p: Part, update: Tree, message: Tree, importance: Tensor) -> Tree:
    """The sum of the part's `fold` over the clients of this importance [K]; empty where it has none, or nothing to read."""
    if not overrides(p, "fold") or not (update or message):
        return {}
    importance = importance.to(next(iter((update or message).values())).device)
    if len(importance) == 1:
        return p.fold(tree.row(update, 0), tree.row(message, 0), importance[0])
    return tree.map(lambda t: t.sum(0), torch.vmap(p.fold)(update, message, importance))


def _add_weighted(total: Tree, stacked: Tree, factors: Tensor) -> Tree:
    """total + sum_k factors_k stacked_k, in the memory of `total`. An empty `total` counts as 0."""
    if len(factors) == 1:
        [factor] = factors.tolist()
        if not total:
            return tree.map(lambda t: t[0] * factor, stacked)
        torch._foreach_add_([*total.values()], [stacked[name][0] for name in total], alpha=factor)
        return total
    return _add_onto(total, tree.weighted_sum(stacked, factors))


def _add_onto(total: Tree, found: Tree) -> Tree:
    """total + found, in the memory of `total`. An empty `total` counts as 0."""
    for name, t in total.items():
        t.add_(found[name])
    return total or found
