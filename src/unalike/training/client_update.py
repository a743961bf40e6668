"""The client half of a round: one pure function, `train`, and beside it `tune`, for what a client is evaluated with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.nests import map_tensors
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, PartTrees, Tree
from unalike.core.views import ClientBatches, ClientView, StageSettings
from unalike.methods.method import Method
from unalike.methods.part import Part, initial_part_states
from unalike.methods.roles import Personalizer, Phase, Upload
from unalike.training.local_step import (
    MODEL,
    Gradient,
    LocalStep,
    StepState,
    StepSums,
    TrainerFactory,
    ViewFunction,
    autograd_gradient,
    initial_solver_state,
    merge_states,
)

BUFFERS = "buffers"
"""The drawer of a client's own buffers (`buffers="local"`); a part's model keeps its buffers in `<part>.buffers`."""
SOLVER = "solver"
"""The drawer of the solver's state (`keep_optimizer_state`)."""


class TrainedClient(NamedTuple):
    """A client after its local training, before anything is reported; stacked, every tensor has a leading [K].

    `moved` are those of the parameters that training made anew, `gained` is what it added to others, `states` are the solver's by
    phase, `steps` those that moved shared parameters, `loss` the mean task loss over all of them.
    """

    params: Tree
    moved: Tree
    gained: Tree
    buffers: Tree
    own: PartTrees
    client_state: PartTrees
    states: list[dict[str, PartTrees]]
    steps: Tensor | float
    loss: Tensor


def train(
    method: Method,
    settings: StageSettings,
    broadcast: Broadcast,
    client_state: PartTrees,
    size: Tensor,
    data: ClientBatches,
    context: Context,
    gradient: Gradient,
    begun: Tree | None = None,
) -> tuple[ClientUpdate, PartTrees]:
    """One client's round: from the order, its memory and its batches to its report and its new memory.

    Pure, and written once for one client: executors run it as it is, or stacked with `torch.vmap`. A step whose rows all have
    weight 0 changes nothing. `gradient(f)(variables)` returns (gradients, (value, aux)), by autograd or by `torch.func`.
    `begun`: the parameters to start from, where an executor called `begin_training` before.
    """
    params, client_state = (
        (begun, client_state)
        if begun is not None
        else begin_training(method, settings, broadcast, client_state, data, context)
    )
    view_of = view_function(method, settings, broadcast, params, client_state, data, context)
    trained = _alone(method, method.phases, settings, broadcast, params, client_state, data, view_of, gradient)
    return make_client_update(method, settings, broadcast, size, context, view_of, trained)


def make_client_update(
    method: Method,
    settings: StageSettings,
    broadcast: Broadcast,
    size: Tensor,
    context: Context,
    view_of: ViewFunction,
    trained: TrainedClient,
) -> tuple[ClientUpdate, PartTrees]:
    """What a client reports and remembers of its training. Where no part of the method is `closing`, so do stacked clients."""
    params, buffers, steps, sent = (
        trained.params,
        trained.buffers,
        trained.steps,
        _sent(method, settings, trained.params),
    )
    messages, kept = {}, {}
    for member in method.parts:
        keeps = trained.own[member.name] if member.trains else buffers
        kept[member.name] = trained.client_state.get(member.name, {})
        if member in method.closing:
            kept[member.name], message = member.finish(
                view_of(member, params, keeps, trained.client_state, steps=steps)
            )
            messages[member.name] = {n: t for n, t in message.items() if n in sent or n not in params}
        if member in method.keepers:
            kept[f"{member.name}.{BUFFERS}"] = keeps
    if settings.work.keep_optimizer_state:
        kept[SOLVER] = _freeze(trained.states)
    shared_buffers, kept[BUFFERS] = _split(method, settings, buffers)

    spare = {} if method.closing else trained.moved  # nobody looks at them any more
    rest = [n for n in sent if n not in trained.gained]
    update = {n: spare[n].sub_(broadcast.params[n]) if n in spare else params[n] - broadcast.params[n] for n in rest}
    update = tree.only(update | trained.gained, sent)
    for upload in method.role(Upload):
        local = view_of(upload, params, buffers, trained.client_state, steps=steps)
        update, kept[upload.name] = upload.encode(local, update)
    shared = {name: context[name] for member in method.parts for name in member.shares}
    made = torch.as_tensor(steps, dtype=size.dtype, device=size.device)
    weight = settings.work.solver.weight(made)
    return ClientUpdate(update, shared_buffers, _filled(messages), size, made, weight, trained.loss, shared), _filled(
        kept
    )


