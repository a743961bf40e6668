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
from unalike.methods.part import Part, Personalizer, Phase, Upload, initial_part_states
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
"""The drawer of the solver's state (`keep_optimiser_state`)."""


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
    memory: PartTrees
    states: list[dict[str, PartTrees]]
    steps: Tensor | float
    loss: Tensor


def train(
    method: Method,
    setting: StageSettings,
    order: Broadcast,
    memory: PartTrees,
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
    params, memory = (
        (begun, memory) if begun is not None else begin_training(method, setting, order, memory, data, context)
    )
    look = view_function(method, setting, order, params, memory, data, context)
    learnt = _alone(method, method.phases, setting, order, params, memory, data, look, gradient)
    return make_client_update(method, setting, order, size, context, look, learnt)


def make_client_update(
    method: Method,
    setting: StageSettings,
    order: Broadcast,
    size: Tensor,
    context: Context,
    look: ViewFunction,
    learnt: TrainedClient,
) -> tuple[ClientUpdate, PartTrees]:
    """What a client reports and remembers of its training. Where no part of the method is `closing`, so do stacked clients."""
    params, buffers, steps, sent = learnt.params, learnt.buffers, learnt.steps, _sent(method, setting, learnt.params)
    letters, kept = {}, {}
    for member in method.parts:
        keeps = learnt.own[member.name] if member.trains else buffers
        kept[member.name] = learnt.memory.get(member.name, {})
        if member in method.closing:
            kept[member.name], letter = member.finish(look(member, params, keeps, learnt.memory, steps=steps))
            letters[member.name] = {n: t for n, t in letter.items() if n in sent or n not in params}
        if member in method.keepers:
            kept[f"{member.name}.{BUFFERS}"] = keeps
    if setting.work.keep_optimiser_state:
        kept[SOLVER] = _freeze(learnt.states)
    shared_buffers, kept[BUFFERS] = _split(method, setting, buffers)

    spare = {} if method.closing else learnt.moved  # nobody looks at them any more
    rest = [n for n in sent if n not in learnt.gained]
    update = {n: spare[n].sub_(order.params[n]) if n in spare else params[n] - order.params[n] for n in rest}
    update = tree.only(update | learnt.gained, sent)
    for upload in method.role(Upload):
        local = look(upload, params, buffers, learnt.memory, steps=steps)
        update, kept[upload.name] = upload.encode(local, update)
    shared = {name: context[name] for member in method.parts for name in member.shares}
    made = torch.as_tensor(steps, dtype=size.dtype, device=size.device)
    weight = setting.work.solver.weight(made)
    return ClientUpdate(update, shared_buffers, _filled(letters), size, made, weight, learnt.loss, shared), _filled(
        kept
    )


def tune(
    method: Method,
    setting: StageSettings,
    order: Broadcast,
    memory: PartTrees,
    data: ClientBatches,
    context: Context,
    gradient: Gradient,
    begun: Tree | None = None,
) -> Tree:
    """The parameters and buffers that a client is evaluated with after the method's fine-tuning. Nothing else is left of it.

    It starts from what the order holds, with a fresh solver, and minimises the task's loss alone.
    """
    if method.tuning is None:
        raise UnalikeError(f"{method!r} has no fine-tuning; add local_finetune")
    tuner, memory = method.tuner, without_solver_state(memory)
    params, memory = (
        (begun, memory) if begun is not None else begin_training(tuner, setting, order, memory, data, context)
    )
    look = view_function(tuner, setting, order, params, memory, data, context)
    learnt = _alone(tuner, (method.tuning,), setting, order, params, memory, data, look, gradient)
    return learnt.params | learnt.buffers


def without_solver_state(memory: PartTrees) -> PartTrees:
    """A client's memory for training that starts with a fresh solver."""
    return {name: mine for name, mine in memory.items() if name != SOLVER}


def begin_training(
    method: Method, setting: StageSettings, order: Broadcast, memory: PartTrees, data: ClientBatches, context: Context
) -> tuple[Tree, PartTrees]:
    """The parameters that the client's training starts from, and its memory by then."""
    received, params = order.buffers | memory.get(BUFFERS, {}), order.params
    look = partial(_look, setting, order, params, params, received, context, data)
    for part in method.role(Personalizer):
        params, mine = part.begin(look(part, params, received, memory))
        memory = memory | {part.name: mine}
    return params, memory


def view_function(
    method: Method,
    setting: StageSettings,
    order: Broadcast,
    params: Tree,
    memory: PartTrees,
    data: ClientBatches,
    context: Context,
) -> ViewFunction:
    """How the method's parts look at a client whose training starts from `params`."""
    start = tree.only(order.params, _sent(method, setting, params))
    return partial(_look, setting, order, start, params, order.buffers | memory.get(BUFFERS, {}), context, data)


def _alone(
    method: Method,
    phases: Sequence[Phase],
    setting: StageSettings,
    order: Broadcast,
    params: Tree,
    memory: PartTrees,
    data: ClientBatches,
    look: ViewFunction,
    gradient: Gradient,
) -> TrainedClient:
    copies = (
        gradient is autograd_gradient and not method.trained
    )  # a part that trains still looks at the values before a step
    leaf = setting.model.leaf if copies else None
    make = partial(LocalStep, method, look=look, sent=_sent(method, setting, params), gradient=gradient, leaf=leaf)
    return run_phases(method, phases, setting, order, params, memory, data.batches, make)


def run_phases(
    method: Method,
    phases: Sequence[Phase],
    setting: StageSettings,
    order: Broadcast,
    params: Tree,
    memory: PartTrees,
    lessons: Sequence[Sequence[Batch]],
    make: TrainerFactory,
) -> TrainedClient:
    """Local training: one phase after the other, each on batches of its own; of one client, or of stacked ones.

    `make(work, params=, memory=)` gives the practice of a phase.
    """
    sent, buffers = _sent(method, setting, params), order.buffers | memory.get(BUFFERS, {})
    own, kept, states = _own_buffers(method, memory), _thaw(memory.get(SOLVER, {})), []
    tallies, moved, gained = list[StepSums](), dict[str, Tensor](), dict[str, Tensor]()

    for place, (phase, batches) in enumerate(zip(phases, lessons, strict=True)):
        work = phase.work(setting.work if order.lr == setting.work.lr else replace(setting.work, lr=order.lr))
        variables = _variables(method, phase, setting.model, params, memory)
        before = StepState(variables, map_tensors(Tensor.clone, kept.get(place, {})), buffers, own)
        made, moving = make(work, params=params, memory=memory).phase(before, batches)
        counts = not sent or not variables[MODEL].keys().isdisjoint(sent)
        tallies.append(made if counts else made._replace(steps=0.0))
        now = tree.detach(moving.variables[MODEL])
        params, gained = params | now, gained | (made.gained or {})
        moved |= now if batches and made.gained is None else {}
        memory, buffers, own = merge_states(memory, moving.variables), moving.buffers, moving.own
        states.append(moving.state)

    loss, rows, steps = (sum(rest, start=first) for first, *rest in zip(*(tally[:3] for tally in tallies), strict=True))
    mean = torch.as_tensor(loss) / torch.as_tensor(rows).clamp_min(1)
    return TrainedClient(params, moved, gained, buffers, own, memory, states, steps, mean)


def _sent(method: Method, setting: StageSettings, params: Tree) -> list[str]:
    return method.sent(params, setting.model)


def initial_client_state(method: Method, setting: StageSettings) -> PartTrees:
    """A client's memory before its first participation: every drawer that it will ever have, so that memories can be stacked."""
    model, memory = setting.model, initial_part_states(method.parts, setting.model)
    memory |= {f"{p.name}.{BUFFERS}": model.buffers for p in method.keepers}
    memory[BUFFERS] = _split(method, setting, model.buffers)[1]
    if setting.work.keep_optimiser_state:
        parts = [
            (p.work(setting.work).solver, _variables(method, p, model, model.params, memory)) for p in method.phases
        ]
        memory[SOLVER] = _freeze([initial_solver_state(solver, variables) for solver, variables in parts])
    device = next(iter(model.params.values())).device
    return map_tensors(lambda t: t.to(device), _filled(memory))


def _look(
    setting: StageSettings,
    order: Broadcast,
    start: Tree,
    origin: Tree,
    received: Tree,
    context: Context,
    data: ClientBatches,
    p: Part,
    params: Tree,
    buffers: Tree,
    memory: PartTrees,
    lr: float | None = None,
    cache: dict[str, Any] | None = None,
    **now: Any,
) -> ClientView:
    mail, mine, lr = order.mail.get(p.name, {}), memory.get(p.name, {}), order.lr if lr is None else lr
    cache = {} if cache is None else cache
    return ClientView(
        setting, p.name, start, origin, received, params, buffers, mail, mine, context, lr, data, cache, **now
    )


def _variables(method: Method, phase: Phase, model: Model, params: Tree, memory: PartTrees) -> PartTrees:
    """What the solver moves in a phase: its trainable parameters, and the memories of the parts that train."""
    variables = {MODEL: tree.shared(params, trained_names(method, phase, model))}
    for p in method.trained:
        variables[p.name] = {n: t for n, t in memory[p.name].items() if n not in params or model.trainable(n)}
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


def _split(method: Method, setting: StageSettings, buffers: Tree) -> tuple[Tree, Tree]:
    """The buffers that are sent, and those that stay on the client."""
    sent = {} if setting.buffers == "local" else tree.only(buffers, method.sent(buffers, setting.model))
    return sent, {n: b for n, b in buffers.items() if n not in sent}


def _own_buffers(method: Method, memory: PartTrees) -> PartTrees:
    """The buffers of the models in the parts' memories."""
    return {part.name: memory.get(f"{part.name}.{BUFFERS}", {}) for part in method.keepers}


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


def _filled(drawers: PartTrees) -> PartTrees:
    return {name: t for name, t in drawers.items() if t}
