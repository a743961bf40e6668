"""The server half of a round: one pure function, `advance`, and what a part sees on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from unalike.core import returned, seed, tree
from unalike.core.client import Setting
from unalike.core.errors import UnalikeError
from unalike.core.gather import Shares, Sums, decoded, rows
from unalike.core.labels import part_of
from unalike.core.part import BaseWeights, LinearAggregator, Part, ServerStep, Weighting
from unalike.core.spread import spread, weighted_sum_and_spread
from unalike.core.types import Batch, Drawers, Order, Report, Tree

if TYPE_CHECKING:
    from unalike.core.method import Method


class State(NamedTuple):
    """All that the server keeps: after `round` rounds, the model and each part's memory."""

    round: int
    params: Tree
    buffers: Tree
    memory: Drawers


@dataclass(frozen=True)
class Cohort:
    """The reports of a round's participants `ids`, stacked along a leading [K]; `population` counts all clients.

    A part sees its own letters only: `letter` is the tree of what its `finish` sent. `folded`: updates and letters were added
    up as they came; what is left of each report are its numbers. `measured`: their spread, where it is known already.
    """

    ids: tuple[int, ...]
    report: Report
    population: int
    part: str = ""
    folded: bool = False
    measured: Tree = field(default_factory=dict)

    @property
    def update(self) -> Tree:
        """w_k - w, [K, ...]."""
        return self._single(self.report.update)

    @property
    def letter(self) -> Tree:
        return self._single(self.report.letters.get(self.part, {}))

    @property
    def spread(self) -> Tree:
        """||g_k - mean_j g_j||^2 of every tensor of the updates g, [K] each."""
        return self.measured or spread(self.update)

    def _single(self, kept: Tree) -> Tree:
        if self.folded:
            raise UnalikeError(
                f"{self.part or 'a part'} looks at what single clients sent, and found it added up already; "
                'say needs = "updates" in the class of the part'
            )
        return kept

    @property
    def sizes(self) -> Tensor:
        """n_k, [K]."""
        return self.report.size

    @property
    def steps(self) -> Tensor:
        """tau_k, [K]."""
        return self.report.steps

    @property
    def solver_weights(self) -> Tensor:
        """||a_k||_1, [K]."""
        return self.report.weight

    @property
    def shared(self) -> Drawers:
        """The context entries that clients let go."""
        return self.report.shared

    def rows(self, keep: Tensor) -> Cohort:
        """The cohort of some of its rows, `keep` [k] being their places."""
        return replace(self, ids=tuple(self.ids[i] for i in keep.tolist()), report=rows(self.report, keep))

    @property
    def numbers(self) -> Cohort:
        """What is left of it when updates, buffers and letters need not be kept."""
        return replace(self, report=self.report.numbers, folded=True)

    def one(self, client: int) -> Report:
        """One client's report, as it sent it."""
        place = self.ids.index(client)
        return self.report.map(lambda t: t[place])


@dataclass(frozen=True)
class Server:
    """What a part sees on the server. `params` and the update hold the shared parameters; `round` counts from 0."""

    setting: Setting
    method: Method
    params: Tree
    memory: Tree
    round: int
    population: int
    part: str = ""

    @property
    def proxy(self) -> Batch:
        """The samples on the server, for a part that says `needs_proxy`."""
        if self.setting.proxy is None:
            raise UnalikeError(f"{self.part} learns from samples on the server and found none; pass proxy=(x, y)")
        return self.setting.proxy

    @property
    def generator(self) -> torch.Generator:
        """A generator of this part's own for this stage, round and group: noise that two had in common would cancel out."""
        setting = self.setting
        place = (setting.stage, setting.group) if setting.stage or setting.group else ()
        return torch.Generator().manual_seed(seed.number(setting.seed, f"server.{self.part}", self.round, *place))


