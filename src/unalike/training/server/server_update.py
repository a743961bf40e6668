"""The server half of a round: one pure function, `advance`, and what a part sees on the server."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.types import Broadcast, ClientUpdate, PartTrees, Tree
from unalike.core.update_spread import spread, weighted_sum_and_spread
from unalike.core.views import Cohort, Members, ServerState, ServerView, StageSettings
from unalike.methods import return_checks
from unalike.methods.attack import Attack
from unalike.methods.method import Method
from unalike.methods.notes import note
from unalike.methods.part import Part, overrides
from unalike.methods.roles import BaseWeights, LinearAggregator, ServerStep, Weighting
from unalike.methods.screening import Screening
from unalike.training.server.aggregation import SumWeights, UpdateSums, decode_updates, sum_of_folds


def initial_server_state(
    method: Method, settings: StageSettings, start: ServerState | None = None
) -> ServerState:
    """The server state before the first round; with `start`, its round, its model and its states of the method's parts.

    A part with client state starts anew, as the clients do: SCAFFOLD's c is the mean of their c_k, which are 0.
    Raises `UnalikeError` for a part that is not defined for the task.
    """
    method.check_task(settings.task)
    model, found = settings.model, {} if start is None else start.part_states
    kept = {p.name: found.get(p.name) for p in method.parts if not overrides(p, "client_init")}
    params = method.trained_params(model)
    fresh = {
        p.name: p.server_init(params) | p.server_open(settings)
        for p in method.parts
        if not kept.get(p.name)
    }
    part_states = {p.name: m for p in method.parts if (m := kept.get(p.name) or fresh[p.name])}
    if start is None:
        return ServerState(0, model.params, model.buffers, part_states)
    values = tree.only(start.params, model.params), tree.only(start.buffers, model.buffers)
    return ServerState(start.round, *values, part_states)


def make_broadcast(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    population: int,
    ids: Sequence[int] = (),
) -> Broadcast:
    """The broadcast of the next round, with the messages addressed to each of the clients `ids`."""
    view_of = partial(_view, method, settings, state, population, state.params)
    messages = {p.name: message for p in method.parts if (message := p.broadcast(view_of(p)))}
    writers = [p for p in method.parts if overrides(p, "address")]
    own = (
        {client: {p.name: p.address(view_of(p), client) for p in writers} for client in ids}
        if writers
        else {}
    )
    return Broadcast(
        state.round, state.params, state.buffers, messages, settings.work.lr_at(state.round), own
    )


@profiled_function("aggregation")
def advance(
    method: Method, settings: StageSettings, state: ServerState, cohort: Cohort
) -> ServerState:
    """The state after a round: decode, forge -> weights, weigh* -> screen* -> final_weights, combine -> absorb -> step* -> params.

    Pure. The update is added once, here; parts transform updates and never write parameters. Buffers are handled here alone.
    """
    cohort = cohort.with_update(decode_updates(method, cohort.update, state))
    view_of = partial(
        _view, method, settings, state, cohort.population, tree.only(state.params, cohort.update)
    )
    if method.attack is not None:
        cohort = _forged(view_of(method.attack), method.attack, cohort)
    aggregator = method.aggregator
    weights = _weights(method, cohort)
    seen = cohort
    if cohort.update:
        for s in method.role(Screening):
            seen, weights = s.screen(view_of(s), _own(seen, s), weights)
        weights = aggregator.final_weights(view_of(aggregator), _own(seen, aggregator), weights)
    if len(seen.ids) == len(cohort.ids):
        note("weight", weights)
    update, seen = _combined(method, view_of(aggregator), seen, weights)
    cohort = replace(cohort, measured=seen.measured)
    importance = _importance(method, cohort)
    folded = {
        p.name: sum_of_folds(p, cohort.update, _own(cohort, p).message, importance)
        for p in method.parts
    }
    return _moved(
        method, settings, state, cohort, update, folded, _buffers(method, settings, seen, weights)
    )


@profiled_function("aggregation")
def sum_weights(
    method: Method, settings: StageSettings, state: ServerState, expected: Cohort
) -> SumWeights:
    """Factors of each client's update and buffers, from the numbers of the `expected` client updates only."""
    weights = _weights(method, expected)
    view_of = _view(method, settings, state, expected.population, {}, method.aggregator)
    coefficients = cast(LinearAggregator, method.aggregator).coefficients(
        view_of, expected, weights
    )
    return SumWeights(expected.ids, weights, coefficients, _importance(method, expected))


