"""Client updates of a linear method, added up as they arrive: the server holds one model for any number of clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import map_tensors, select_rows
from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.views import Cohort, Members, ServerState
from unalike.methods.method import Method
from unalike.methods.notes import note
from unalike.methods.part import overrides
from unalike.methods.roles import Upload
from unalike.training.server.kept_updates import KeptUpdates, UpdateBuffer
from unalike.training.server.server_round import ServerRound, SumWeights
from unalike.training.server.update_checks import (
    all_finite,
    find_faults,
    find_oversized,
    update_norms,
)
from unalike.training.server.updates import (
    NO_CLIENT_UPDATE,
    Combined,
    Updates,
    decode_updates,
    sum_of_folds,
)


class OtherWeights(UnalikeError):
    """The clients whose updates count have other weights than they were added up with, and no one factor corrects the sum."""


@dataclass(frozen=True)
class SummedUpdates:
    """Client updates that were added up as they came (see `Updates`).

    `update` is sum_k c_k update_k, `buffers` sum_k p_k buffers_k, of integers the maximum, `folded` the sum of each part's
    `fold`: over the clients `ids`, whose updates count. `used_weights` has the factors c_k and p_k, as they were known before
    the clients answered, also of those that are refused. `norms` are those of updates that were seen one by one.
    """

    ids: tuple[int, ...]
    numbers: ClientUpdate
    update: Tree
    buffers: Tree
    folded: PartTrees
    used_weights: SumWeights
    refused: dict[int, str] = field(default_factory=dict)
    started_from: Mapping[int, int] = field(default_factory=dict)
    bytes_each: int = 0
    norms: dict[int, float] = field(default_factory=dict)

    @property
    def oversized(self) -> dict[int, str]:
        return find_oversized(self.norms)

    def cohort(self, server: ServerRound, members: Members) -> Cohort:
        return _numbers_alone(self, server, members)

    def combined(
        self, server: ServerRound, cohort: Cohort, screened: Cohort, weights: Tensor
    ) -> Combined:
        """The sums, corrected for the `weights` that the clients have without those that are refused. Raises `OtherWeights`."""
        coefficients = server.coefficients(cohort, weights)
        used = self.used_weights.of(self.ids)
        of_buffers = _common_factor(weights, used.weights)
        of_updates = _common_factor(coefficients, used.coefficients)
        if of_buffers is None or of_updates is None:
            raise OtherWeights("the weights of the updates changed by more than one factor")
        note("weight", weights)
        note("coefficient", coefficients)

        update = self.update if of_updates == 1 else tree.scale(self.update, of_updates)
        buffers = self.buffers
        if of_buffers != 1 and server.settings.buffers != "first":
            buffers = tree.map(lambda b: b * of_buffers if b.is_floating_point() else b, buffers)
        return Combined(update=update, buffers=buffers, folded=self.folded)


def add_up(kept: KeptUpdates, server: ServerRound, members: Members) -> SummedUpdates:
    """Kept updates of a linear method, added up one by one, those of earlier models first, in the order of the clients.

    The bits are those of a round in which they were added up as they came, and memory holds one of them beside the sum.
    """
    weights = server.sum_weights(_numbers_alone(kept, server, members))
    total = StreamingSum(server.method, server.state, weights, server.settings.buffers)
    # they are sorted by the round that they trained; who trained the current model is in none of `started_from`
    for client in sorted(kept.ids, key=lambda k: kept.started_from.get(k, server.state.round)):
        total.add([client], kept.rows.row(client))
    return replace(total.updates, started_from=kept.started_from)


def _numbers_alone(updates: Updates, server: ServerRound, members: Members) -> Cohort:
    """The cohort of these updates, of which each client's numbers are seen alone."""
    return Cohort(
        ids=updates.ids,
        stacked=updates.numbers,
        members=members,
        folded=True,
        rounds_late=server.rounds_since(updates.started_from),
    )