def tune(
    method: Method,
    settings: StageSettings,
    broadcast: Broadcast,
    client_state: PartTrees,
    data: ClientBatches,
    context: Context,
    gradient: Gradient,
    begun: Tree | None = None,
) -> Tree:
    """The parameters and buffers that a client is evaluated with after the method's fine-tuning. Nothing else is left of it.

    It starts from what the order holds, with a fresh solver, and minimizes the task's loss alone.
    """
    if method.tuning is None:
        raise UnalikeError(f"{method!r} has no fine-tuning; add local_finetune")
    tuner, client_state = method.tuner, without_solver_state(client_state)
    params, client_state = (
        (begun, client_state)
        if begun is not None
        else begin_training(tuner, settings, broadcast, client_state, data, context)
    )
    view_of = view_function(tuner, settings, broadcast, params, client_state, data, context)
    trained = _alone(tuner, (method.tuning,), settings, broadcast, params, client_state, data, view_of, gradient)
    return trained.params | trained.buffers


def without_solver_state(client_state: PartTrees) -> PartTrees:
    """A client's memory for training that starts with a fresh solver."""
    return {name: mine for name, mine in client_state.items() if name != SOLVER}


def begin_training(
    method: Method,
    settings: StageSettings,
    broadcast: Broadcast,
    client_state: PartTrees,
    data: ClientBatches,
    context: Context,
) -> tuple[Tree, PartTrees]:
    """The parameters that the client's training starts from, and its memory by then."""
    received, params = broadcast.buffers | client_state.get(BUFFERS, {}), broadcast.params
    view_of = partial(_view, settings, broadcast, params, params, received, context, data)
    for part in method.role(Personalizer):
        params, mine = part.begin(view_of(part, params, received, client_state))
        client_state = client_state | {part.name: mine}
    return params, client_state


def view_function(
    method: Method,
    settings: StageSettings,
    broadcast: Broadcast,
    params: Tree,
    client_state: PartTrees,
    data: ClientBatches,
    context: Context,
) -> ViewFunction:
    """How the method's parts look at a client whose training starts from `params`."""
    start = tree.only(broadcast.params, _sent(method, settings, params))
    return partial(
        _view, settings, broadcast, start, params, broadcast.buffers | client_state.get(BUFFERS, {}), context, data
    )


def _alone(
    method: Method,
    phases: Sequence[Phase],
    settings: StageSettings,
    broadcast: Broadcast,
    params: Tree,
    client_state: PartTrees,
    data: ClientBatches,
    view_of: ViewFunction,
    gradient: Gradient,
) -> TrainedClient:
    copies = (
        gradient is autograd_gradient and not method.trained
    )  # a part that trains still looks at the values before a step
    leaf = settings.model.leaf if copies else None
    make = partial(
        LocalStep, method, view_of=view_of, sent=_sent(method, settings, params), gradient=gradient, leaf=leaf
    )
    return run_phases(method, phases, settings, broadcast, params, client_state, data.batches, make)


def run_phases(
    method: Method,
    phases: Sequence[Phase],
    settings: StageSettings,
    broadcast: Broadcast,
    params: Tree,
    client_state: PartTrees,
    schedules: Sequence[Sequence[Batch]],
    make: TrainerFactory,
) -> TrainedClient:
    """Local training: one phase after the other, each on batches of its own; of one client, or of stacked ones.

    `make(work, params=, client_state=)` gives the practice of a phase.
    """
    sent, buffers = _sent(method, settings, params), broadcast.buffers | client_state.get(BUFFERS, {})
    own, kept, states = _own_buffers(method, client_state), _thaw(client_state.get(SOLVER, {})), []
    tallies, moved, gained = list[StepSums](), dict[str, Tensor](), dict[str, Tensor]()

    for place, (phase, batches) in enumerate(zip(phases, schedules, strict=True)):
        work = phase.work(
            settings.work if broadcast.lr == settings.work.lr else replace(settings.work, lr=broadcast.lr)
        )
        variables = _variables(method, phase, settings.model, params, client_state)
        before = StepState(variables, map_tensors(Tensor.clone, kept.get(place, {})), buffers, own)
        made, step_state = make(work, params=params, client_state=client_state).phase(before, batches)
        counts = not sent or not variables[MODEL].keys().isdisjoint(sent)
        tallies.append(made if counts else made._replace(steps=0.0))
        now = tree.detach(step_state.variables[MODEL])
        params, gained = params | now, gained | (made.gained or {})
        moved |= now if batches and made.gained is None else {}
        client_state, buffers, own = (
            merge_states(client_state, step_state.variables),
            step_state.buffers,
            step_state.own,
        )
        states.append(step_state.state)

    loss, rows, steps = (sum(rest, start=first) for first, *rest in zip(*(tally[:3] for tally in tallies), strict=True))
    mean = torch.as_tensor(loss) / torch.as_tensor(rows).clamp_min(1)
    return TrainedClient(params, moved, gained, buffers, own, client_state, states, steps, mean)