@profiled_function("aggregation")
def advance_from_sums(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    sums: UpdateSums,
    given: SumWeights,
    members: Members,
) -> tuple[ServerState, Cohort] | None:
    """`advance` of a linear method from the sums of a `StreamingSum` with the factors `given`; also returns the cohort's numbers.

    A refused update changes the weights of the others, mostly all of them by one factor. If not (FedDisco), the result is None:
    then the clients with valid updates have to train again, with new factors.
    """
    assert sums.taken is not None  # at least one update was valid
    ids, numbers = sums.taken
    cohort = Cohort(tuple(ids), numbers, members, folded=True)
    exact, given = sum_weights(method, settings, state, cohort), given.of(cohort.ids)
    weight, coefficient = (
        _factor(exact.weights, given.weights),
        _factor(exact.coefficients, given.coefficients),
    )
    if weight is None or coefficient is None:
        return None
    note("weight", exact.weights)
    note("coefficient", exact.coefficients)
    update = sums.update if coefficient == 1 else tree.scale(sums.update, coefficient)
    buffers = sums.buffers
    if weight != 1 and settings.buffers != "first":
        buffers = tree.map(lambda b: b * weight if b.is_floating_point() else b, buffers)
    folded = {p.name: sums.folded.get(p.name, {}) for p in method.parts}
    return _moved(method, settings, state, cohort, update, folded, buffers), cohort


def advance_by_nothing(
    method: Method, settings: StageSettings, state: ServerState, members: Members
) -> ServerState:
    """The state after a round in which no client takes part: the server steps are given an update of zeros."""
    update = tree.zeros(tree.only(state.params, method.shared_names(state.params, settings.model)))
    return _moved(
        method, settings, state, _nobody(members), update, {p.name: {} for p in method.parts}, {}
    )


def _nobody(members: Members) -> Cohort:
    """A cohort without clients."""
    none = torch.zeros(0)
    return Cohort((), ClientUpdate({}, {}, {}, none, none, none, none, {}), members, folded=True)


def _factor(wanted: Tensor, given: Tensor) -> float | None:
    """The factor f with wanted = f * given, [K] each; None if there is none."""
    given = given.to(wanted)
    if torch.equal(wanted, given):
        return 1.0
    total, before = float(wanted.sum()), float(given.sum())
    factor = 1.0 if total == before else total / before if before else 0.0
    return factor if torch.allclose(wanted, factor * given, rtol=1e-5, atol=0) else None


def _moved(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    cohort: Cohort,
    update: Tree,
    folded: PartTrees,
    buffers: Tree,
) -> ServerState:
    """The state after the combined update: absorb -> step* -> params + update.

    Where clients are hidden (`Privacy`), steps that need sums alone see no cohort: its numbers would tell who takes part.
    """
    view_of = partial(
        _view, method, settings, state, cohort.population, tree.only(state.params, update)
    )
    part_states = {p.name: p.absorb(view_of(p), folded[p.name]) for p in method.parts}
    hidden = method.privacy is not None and not method.privacy.per_sample
    for s in method.role(ServerStep):
        shown = (
            _nobody(cohort.members)
            if hidden and s is not method.privacy and s.needs == "sums"
            else cohort
        )
        server, given, seen = replace(view_of(s), state=part_states[s.name]), update, _own(shown, s)
        if s.moves_buffers:
            server, given, seen = _with_buffers(server, given, seen, state.buffers, buffers)
        with return_checks.errors_name_hook(s, "step"):
            made = s.step(server, given, seen)
        moved, part_states[s.name] = return_checks.check_pair(s, "step", made)
        moved = return_checks.check_names(s, "step", moved, given)
        update, buffers = tree.only(moved, update), _moved_buffers(state.buffers, buffers, moved)
    _check_shapes(method, state.params, update)
    return ServerState(
        round=state.round + 1,
        params=state.params
        | {n: state.params[n] + u.to(state.params[n].dtype) for n, u in update.items()},
        buffers=state.buffers | buffers,
        part_states={name: m for name, m in part_states.items() if m},
    )