def open_state(method: Method, setting: Setting, start: State | None = None) -> State:
    """The server's state before the first round; with `start` its round, model and the memories of the parts it knows.

    A part that clients remember something for begins afresh, as they do: SCAFFOLD's c is the mean of their c_k, which are 0.
    Raises `UnalikeError` for a part that means nothing for the labels.
    """
    method.check_task(setting.task)
    model, found = setting.model, {} if start is None else start.memory
    kept = {p.name: found.get(p.name) for p in method.parts if type(p).client_init is Part.client_init}
    memory = {p.name: m for p in method.parts if (m := kept.get(p.name) or p.server_open(setting))}
    if start is None:
        return State(0, model.params, model.buffers, memory)
    params, buffers = tree.only(start.params, model.params), tree.only(start.buffers, model.buffers)
    return State(start.round, params, buffers, memory)


def issue(method: Method, setting: Setting, state: State, population: int, ids: Sequence[int] = ()) -> Order:
    """The order of the next round, with what is addressed to each of the clients `ids`."""
    look = partial(_look, method, setting, state, population, state.params)
    mail = {p.name: letter for p in method.parts if (letter := p.broadcast(look(p)))}
    writers = [p for p in method.parts if type(p).address is not Part.address]
    own = {client: {p.name: p.address(look(p), client) for p in writers} for client in ids} if writers else {}
    return Order(state.round, state.params, state.buffers, mail, setting.work.lr_at(state.round), own)


@part_of("aggregation")
def advance(method: Method, setting: Setting, state: State, cohort: Cohort) -> State:
    """The state after a round: decode -> base weights -> weigh* -> settle -> combine -> absorb -> step* -> params + update.

    Pure. The update is added once, here; parts transform updates and never write parameters. Buffers are handled here alone.
    """
    cohort = replace(cohort, report=cohort.report._replace(update=decoded(method, cohort.update, state.params)))
    look = partial(_look, method, setting, state, cohort.population, tree.only(state.params, cohort.update))
    aggregator = method.aggregator
    weights = _weights(method, cohort)
    if cohort.update:
        weights = aggregator.settle(look(aggregator), _own(cohort, aggregator), weights)
    update, cohort = _combined(look(aggregator), cohort, weights)
    folded = {p.name: _folded(p, _own(cohort, p)) for p in method.parts}
    return _moved(method, setting, state, cohort, update, folded, _buffers(method, setting, cohort, weights))


@part_of("aggregation")
def shares(method: Method, setting: Setting, state: State, expected: Cohort) -> Shares:
    """What each client's update and buffers are multiplied with, from the numbers of the `expected` reports alone."""
    weights = _weights(method, expected)
    look = _look(method, setting, state, expected.population, {}, method.aggregator)
    return Shares(
        expected.ids, weights, cast(LinearAggregator, method.aggregator).coefficients(look, expected, weights)
    )


@part_of("aggregation")
def conclude(
    method: Method, setting: Setting, state: State, sums: Sums, given: Shares, population: int
) -> tuple[State, Cohort] | None:
    """`advance` of a linear method from what a `Fold` with the shares `given` has added up; beside it the numbers of the reports.

    A refused report changes the weights of the others, mostly all of them by one factor. None where that is not so (FedDisco):
    then the round is to be answered again by those whose reports were sound, with shares of their own.
    """
    assert sums.taken is not None  # somebody's report was sound
    ids, report = sums.taken
    cohort = Cohort(tuple(ids), report, population, folded=True)
    exact, given = shares(method, setting, state, cohort), given.of(cohort.ids)
    weight, coefficient = _factor(exact.weights, given.weights), _factor(exact.coefficients, given.coefficients)
    if weight is None or coefficient is None:
        return None
    update = sums.update if coefficient == 1 else tree.scale(sums.update, coefficient)
    buffers = sums.buffers
    if weight != 1 and setting.buffers != "first":
        buffers = tree.map(lambda b: b * weight if b.is_floating_point() else b, buffers)
    folded = {p.name: sums.folded.get(p.name, {}) for p in method.parts}
    return _moved(method, setting, state, cohort, update, folded, buffers), cohort