def _sent(method: Method, settings: StageSettings, params: Tree) -> list[str]:
    return method.sent(params, settings.model)


def initial_client_state(method: Method, settings: StageSettings) -> PartTrees:
    """A client's memory before its first participation: every drawer that it will ever have, so that memories can be stacked."""
    model, client_state = settings.model, initial_part_states(method.parts, settings.model)
    client_state |= {f"{p.name}.{BUFFERS}": model.buffers for p in method.keepers}
    client_state[BUFFERS] = _split(method, settings, model.buffers)[1]
    if settings.work.keep_optimizer_state:
        parts = [
            (p.work(settings.work).solver, _variables(method, p, model, model.params, client_state))
            for p in method.phases
        ]
        client_state[SOLVER] = _freeze([initial_solver_state(solver, variables) for solver, variables in parts])
    device = next(iter(model.params.values())).device
    return map_tensors(lambda t: t.to(device), _filled(client_state))


def _view(
    settings: StageSettings,
    broadcast: Broadcast,
    start: Tree,
    origin: Tree,
    received: Tree,
    context: Context,
    data: ClientBatches,
    p: Part,
    params: Tree,
    buffers: Tree,
    client_state: PartTrees,
    lr: float | None = None,
    cache: dict[str, Any] | None = None,
    **now: Any,
) -> ClientView:
    messages, mine, lr = (
        broadcast.messages.get(p.name, {}),
        client_state.get(p.name, {}),
        broadcast.lr if lr is None else lr,
    )
    cache = {} if cache is None else cache
    return ClientView(
        settings, p.name, start, origin, received, params, buffers, messages, mine, context, lr, data, cache, **now
    )


def _variables(method: Method, phase: Phase, model: Model, params: Tree, client_state: PartTrees) -> PartTrees:
    """What the solver moves in a phase: its trainable parameters, and the memories of the parts that train."""
    variables = {MODEL: tree.shared(params, trained_names(method, phase, model))}
    for p in method.trained:
        variables[p.name] = {n: t for n, t in client_state[p.name].items() if n not in params or model.trainable(n)}
    return variables


def trained_names(method: Method, phase: Phase, model: Model) -> list[str]:
    """The parameters that a phase trains. Raises `UnalikeError` where it would train nothing."""
    names = [n for n in model.params if method.trains(n, model) and model.within(phase.moves, n)]
    if not names and not method.trained:
        raise UnalikeError(
            f"nothing of the model moves where {method!r} trains its {phase.moves!r}; expected parameters there that require "
            "gradients (the head is the model's attribute `head`, or its last linear layer; the body is the rest)"
        )
    return names


def _split(method: Method, settings: StageSettings, buffers: Tree) -> tuple[Tree, Tree]:
    """The buffers that are sent, and those that stay on the client."""
    sent = {} if settings.buffers == "local" else tree.only(buffers, method.sent(buffers, settings.model))
    return sent, {n: b for n, b in buffers.items() if n not in sent}


def _own_buffers(method: Method, client_state: PartTrees) -> PartTrees:
    """The buffers of the models in the parts' memories."""
    return {part.name: client_state.get(f"{part.name}.{BUFFERS}", {}) for part in method.keepers}


def _freeze(states: Sequence[dict[str, PartTrees]]) -> Tree:
    """The solver's states by phase as one tree: `<phase>.<variables>.<slot>/<parameter>`."""
    return tree.pack(
        {
            f"{number}.{name}.{slot}": t
            for number, state in enumerate(states)
            for name, slots in state.items()
            for slot, t in slots.items()
        }
    )


def _thaw(packed: Tree) -> dict[int, dict[str, PartTrees]]:
    states: dict[int, dict[str, PartTrees]] = {}
    for path, slot in tree.unpack(packed).items():
        number, name, kind = path.split(".")
        states.setdefault(int(number), {}).setdefault(name, {})[kind] = slot
    return states


def _filled(part_trees: PartTrees) -> PartTrees:
    return {name: t for name, t in part_trees.items() if t}