def _with_buffers(
    server: ServerView, update: Tree, cohort: Cohort, old: Tree, new: Tree
) -> tuple[ServerView, Tree, Cohort]:
    """The arguments of a step that moves buffers: these are added to the parameters, integer ones as floats."""

    def floats(buffers: Tree) -> Tree:
        return {n: buffers[n].to(tree.dtype(server.params)) for n in new}

    apart = cohort.spread | spread(
        floats(cohort.stacked.buffers)
    )  # b_k and b_k - b are equally far from their means
    before = floats(old)
    moved = tree.map(torch.sub, floats(new), before)
    return (
        replace(server, params=server.params | before),
        update | moved,
        replace(cohort, measured=apart),
    )


def _moved_buffers(old: Tree, new: Tree, moved: Tree) -> Tree:
    """The buffers after a server step: float ones that it was given move, all others are the combined ones."""
    return {
        n: old[n] + moved[n].to(b) if n in moved and b.is_floating_point() else b
        for n, b in new.items()
    }


def _check_shapes(method: Method, params: Tree, update: Tree) -> None:
    """Raise `UnalikeError` for an update of another shape: it would be broadcast."""
    for name, u in update.items():
        if u.shape != params[name].shape:
            raise UnalikeError(
                f"the update of {name} has the shape {list(u.shape)}, expected {list(params[name].shape)}, that of the parameter; "
                f"look at decode, combine and step of the parts of {method!r}"
            )


def _view(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    population: int,
    params: Tree,
    p: Part,
) -> ServerView:
    return ServerView(
        settings, method, params, state.part_states.get(p.name, {}), state.round, population, p.name
    )


def _forged(server: ServerView, attack: Attack, cohort: Cohort) -> Cohort:
    """The cohort with what the malicious clients of it send."""
    malicious = torch.tensor([k in server.settings.malicious for k in cohort.ids])
    if attack.needs == "sums" or not malicious.any() or not cohort.update:
        return cohort
    forged = attack.forge(
        server, tree.row(cohort.update, malicious), tree.row(cohort.update, ~malicious)
    )
    places = malicious.nonzero()[:, 0]
    return cohort.with_update(
        tree.map(
            lambda u, new: u.index_put((places.to(u.device),), new.to(u)), cohort.update, forged
        )
    )


def _own(cohort: Cohort, p: Part) -> Cohort:
    return replace(cohort, part=p.name)


def _combined(
    method: Method, server: ServerView, cohort: Cohort, weights: Tensor
) -> tuple[Tree, Cohort]:
    """The aggregator's update, and the cohort with its spread if a part needs it: one pass over the updates gives both."""
    rule, own = method.aggregator, _own(cohort, method.aggregator)
    if not cohort.update:  # all parameters are private
        return {}, cohort
    if not (method.combines_by_weighted_sum and any(p.needs == "spread" for p in method.parts)):
        return return_checks.check_names(
            rule, "combine", rule.combine(server, own, weights), cohort.update
        ), cohort
    coefficients = cast(LinearAggregator, rule).coefficients(server, own, weights)
    update, measured = weighted_sum_and_spread(cohort.update, coefficients)
    return update, replace(cohort, measured=measured)


def _importance(method: Method, cohort: Cohort) -> Tensor:
    [base] = method.role(BaseWeights)
    return return_checks.check_weights(
        base, "importance", base.importance(_own(cohort, base)), len(cohort.ids)
    )


def _weights(method: Method, cohort: Cohort) -> Tensor:
    if not float(cohort.sizes.sum()) > 0:
        raise UnalikeError("no client of this round has training samples; the model stays as it is")
    [base] = method.role(BaseWeights)
    count = len(cohort.ids)
    weights = return_checks.check_weights(base, "weights", base.weights(_own(cohort, base)), count)
    for w in method.role(Weighting):
        weights = return_checks.check_weights(
            w, "weigh", w.weigh(_own(cohort, w), weights / weights.sum()), count
        )
    return weights / weights.sum()


def _buffers(method: Method, settings: StageSettings, cohort: Cohort, weights: Tensor) -> Tree:
    """Float buffers by the aggregator's rule, integer ones their maximum, in the order and dtype of the model."""
    stacked = cohort.stacked.buffers
    if settings.buffers == "first":
        return tree.row(stacked, 0)
    floats = {n: b for n, b in stacked.items() if b.is_floating_point()}
    combined = method.aggregator.combine_buffers(floats, weights) if floats else {}
    return {n: combined[n] if n in combined else b.amax(0) for n, b in stacked.items()}
