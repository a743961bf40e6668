"""What the server keeps of a round's reports: all of them (`UpdateBuffer`), or only the sums that a linear method needs (`StreamingSum`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.nests import map_tensors, select_rows, tensors_of
from unalike.core.types import ClientUpdate, PartTrees, Tree
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import Upload
from unalike.training.update_checks import find_faults


class UpdateSink(Protocol):
    """Takes reports as they come: `add` a few stacked ones, `merge` what another sink of the same round took.

    `factors` [k] are what the updates of `ids` are multiplied with, where nothing but their sum is kept of them; whoever trains
    them may add it up (`summed`: the update is that sum, along a leading [1], and all of the report is sound).
    """

    def factors(self, ids: Sequence[int]) -> Tensor | None: ...
    @profiled_function("aggregation")
    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None: ...
    @profiled_function("aggregation")
    def merge(self, other: Any) -> None: ...


class BufferedUpdates(NamedTuple):
    """Reports that came: whose, and their body stacked."""

    ids: list[int]
    stacked: ClientUpdate


class UpdateBuffer:
    """Reports of `ids` in that order, in the rows of tensors that are made for all of them at once.

    Joined in the end, every layer would be held twice; kept one by one, small ones would lie between the freed tensors of their
    clients' training, and the process's memory would grow by the pieces between them.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self._came: set[int] = set()
        self._rows: ClientUpdate | None = None

    @cached_property
    def _places(self) -> dict[int, int]:
        """Where each client stands."""
        return {client: place for place, client in enumerate(self.ids)}

    def factors(self, ids: Sequence[int]) -> None:
        """None: they are kept apart."""

    @profiled_function("aggregation")
    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None:
        assert not summed, "reports that are kept apart were asked for"
        self._came.update(ids)
        if list(ids) == self.ids:
            self._rows = map_tensors(Tensor.contiguous, client_update)
            return
        if self._rows is None:
            self._rows = map_tensors(lambda t: t.new_empty((len(self.ids), *t.shape[1:])), client_update)
        places = _at([self._places[client] for client in ids])
        for rows, t in zip(tensors_of(self._rows), tensors_of(client_update), strict=True):
            rows[places] = t

    @profiled_function("aggregation")
    def merge(self, other: BufferedUpdates) -> None:
        self.add(*other)

    @property
    def taken(self) -> BufferedUpdates | None:
        """Those that came; None before the first."""
        if self._rows is None:
            return None
        if len(self._came) == len(self.ids):
            return BufferedUpdates(self.ids, self._rows)
        places = [place for client, place in self._places.items() if client in self._came]
        return BufferedUpdates([self.ids[i] for i in places], select_rows(self._rows, torch.tensor(places)))


@dataclass(frozen=True)
class SumWeights:
    """What the reports of `ids` are multiplied with, [K] each: their buffers with the final `weights`, their updates with the
    `coefficients`.
    """

    ids: tuple[int, ...]
    weights: Tensor
    coefficients: Tensor

    @cached_property
    def places(self) -> dict[int, int]:
        """Where each client stands among `ids`."""
        return {client: place for place, client in enumerate(self.ids)}

    def of(self, ids: Sequence[int]) -> SumWeights:
        """Those of some of them."""
        ids = tuple(ids)
        if ids == self.ids:
            return self
        some = _at([self.places[client] for client in ids])
        return SumWeights(ids, self.weights[some], self.coefficients[some])


@dataclass
class UpdateSums:
    """What has been added up: sum_k c_k update_k, sum_k p_k buffers_k (integers: their maximum) and the parts' folds.

    `taken` are the reports without their tensors (None: no sound one came), `refused` those that count nowhere, `sent` the bytes
    of one update.
    """

    update: Tree
    buffers: Tree
    folded: PartTrees
    taken: BufferedUpdates | None
    refused: dict[int, str]
    sent: int = 0