def _common_factor(exact: Tensor, used: Tensor) -> float | None:
    """The factor f with exact = f * used, [K] each; None if there is none."""
    used = used.to(exact)
    if torch.equal(exact, used):
        return 1.0
    total = float(exact.sum())
    total_used = float(used.sum())
    if total == total_used:
        factor = 1.0
    elif total_used:
        factor = total / total_used
    else:
        factor = 0.0
    return factor if torch.allclose(exact, factor * used, rtol=1e-5, atol=0) else None


class StreamingSum:
    """Adds up client updates as they arrive (an `UpdateSink`): the memory of one model for any number of clients.

    `weights` are the factors of the clients. For a linear method they follow from numbers that are known before the clients
    answer (`ServerRound.sum_weights`). An invalid update is left out; `SummedUpdates` corrects the factors of the others.
    `sent` has the round and the model that the clients were sent. With `encoded` the sum is that of the updates as they were
    sent, in the precision of the model, for uploads that are `additive`.

    Sums depend on the order of addition: add in a fixed order to get the same bits twice.
    """

    def __init__(
        self,
        method: Method,
        sent: Broadcast | ServerState,
        weights: SumWeights,
        buffers: str = "average",
        encoded: bool = False,
    ):
        self.method = method
        self.sent = sent
        self.weights = weights
        self.buffer_rule = buffers
        self.encoded = encoded
        self._folding_parts = [p for p in method.parts if overrides(p, "fold")]
        self._has_uploads = bool(method.role(Upload))

        self._update: Tree = {}
        self._buffers: Tree = {}
        self._folded: PartTrees = {}
        self._numbers = UpdateBuffer(weights.ids)
        self._refused: dict[int, str] = {}
        self._norms: dict[int, float] = {}
        self._bytes_each = 0
        # with the rule "first" buffers are those of the client with the least place among `weights.ids`
        self._first_place = len(weights.ids)

    @property
    def updates(self) -> SummedUpdates:
        """The sums so far."""
        ids = self._numbers.arrived
        return SummedUpdates(
            ids=tuple(ids),
            numbers=self._numbers.stacked(ids) if ids else NO_CLIENT_UPDATE,
            update=tree.map(Tensor.contiguous, self._update),
            buffers=tree.map(Tensor.contiguous, self._buffers),
            folded=map_tensors(Tensor.contiguous, self._folded),
            used_weights=self.weights,
            refused=self._refused,
            bytes_each=self._bytes_each,
            norms=self._norms,
        )

    def factors(self, ids: Sequence[int]) -> Tensor | None:
        """The coefficients of `ids`; None if a part reads single updates (`fold`, uploads)."""
        if self._folding_parts or self._has_uploads:
            return None
        return self.weights.of(ids).coefficients

    @profiled_function("aggregation")
    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None:
        """Add the stacked updates of `ids`; see `UpdateSink.add`. Invalid updates are left out and named in `refused`."""
        if summed:
            self._bytes_each = tree.nbytes(client_update.update)
            self._update = _add_onto(self._update, tree.row(client_update.update, 0))
            self._add_all_but_update(ids, client_update, client_update.update)
            return
        factors = self.weights.of(ids).coefficients
        total = self._finite_sum(factors, client_update)
        norms = {} if self._has_uploads else update_norms(ids, client_update.update)

        # A finite sum has finite terms, and so has a finite norm: then the updates need not be read again to find faults.
        is_finite = total is not None or (bool(norms) and all(map(math.isfinite, norms.values())))
        doubtful = client_update._replace(update={}) if is_finite else client_update
        faults = find_faults(ids, doubtful)
        if faults:
            self._refused |= faults
            self._add_without(faults, ids, client_update)
            return

        self._bytes_each = tree.nbytes(client_update.update) // len(ids)
        update = decode_updates(self.method, client_update.update, self.sent)
        self._norms |= norms or update_norms(ids, update)
        if total is not None:
            self._update = _add_onto(self._update, total)
        else:
            addends = self._as_sent(client_update.update) if self.encoded else update
            self._update = _add_weighted(self._update, addends, factors)
        self._add_all_but_update(ids, client_update, update)

    @profiled_function("aggregation")
    def merge(self, other: SummedUpdates) -> None:
        """Add the sums of another `StreamingSum` of the same round."""
        places = [self.weights.places[client] for client in other.ids]
        first_place = min(places, default=self._first_place)
        self._update = tree.total(self._update, other.update)
        self._join_buffers(other.buffers, first_place)
        for name, folded in other.folded.items():
            self._folded[name] = tree.total(self._folded.get(name, {}), folded)
        if other.ids:
            self._numbers.add(other.ids, other.numbers)
        self._refused |= other.refused
        self._norms |= other.norms
        self._bytes_each = self._bytes_each or other.bytes_each

    def _finite_sum(self, factors: Tensor, client_update: ClientUpdate) -> Tree | None:
        """sum_k factors_k update_k over several clients, if it is finite; None if it is not, or cannot be computed at once.

        A client's update enters only with a factor other than 0, and encoded updates have to be decoded first.
        """
        if len(factors) == 1 or not factors.all() or self._has_uploads:
            return None
        total = _add_weighted({}, client_update.update, factors)
        return total if all_finite(total.values()) else None

    def _as_sent(self, update: Tree) -> Tree:
        """Encoded updates in the precision of the model: their own numbers may be too coarse to be multiplied."""
        dtype = tree.dtype(self.sent.params)
        return tree.map(lambda t: t.to(dtype), update)

    def _add_without(
        self, faults: dict[int, str], ids: Sequence[int], client_update: ClientUpdate
    ) -> None:
        """Add the updates of the other clients."""
        valid_rows = [row for row, client in enumerate(ids) if client not in faults]
        if valid_rows:
            valid_ids = [ids[row] for row in valid_rows]
            self.add(valid_ids, select_rows(client_update, torch.tensor(valid_rows)))

    def _add_all_but_update(
        self, ids: Sequence[int], client_update: ClientUpdate, update: Tree
    ) -> None:
        """Add buffers, numbers, and the folds of valid updates, which are decoded in `update`."""
        weights = self.weights.of(ids)
        self._add_buffers(client_update.buffers, weights)
        for part in self._folding_parts:
            message = client_update.messages.get(part.name, {})
            folded = sum_of_folds(part, update, message, weights.importance)
            self._folded[part.name] = tree.total(self._folded.get(part.name, {}), folded)
        self._numbers.add(ids, client_update.numbers)

    def _add_buffers(self, stacked: Tree, weights: SumWeights) -> None:
        if not stacked:
            return
        places = [self.weights.places[client] for client in weights.ids]
        first_place = min(places)
        if self.buffer_rule == "first":
            buffers = tree.row(stacked, places.index(first_place))
        else:
            floats = {name: b for name, b in stacked.items() if b.is_floating_point()}
            sums = _add_weighted({}, floats, weights.weights)
            buffers = {
                name: sums[name] if name in sums else b.amax(0) for name, b in stacked.items()
            }
        self._join_buffers(buffers, first_place)

    def _join_buffers(self, buffers: Tree, first_place: int) -> None:
        """Join the buffers of other clients, the first of which has this place among `weights.ids`, to those so far."""
        comes_earlier = first_place < self._first_place
        self._first_place = min(first_place, self._first_place)
        if not self._buffers or not buffers:
            self._buffers = self._buffers or buffers
        elif self.buffer_rule == "first":
            self._buffers = buffers if comes_earlier else self._buffers
        else:
            self._buffers = tree.map(_joined_buffer, self._buffers, buffers)


def _joined_buffer(a: Tensor, b: Tensor) -> Tensor:
    return a + b if a.is_floating_point() else torch.maximum(a, b)


def _add_weighted(total: Tree, stacked: Tree, factors: Tensor) -> Tree:
    """total + sum_k factors_k stacked_k, in the memory of `total`. An empty `total` counts as 0."""
    if len(factors) > 1:
        return _add_onto(total, tree.weighted_sum(stacked, factors))
    [factor] = factors.tolist()
    if not total:
        return tree.map(lambda t: t[0] * factor, stacked)
    addends = [stacked[name][0] for name in total]
    torch._foreach_add_([*total.values()], addends, alpha=factor)
    return total


def _add_onto(total: Tree, addend: Tree) -> Tree:
    """total + addend, in the memory of `total`. An empty `total` counts as 0."""
    for name, t in total.items():
        t.add_(addend[name])
    return total or addend
