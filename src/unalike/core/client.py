"""The client half of a round: one pure function, `train`, and beside it `tune`, for what a client is evaluated with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.errors import UnalikeError
from unalike.core.gather import each
from unalike.core.local import Data, Local, Setting
from unalike.core.model import Model
from unalike.core.part import Part, Personaliser, Phase, Upload, fresh
from unalike.core.stepping import MODEL, Gradient, Look, Make, Moving, Stepper, Tally, autograd, fresh_state, merged
from unalike.core.types import Batch, Context, Drawers, Order, Report, Tree

if TYPE_CHECKING:
    from unalike.core.method import Method

BUFFERS = "buffers"
"""The drawer of a client's own buffers (`buffers="local"`); a part's model keeps its buffers in `<part>.buffers`."""
SOLVER = "solver"
"""The drawer of the solver's state (`keep_optimiser_state`)."""


class Learnt(NamedTuple):
    """A client after its local training, before anything is reported; stacked, every tensor has a leading [K].

    `moved` are those of the parameters that training made anew, `gained` is what it added to others, `states` are the solver's by
    phase, `steps` those that moved shared parameters, `loss` the mean task loss over all of them.
    """

    params: Tree
    moved: Tree
    gained: Tree
    buffers: Tree
    own: Drawers
    memory: Drawers
    states: list[dict[str, Drawers]]
    steps: Tensor | float
    loss: Tensor


def train(
    method: Method,
    setting: Setting,
    order: Order,
    memory: Drawers,
    size: Tensor,
    data: Data,
    context: Context,
    gradient: Gradient,
    begun: Tree | None = None,
) -> tuple[Report, Drawers]:
    """One client's round: from the order, its memory and its batches to its report and its new memory.

    Pure, and written once for one client: executors run it as it is, or stacked with `torch.vmap`. A step whose rows all have
    weight 0 changes nothing. `gradient(f)(variables)` returns (gradients, (value, aux)), by autograd or by `torch.func`.
    `begun`: the parameters to start from, where an executor called `begin` before.
    """
    params, memory = (begun, memory) if begun is not None else begin(method, setting, order, memory, data, context)
    look = view(method, setting, order, params, memory, data, context)
    learnt = _alone(method, method.phases, setting, order, params, memory, data, look, gradient)
    return conclude(method, setting, order, size, context, look, learnt)


def conclude(
    method: Method, setting: Setting, order: Order, size: Tensor, context: Context, look: Look, learnt: Learnt
) -> tuple[Report, Drawers]:
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
    return Report(update, shared_buffers, _filled(letters), size, made, weight, learnt.loss, shared), _filled(kept)


def tune(
    method: Method,
    setting: Setting,
    order: Order,
    memory: Drawers,
    data: Data,
    context: Context,
    gradient: Gradient,
    begun: Tree | None = None,
) -> Tree:
    """The parameters and buffers that a client is evaluated with after the method's fine-tuning. Nothing else is left of it.

    It starts from what the order holds, with a fresh solver, and minimises the task's loss alone.
    """
    if method.tuning is None:
        raise UnalikeError(f"{method!r} has no fine-tuning; add local_finetune")
    tuner, memory = method.tuner, without_solver(memory)
    params, memory = (begun, memory) if begun is not None else begin(tuner, setting, order, memory, data, context)
    look = view(tuner, setting, order, params, memory, data, context)
    learnt = _alone(tuner, (method.tuning,), setting, order, params, memory, data, look, gradient)
    return learnt.params | learnt.buffers


def without_solver(memory: Drawers) -> Drawers:
    """A client's memory for training that starts with a fresh solver."""
    return {name: mine for name, mine in memory.items() if name != SOLVER}


def begin(
    method: Method, setting: Setting, order: Order, memory: Drawers, data: Data, context: Context
) -> tuple[Tree, Drawers]:
    """The parameters that the client's training starts from, and its memory by then."""
    received, params = order.buffers | memory.get(BUFFERS, {}), order.params
    look = partial(_look, setting, order, params, params, received, context, data)
    for part in method.role(Personaliser):
        params, mine = part.begin(look(part, params, received, memory))
        memory = memory | {part.name: mine}
    return params, memory


def view(
    method: Method, setting: Setting, order: Order, params: Tree, memory: Drawers, data: Data, context: Context
) -> Look:
    """How the method's parts look at a client whose training starts from `params`."""
    start = tree.only(order.params, _sent(method, setting, params))
    return partial(_look, setting, order, start, params, order.buffers | memory.get(BUFFERS, {}), context, data)


def _alone(
    method: Method,
    phases: Sequence[Phase],
    setting: Setting,
    order: Order,
    params: Tree,
    memory: Drawers,
    data: Data,
    look: Look,
    gradient: Gradient,
) -> Learnt:
    copies = gradient is autograd and not method.trained  # a part that trains still looks at the values before a step
    leaf = setting.model.leaf if copies else None
    make = partial(Stepper, method, look=look, sent=_sent(method, setting, params), gradient=gradient, leaf=leaf)
    return learn(method, phases, setting, order, params, memory, data.batches, make)


