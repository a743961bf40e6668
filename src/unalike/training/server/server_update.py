"""The server half of a round: one pure function, `advance`, from the client updates of a round to the server's next state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.profiler_regions import profiled_function
from unalike.core import tree
from unalike.core.types import Broadcast, PartTrees, Tree
from unalike.core.update_spread import spread
from unalike.core.views import Cohort, Members, ServerState, ServerView, StageSettings
from unalike.methods import return_checks
from unalike.methods.method import Method
from unalike.methods.part import overrides
from unalike.methods.roles import CohortStep, ServerStep
from unalike.methods.screening import Screening
from unalike.training.server.server_round import ServerRound, seen_by
from unalike.training.server.updates import NO_CLIENT_UPDATE, Combined, Updates


def initial_server_state(
    method: Method, settings: StageSettings, start: ServerState | None = None
) -> ServerState:
    """The server state before the first round; with `start`, its round, its model and its states of the method's parts.

    A part with client state starts anew, as the clients do: SCAFFOLD's c is the mean of their c_k, which are 0.
    Raises `UnalikeError` for a part that is not defined for the task.
    """
    method.check_task(settings.task)
    model = settings.model
    params = method.trained_params(model)
    part_states = {}
    for part in method.parts:
        state: Tree = {}
        if start is not None and not overrides(part, "client_init"):
            state = start.part_states.get(part.name, {})
        if not state:
            first = return_checks.check_tensors(part, "server_init", part.server_init(params))
            state = first | part.server_open(settings)
        if state:
            part_states[part.name] = state
    if start is None:
        return ServerState(0, model.params, model.buffers, part_states)
    return ServerState(
        round=start.round,
        params=tree.only(start.params, model.params),
        buffers=tree.only(start.buffers, model.buffers),
        part_states=part_states,
    )


def make_broadcast(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    population: int,
    ids: Sequence[int] = (),
) -> Broadcast:
    """The broadcast of the next round, with the messages addressed to each of the clients `ids`."""
    server = ServerRound(method, settings, state, population)
    messages = {}
    for part in method.parts:
        view = server.view(part, state.params)
        with return_checks.inputs_unchanged(part, "broadcast", view):
            message = part.broadcast(view)
        if return_checks.check_tensors(part, "broadcast", message):
            messages[part.name] = message

    writers = [p for p in method.parts if overrides(p, "address")]
    addressed: dict[int, PartTrees] = {}
    for client in ids if writers else ():
        addressed[client] = {
            p.name: p.address(server.view(p, state.params), client) for p in writers
        }
    return Broadcast(
        round=state.round,
        params=state.params,
        buffers=state.buffers,
        messages=messages,
        lr=settings.work.lr_at(state.round),
        own=addressed,
    )


class Aggregate(NamedTuple):
    """The clients of a round whose updates count, and their updates as one."""

    cohort: Cohort
    combined: Combined


def advance(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    updates: Updates | None,
    members: Members,
) -> ServerState:
    """The state after a round: arrive -> weigh -> screen -> combine -> absorb -> step -> apply.

    Pure. Parts transform updates and never write parameters: the update is added once, here. `updates` is None for a round in
    which none of the `members` takes part. Raises `OtherWeights` for sums whose weights turn out to be others.
    """
    aggregate = gather(method, settings, state, updates, members)
    return move(method, settings, state, aggregate, members)


@profiled_function("aggregation")
def gather(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    updates: Updates | None,
    members: Members,
) -> Aggregate | None:
    """The first half of `advance`, up to the combined update; None: nothing moves in the round. Pure."""
    server = ServerRound(method, settings, state, members.clients)
    if updates is None:
        # Without clients the model stays as it is, unless a part acts all the same: where noise hides who takes part, a model
        # that stands still would tell that nobody did.
        if not method.acts_without_clients:
            return None
        cohort = nobody(members)
        combined = zero_update(server)
    else:
        # Arrive. Updates are decoded first, since all parts compute with updates as clients made them. Attacks come next: what
        # malicious clients send is what every part of the server has to cope with.
        cohort = updates.cohort(server, members)
        for cohort_step in method.role(CohortStep):
            view = server.view(cohort_step, cohort.stacked.update)
            cohort = cohort_step.receive(view, seen_by(cohort_step, cohort))

        # Weigh. Weights follow from numbers of the clients, such as sizes, so that a sum can begin before the updates are there.
        # They come before screenings, which may join clients and their weights.
        weights = server.weights(cohort)

        # Screen. What a screening changes only the aggregator sees: the sums that parts absorb count every client's own update.
        # The aggregator has the last word on weights, as it may find them in the updates. Sums leave nothing to look at.
        screened = cohort
        if cohort.stacked.update:
            for screening in method.role(Screening):
                view = server.view(screening, cohort.stacked.update)
                screened, weights = screening.screen(view, seen_by(screening, screened), weights)
            rule = method.aggregator
            view = server.view(rule, cohort.stacked.update)
            weights = rule.final_weights(view, seen_by(rule, screened), weights)

        # Combine. From here on there is one update, and sums; single clients are left as numbers, and as distances if a part
        # asks for these, which were measured on the way.
        combined = updates.combined(server, cohort, screened, weights)
        cohort = replace(cohort, measured=combined.spread)
    return Aggregate(cohort, combined)


@profiled_function("aggregation")
def move(
    method: Method,
    settings: StageSettings,
    state: ServerState,
    aggregate: Aggregate | None,
    members: Members,
) -> ServerState:
    """The second half of `advance`: the state with what arrived, after all server steps. Pure."""
    if aggregate is None:
        return state._replace(round=state.round + 1)
    server = ServerRound(method, settings, state, members.clients)
    cohort = aggregate.cohort
    combined = aggregate.combined

    # Absorb. Parts take in their sums before the steps, which read the new states: SCAFFOLD's c moves, then the model.
    part_states = {}
    for part in method.parts:
        folded = combined.folded.get(part.name, {})
        view = server.view(part, combined.update)
        with return_checks.inputs_unchanged(part, "absorb", view):
            part_states[part.name] = part.absorb(view, folded)

    # Step. Each step changes what the one before made of the update, by rank: noise before anything that would amplify it, the
    # server's optimizer before what shrinks the result.
    change = Change(combined.update, combined.buffers, part_states)
    for step in method.role(ServerStep):
        change = _make_step(server, step, _shown_to(server, step, cohort, members), change)

    # Apply. Only now does anything become a model, so that no part ever sees one that is half done.
    return _apply_update(server, change)


class Change(NamedTuple):
    """The change that a round makes, as one server step hands it on to the next: update, buffers, and the states of all parts."""

    update: Tree
    buffers: Tree
    part_states: PartTrees


def nobody(members: Members) -> Cohort:
    """A cohort without clients."""
    return Cohort(ids=(), stacked=NO_CLIENT_UPDATE, members=members, folded=True)


def zero_update(server: ServerRound) -> Combined:
    """The combined update of no client."""
    params = server.state.params
    shared_params = tree.only(params, server.method.shared_names(params, server.settings.model))
    return Combined(update=tree.zeros(shared_params), buffers={}, folded={})


def _shown_to(server: ServerRound, step: ServerStep, cohort: Cohort, members: Members) -> Cohort:
    """The cohort as a step sees it: where clients are hidden, its numbers would tell a step that needs sums who takes part."""
    is_hidden = server.method.hides_participants and not step.hides_participants
    if is_hidden and step.needs == "sums":
        return seen_by(step, nobody(members))
    return seen_by(step, cohort)


def _make_step(server: ServerRound, step: ServerStep, cohort: Cohort, change: Change) -> Change:
    """The change of the round after one more server step."""
    state = server.state
    view = replace(server.view(step, change.update), state=change.part_states[step.name])
    update = change.update
    if step.moves_buffers:
        # buffers are shown as if they were parameters, and their change as if it were a part of the update
        view, update, cohort = _with_buffers(view, update, cohort, state.buffers, change.buffers)

    with return_checks.inputs_unchanged(step, "step", view):
        moved, part_state = return_checks.returned_pair(
            step, "step", step.step, view, update, cohort
        )
    moved = return_checks.check_names(step, "step", moved, update)

    return Change(
        update=tree.only(moved, change.update),
        buffers=_moved_buffers(state.buffers, change.buffers, moved),
        part_states=change.part_states | {step.name: part_state},
    )


def _apply_update(server: ServerRound, change: Change) -> ServerState:
    """The state with the change of the round. Raises `UnalikeError` for an update of another shape."""
    state = server.state
    _check_shapes(server.method, state.params, change.update)
    moved = {
        name: state.params[name] + u.to(state.params[name].dtype)
        for name, u in change.update.items()
    }
    params = state.params | moved
    buffers = state.buffers | change.buffers
    buffers |= server.settings.model.singular_vectors(params, buffers)
    return ServerState(
        round=state.round + 1,
        params=params,
        buffers=buffers,
        part_states={
            name: part_state for name, part_state in change.part_states.items() if part_state
        },
    )


def _with_buffers(
    server: ServerView, update: Tree, cohort: Cohort, old: Tree, new: Tree
) -> tuple[ServerView, Tree, Cohort]:
    """The arguments of a step that moves buffers: these are added to the parameters, integer ones as floats."""
    dtype = tree.dtype(server.params)

    def floats(buffers: Tree) -> Tree:
        return {name: buffers[name].to(dtype) for name in new}

    before = floats(old)
    moved = tree.map(torch.sub, floats(new), before)
    # b_k and b_k - b are equally far from their means
    measured = cohort.spread | spread(floats(cohort.stacked.buffers))
    return (
        replace(server, params=server.params | before),
        update | moved,
        replace(cohort, measured=measured),
    )


def _moved_buffers(old: Tree, new: Tree, moved: Tree) -> Tree:
    """The buffers after a server step: float ones that it was given move, all others are the combined ones."""
    buffers = dict(new)
    for name, combined in new.items():
        if name in moved and combined.is_floating_point():
            buffers[name] = old[name] + moved[name].to(combined)
    return buffers


def _check_shapes(method: Method, params: Tree, update: Tree) -> None:
    """Raise `UnalikeError` for an update of another shape: it would be broadcast."""
    for name, u in update.items():
        if u.shape != params[name].shape:
            raise UnalikeError(
                f"the update of {name} has the shape {list(u.shape)}, expected {list(params[name].shape)}, that of the parameter; "
                f"look at decode, combine and step of the parts of {method!r}"
            )