class StreamingSum:
    """Sums of deltas as reports arrive: the memory of one model, whatever the number of clients.

    `shares` are the participants' weights and coefficients, which for a linear method follow from what is known of them before
    they answer (`server.shares`). A report that `validate` refuses is left out; what that does to the others' weights, and
    reports that say something else than was known, `server.conclude` settles.

    The sums run in the order of arrival, so whoever wants the same bits twice adds in a fixed order.
    """

    def __init__(self, method: Method, params: Tree, shares: SumWeights, buffers: str = "average"):
        self.method, self.params, self.shares, self.rule = method, params, shares, buffers
        self.folding = [p for p in method.parts if type(p).fold is not Part.fold]
        self._sums = UpdateSums({}, {}, {}, None, {})
        self._numbers = UpdateBuffer(shares.ids)
        self._first = len(shares.ids)

    @property
    def sums(self) -> UpdateSums:
        """What has been added up so far."""
        sums = self._sums
        update, buffers = (tree.map(Tensor.contiguous, part) for part in (sums.update, sums.buffers))
        folded = map_tensors(Tensor.contiguous, sums.folded)
        return replace(sums, update=update, buffers=buffers, folded=folded, taken=self._numbers.taken)

    def factors(self, ids: Sequence[int]) -> Tensor | None:
        """The coefficients of `ids`; None where parts look at their updates one by one."""
        if self.folding or self.method.role(Upload):
            return None
        return self.shares.of(ids).coefficients

    @profiled_function("aggregation")
    def add(self, ids: Sequence[int], client_update: ClientUpdate, summed: bool = False) -> None:
        """Take in the reports of `ids`, stacked along a leading [k]."""
        mine = self.shares.of(ids)
        total = tree.row(client_update.update, 0) if summed else self._together(mine.coefficients, client_update)
        bad = {} if summed else find_faults(ids, client_update._replace(update={}) if total else client_update)
        if bad:
            self._sums.refused |= bad
            keep = [i for i, client in enumerate(ids) if client not in bad]
            if keep:
                self.add([ids[i] for i in keep], select_rows(client_update, torch.tensor(keep)))
            return
        sums = self._sums
        sums.sent = tree.nbytes(client_update.update) // (1 if summed else len(ids))
        update = decode_updates(self.method, client_update.update, self.params)
        sums.update = _onto(sums.update, total) if total else _plus(sums.update, update, mine.coefficients)
        self._buffers(client_update.buffers, mine)
        for p in self.folding:
            message = client_update.messages.get(p.name, {})
            if update or message:
                found = _folded(p, update, message, len(ids))
                sums.folded[p.name] = tree.add(sums.folded[p.name], found) if p.name in sums.folded else found
        self._numbers.add(ids, client_update.numbers)

    def _together(self, factors: Tensor, client_update: ClientUpdate) -> Tree:
        """The sum over several reports, if it is finite: then so are all of their updates, which need not be read once more."""
        if len(factors) == 1 or not factors.all() or self.method.role(Upload):
            return {}
        found = _plus({}, client_update.update, factors)
        return found if all(math.isfinite(t.sum()) for t in found.values()) else {}

    def add_one(self, client: int, client_update: ClientUpdate) -> None:
        """Take in one client's report, as `train` returns it."""
        self.add([client], map_tensors(lambda t: t.unsqueeze(0), client_update))

    @profiled_function("aggregation")
    def merge(self, other: UpdateSums) -> None:
        """Take in what another fold of the same round has added up."""
        mine, theirs = self._sums, other.taken.ids if other.taken else []
        first = min((self.shares.places[client] for client in theirs), default=self._first)
        mine.update = (
            tree.add(mine.update, other.update) if mine.update and other.update else mine.update or other.update
        )
        mine.buffers = self._joined(other.buffers, first)
        for name, found in other.folded.items():
            mine.folded[name] = tree.add(mine.folded[name], found) if name in mine.folded else found
        if other.taken:
            self._numbers.merge(other.taken)
        mine.refused |= other.refused
        mine.sent = mine.sent or other.sent

    def _buffers(self, stacked: Tree, mine: SumWeights) -> None:
        if not stacked:
            return
        places = [self.shares.places[client] for client in mine.ids]
        first = min(places)
        if self.rule == "first":
            found = tree.row(stacked, places.index(first))
        else:
            floats = {n: b for n, b in stacked.items() if b.is_floating_point()}
            means = _plus({}, floats, mine.weights)
            found = {n: means[n] if n in means else b.amax(0) for n, b in stacked.items()}
        self._sums.buffers = self._joined(found, first)

    def _joined(self, found: Tree, first: int) -> Tree:
        """The buffers so far with those that others sent, of whom the first asked has place `first`."""
        before, earlier = self._sums.buffers, first < self._first
        self._first = min(first, self._first)
        if not before or not found:
            return before or found
        if self.rule == "first":
            return found if earlier else before
        return tree.map(lambda a, b: a + b if a.is_floating_point() else torch.maximum(a, b), before, found)


def decode_updates(method: Method, update: Tree, params: Tree) -> Tree:
    """The stacked updates as they were before the uploads encoded them; `params` are those of the model."""
    for u in reversed(method.role(Upload)):
        update = u.decode(update, params)
    return update


def _at(places: list[int]) -> Tensor | slice:
    """These places of a tensor; a run of them is found quicker as a slice."""
    first = places[0]
    run = places == [*range(first, first + len(places))]
    return slice(first, first + len(places)) if run else torch.tensor(places)


def _folded(p: Part, update: Tree, message: Tree, count: int) -> Tree:
    if count == 1:
        return p.fold(tree.row(update, 0), tree.row(message, 0))
    return tree.map(lambda t: t.sum(0), torch.vmap(p.fold)(update, message))


def _plus(total: Tree, stacked: Tree, factors: Tensor) -> Tree:
    """total + sum_k factors_k stacked_k, written over `total`; an empty `total` is 0."""
    if len(factors) == 1:
        [factor] = factors.tolist()
        if not total:
            return tree.map(lambda t: t[0] * factor, stacked)
        torch._foreach_add_([*total.values()], [stacked[name][0] for name in total], alpha=factor)
        return total
    return _onto(total, tree.map(lambda t: tree.combined(t, factors.to(t)), stacked))


def _onto(total: Tree, found: Tree) -> Tree:
    """total + found, written over `total`; an empty `total` is 0."""
    for name, t in total.items():
        t.add_(found[name])
    return total or found