def learn(
    method: Method,
    phases: Sequence[Phase],
    setting: Setting,
    order: Order,
    params: Tree,
    memory: Drawers,
    lessons: Sequence[Sequence[Batch]],
    make: Make,
) -> Learnt:
    """Local training: one phase after the other, each on batches of its own; of one client, or of stacked ones.

    `make(work, params=, memory=)` gives the practice of a phase.
    """
    sent, buffers = _sent(method, setting, params), order.buffers | memory.get(BUFFERS, {})
    own, kept, states = _own_buffers(method, memory), _thaw(memory.get(SOLVER, {})), []
    tallies, moved, gained = list[Tally](), dict[str, Tensor](), dict[str, Tensor]()

    for place, (phase, batches) in enumerate(zip(phases, lessons, strict=True)):
        work = phase.work(setting.work if order.lr == setting.work.lr else replace(setting.work, lr=order.lr))
        variables = _variables(method, phase, setting.model, params, memory)
        before = Moving(variables, each(Tensor.clone, kept.get(place, {})), buffers, own)
        made, moving = make(work, params=params, memory=memory).phase(before, batches)
        counts = not sent or not variables[MODEL].keys().isdisjoint(sent)
        tallies.append(made if counts else made._replace(steps=0.0))
        now = tree.detach(moving.variables[MODEL])
        params, gained = params | now, gained | (made.gained or {})
        moved |= now if batches and made.gained is None else {}
        memory, buffers, own = merged(memory, moving.variables), moving.buffers, moving.own
        states.append(moving.state)

    loss, rows, steps = (sum(rest, start=first) for first, *rest in zip(*(tally[:3] for tally in tallies), strict=True))
    mean = torch.as_tensor(loss) / torch.as_tensor(rows).clamp_min(1)
    return Learnt(params, moved, gained, buffers, own, memory, states, steps, mean)


def _sent(method: Method, setting: Setting, params: Tree) -> list[str]:
    return method.sent(params, setting.model)


def open_memory(method: Method, setting: Setting) -> Drawers:
    """A client's memory before its first participation: every drawer that it will ever have, so that memories can be stacked."""
    model, memory = setting.model, fresh(method.parts, setting.model)
    memory |= {f"{p.name}.{BUFFERS}": model.buffers for p in method.keepers}
    memory[BUFFERS] = _split(method, setting, model.buffers)[1]
    if setting.work.keep_optimiser_state:
        parts = [
            (p.work(setting.work).solver, _variables(method, p, model, model.params, memory)) for p in method.phases
        ]
        memory[SOLVER] = _freeze([fresh_state(solver, variables) for solver, variables in parts])
    device = next(iter(model.params.values())).device
    return each(lambda t: t.to(device), _filled(memory))


def _look(
    setting: Setting,
    order: Order,
    start: Tree,
    origin: Tree,
    received: Tree,
    context: Context,
    data: Data,
    p: Part,
    params: Tree,
    buffers: Tree,
    memory: Drawers,
    lr: float | None = None,
    cache: dict[str, Any] | None = None,
    **now: Any,
) -> Local:
    mail, mine, lr = order.mail.get(p.name, {}), memory.get(p.name, {}), order.lr if lr is None else lr
    cache = {} if cache is None else cache
    return Local(setting, p.name, start, origin, received, params, buffers, mail, mine, context, lr, data, cache, **now)


def _variables(method: Method, phase: Phase, model: Model, params: Tree, memory: Drawers) -> Drawers:
    """What the solver moves in a phase: its trainable parameters, and the memories of the parts that train."""
    variables = {MODEL: tree.shared(params, moved(method, phase, model))}
    for p in method.trained:
        variables[p.name] = {n: t for n, t in memory[p.name].items() if n not in params or model.trainable(n)}
    return variables


def moved(method: Method, phase: Phase, model: Model) -> list[str]:
    """The parameters that a phase trains. Raises `UnalikeError` where it would train nothing."""
    names = [n for n in model.params if method.trains(n, model) and model.within(phase.moves, n)]
    if not names and not method.trained:
        raise UnalikeError(
            f"nothing of the model moves where {method!r} trains its {phase.moves!r}; expected parameters there that require "
            "gradients (the head is the model's attribute `head`, or its last linear layer; the body is the rest)"
        )
    return names


def _split(method: Method, setting: Setting, buffers: Tree) -> tuple[Tree, Tree]:
    """The buffers that are sent, and those that stay on the client."""
    sent = {} if setting.buffers == "local" else tree.only(buffers, method.sent(buffers, setting.model))
    return sent, {n: b for n, b in buffers.items() if n not in sent}


def _own_buffers(method: Method, memory: Drawers) -> Drawers:
    """The buffers of the models in the parts' memories."""
    return {part.name: memory.get(f"{part.name}.{BUFFERS}", {}) for part in method.keepers}


def _freeze(states: Sequence[dict[str, Drawers]]) -> Tree:
    """The solver's states by phase as one tree: `<phase>.<variables>.<slot>/<parameter>`."""
    return tree.pack(
        {
            f"{number}.{name}.{slot}": t
            for number, state in enumerate(states)
            for name, slots in state.items()
            for slot, t in slots.items()
        }
    )


def _thaw(packed: Tree) -> dict[int, dict[str, Drawers]]:
    states: dict[int, dict[str, Drawers]] = {}
    for path, slot in tree.unpack(packed).items():
        number, name, kind = path.split(".")
        states.setdefault(int(number), {}).setdefault(name, {})[kind] = slot
    return states


def _filled(drawers: Drawers) -> Drawers:
    return {name: t for name, t in drawers.items() if t}