def _factor(wanted: Tensor, given: Tensor) -> float | None:
    """The one factor between the wanted and the given numbers, [K] each; None where there is none."""
    given = given.to(wanted)
    if torch.equal(wanted, given):
        return 1.0
    total, before = float(wanted.sum()), float(given.sum())
    factor = 1.0 if total == before else total / before if before else 0.0
    return factor if torch.allclose(wanted, factor * given, rtol=1e-5, atol=0) else None


def _moved(
    method: Method, setting: Setting, state: State, cohort: Cohort, update: Tree, folded: Drawers, buffers: Tree
) -> State:
    """The state after the combined update: absorb -> step* -> params + update."""
    look = partial(_look, method, setting, state, cohort.population, tree.only(state.params, update))
    memory = {p.name: p.absorb(look(p), folded[p.name]) for p in method.parts}
    for s in method.role(ServerStep):
        made = s.step(replace(look(s), memory=memory[s.name]), update, _own(cohort, s))
        moved, memory[s.name] = returned.two(s, "step", made)
        update = returned.named(s, "step", moved, update)
    _check_shapes(method, state.params, update)
    return State(
        round=state.round + 1,
        params=state.params | {n: state.params[n] + u.to(state.params[n].dtype) for n, u in update.items()},
        buffers=state.buffers | buffers,
        memory={name: m for name, m in memory.items() if m},
    )


def _check_shapes(method: Method, params: Tree, update: Tree) -> None:
    """Raise `UnalikeError` for an update of another shape, which would be spread over the parameter or change its shape."""
    for name, u in update.items():
        if u.shape != params[name].shape:
            raise UnalikeError(
                f"the update of {name} has the shape {list(u.shape)}, expected {list(params[name].shape)}, that of the parameter; "
                f"look at decode, combine and step of the parts of {method!r}"
            )


def _look(method: Method, setting: Setting, state: State, population: int, params: Tree, p: Part) -> Server:
    return Server(setting, method, params, state.memory.get(p.name, {}), state.round, population, p.name)


def _own(cohort: Cohort, p: Part) -> Cohort:
    return replace(cohort, part=p.name)


def _combined(server: Server, cohort: Cohort, weights: Tensor) -> tuple[Tree, Cohort]:
    """The aggregator's update; the cohort with its spread, where a part wants it and one reading gives both."""
    rule, own = server.method.aggregator, _own(cohort, server.method.aggregator)
    if not (server.method.adds and any(p.needs == "spread" for p in server.method.parts)):
        return returned.named(rule, "combine", rule.combine(server, own, weights), cohort.update), cohort
    coefficients = cast(LinearAggregator, rule).coefficients(server, own, weights)
    update, measured = weighted_sum_and_spread(cohort.update, coefficients)
    return update, replace(cohort, measured=measured)


def _weights(method: Method, cohort: Cohort) -> Tensor:
    if not float(cohort.sizes.sum()) > 0:
        raise UnalikeError("no participant of this round has training samples; the model stays as it is")
    [base] = method.role(BaseWeights)
    count = len(cohort.ids)
    weights = returned.weights(base, "weights", base.weights(_own(cohort, base)), count)
    for w in method.role(Weighting):
        weights = returned.weights(w, "weigh", w.weigh(_own(cohort, w), weights / weights.sum()), count)
    return weights / weights.sum()


def _folded(p: Part, cohort: Cohort) -> Tree:
    if type(p).fold is Part.fold or not (cohort.update or cohort.letter):
        return {}
    return tree.map(lambda t: t.sum(0), torch.vmap(p.fold)(cohort.update, cohort.letter))


def _buffers(method: Method, setting: Setting, cohort: Cohort, weights: Tensor) -> Tree:
    """Float buffers by the aggregator's rule, integer ones their maximum, in the order and dtype of the model."""
    stacked = cohort.report.buffers
    if setting.buffers == "first":
        return tree.row(stacked, 0)
    floats = {n: b for n, b in stacked.items() if b.is_floating_point()}
    combined = method.aggregator.combine_buffers(floats, weights) if floats else {}
    return {n: combined[n] if n in combined else b.amax(0) for n, b in stacked.items()}
