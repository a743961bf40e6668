"""The client half of a round: `train`, and `tune` for the fine-tuned model that a client is evaluated with. Both are pure."""

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
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.part import Part
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
"""Key of a client's own buffers in its state (`buffers="local"`); a part's model keeps its buffers under `<part>.buffers`."""
SOLVER = "solver"
"""Key of the solver's state in a client's state (`keep_optimizer_state`)."""


class TrainedClient(NamedTuple):
    """A client after its local training, before its update is made; of stacked clients every tensor has a leading [K].

    Args:
        params: all parameters of the model.
        moved: those of them that training made new tensors for, which may be overwritten.
        gained: what training added to the other trained parameters, where the trainer returns that.
        buffers: the shared model's buffers.
        own: the buffers of the parts' models, by part.
        client_state: the client's state, by part.
        states: the solver's state after each phase.
        steps: the steps that trained shared parameters.
        loss: the mean task loss over all steps.
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
    """One client's round: train locally on what the server broadcast.

    Pure, and written once for one client: executors call it as it is, or stacked with `torch.vmap`. A step whose rows all have
    weight 0 changes nothing.

    Args:
        method: the method whose parts take part.
        settings: what stays the same during the stage.
        broadcast: what the server sent to this client.
        client_state: what the client kept since its last participation.
        size: the number of its training samples, a scalar.
        data: its batches of this round, by phase.
        context: its static facts.
        gradient: `autograd_gradient`, or under `torch.vmap` `functional_gradient`.
        begun: the parameters to start from, where the executor has called `begin_training` already.

    Returns:
        The client update for the server, and the client's new state.
    """
    if begun is None:
        begun, client_state = begin_training(method, settings, broadcast, client_state, data, context)
    view_of = view_function(method, settings, broadcast, begun, client_state, data, context)
    make_trainer = _trainer_factory(method, settings, begun, view_of, gradient)
    training = LocalTraining(method, settings, broadcast, begun, client_state)
    for phase, batches in zip(method.phases, data.batches, strict=True):
        work, before = training.start(phase)
        trainer = make_trainer(work, params=training.params, client_state=training.client_state)
        training.end(*trainer.phase(before, batches), moved=bool(batches))
    return make_client_update(method, settings, broadcast, size, context, view_of, training.trained)


def make_client_update(
    method: Method,
    settings: StageSettings,
    broadcast: Broadcast,
    size: Tensor,
    context: Context,
    view_of: ViewFunction,
    trained: TrainedClient,
) -> tuple[ClientUpdate, PartTrees]:
    """The client update and the client's new state after training. Stacked clients work if no part is `closing`."""
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
        kept[SOLVER] = _pack_solver_states(trained.states)
    shared_buffers, kept[BUFFERS] = _split(method, settings, buffers)

    spare = {} if method.closing else trained.moved  # no part reads them any more
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
    """The parameters and buffers that a client is evaluated with after the method's fine-tuning; its state stays as it is.

    Fine-tuning starts from the broadcast model with a fresh solver, and minimizes the task's loss alone. The arguments are those
    of `train`.
    """
    if method.tuning is None:
        raise UnalikeError(f"{method!r} has no fine-tuning; add local_finetune")
    tuner, client_state = method.tuner, without_solver_state(client_state)
    if begun is None:
        begun, client_state = begin_training(tuner, settings, broadcast, client_state, data, context)
    view_of = view_function(tuner, settings, broadcast, begun, client_state, data, context)
    make = _trainer_factory(tuner, settings, begun, view_of, gradient)
    trained = run_phases(tuner, (method.tuning,), settings, broadcast, begun, client_state, data.batches, make)
    return trained.params | trained.buffers


def without_solver_state(client_state: PartTrees) -> PartTrees:
    """A client's state without the solver's, for training that starts with a fresh solver."""
    return {name: mine for name, mine in client_state.items() if name != SOLVER}


def begin_training(
    method: Method,
    settings: StageSettings,
    broadcast: Broadcast,
    client_state: PartTrees,
    data: ClientBatches,
    context: Context,
) -> tuple[Tree, PartTrees]:
    """The parameters that the client's training starts from, and its state at that point."""
    received, params = broadcast.buffers | client_state.get(BUFFERS, {}), broadcast.params
    view_of = _view_function(settings, broadcast, params, params, received, data, context)
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
    """Makes the parts' views of a client whose training starts from `params`."""
    start = tree.only(broadcast.params, _sent(method, settings, params))
    received = broadcast.buffers | client_state.get(BUFFERS, {})
    return _view_function(settings, broadcast, start, params, received, data, context)


def _view_function(
    settings: StageSettings,
    broadcast: Broadcast,
    start: Tree,
    origin: Tree,
    received: Tree,
    data: ClientBatches,
    context: Context,
) -> ViewFunction:
    def view_of(
        part: Part,
        params: Tree,
        buffers: Tree,
        client_state: PartTrees,
        lr: float | None = None,
        cache: dict[str, Any] | None = None,
        **now: Any,
    ) -> ClientView:
        name = part.name
        message, mine = broadcast.messages.get(name, {}), client_state.get(name, {})
        lr, cache = broadcast.lr if lr is None else lr, {} if cache is None else cache
        return ClientView(
            settings, name, start, origin, received, params, buffers, message, mine, context, lr, data, cache, **now
        )

    return view_of


def _trainer_factory(
    method: Method, settings: StageSettings, params: Tree, view_of: ViewFunction, gradient: Gradient
) -> TrainerFactory:
    """Makes the trainer of each phase, step by step with this gradient."""
    # steps may overwrite copies of parameters, but a part that trains still reads the values before a step
    leaf = settings.model.leaf if gradient is autograd_gradient and not method.trained else None
    sent = _sent(method, settings, params)
    return partial(LocalStep, method, view_of=view_of, sent=sent, gradient=gradient, leaf=leaf)


class LocalTraining:
    """Local training between its phases, of one client or of stacked ones: each phase starts where the last one ended.

    `params`, `buffers` and `client_state` are the current values.
    """

    def __init__(
        self,
        method: Method,
        settings: StageSettings,
        broadcast: Broadcast,
        params: Tree,
        client_state: PartTrees,
    ):
        self.method, self.model, self.params, self.client_state = method, settings.model, params, client_state
        self.sent = _sent(method, settings, params)
        self.buffers = broadcast.buffers | client_state.get(BUFFERS, {})
        work = settings.work
        self._work = work if broadcast.lr == work.lr else replace(work, lr=broadcast.lr)
        self._own = _own_buffers(method, client_state)
        self._solver_states = _unpack_solver_states(client_state.get(SOLVER, {}))
        self._sums: list[StepSums] = []
        self._states: list[dict[str, PartTrees]] = []
        self._moved: Tree = {}
        self._gained: Tree = {}
        self._counts = True  # whether the steps of the phase train shared parameters

    def start(self, phase: Phase) -> tuple[Work, StepState]:
        """The work of the next phase, and the values that it starts from."""
        variables = _variables(self.method, phase, self.model, self.params, self.client_state)
        self._counts = not self.sent or not variables[MODEL].keys().isdisjoint(self.sent)
        state = map_tensors(Tensor.clone, self._solver_states.get(len(self._states), {}))
        return phase.work(self._work), StepState(variables, state, self.buffers, self._own)

    def end(self, sums: StepSums, after: StepState, moved: bool) -> None:
        """Take over what a phase came to; `moved`: it had batches."""
        now, gained = tree.detach(after.variables[MODEL]), sums.gained
        self._sums.append(sums if self._counts else sums._replace(steps=0.0))
        self._states.append(after.state)
        self.params, self._gained = self.params | now, self._gained | (gained or {})
        self._moved |= now if moved and gained is None else {}
        self.client_state = merge_states(self.client_state, after.variables)
        self.buffers, self._own = after.buffers, after.own

    @property
    def trained(self) -> TrainedClient:
        """The client after the last phase."""
        columns = zip(*(sums[:3] for sums in self._sums), strict=True)
        loss, rows, steps = (sum(rest, start=first) for first, *rest in columns)
        return TrainedClient(
            params=self.params,
            moved=self._moved,
            gained=self._gained,
            buffers=self.buffers,
            own=self._own,
            client_state=self.client_state,
            states=self._states,
            steps=steps,
            loss=torch.as_tensor(loss) / torch.as_tensor(rows).clamp_min(1),
        )


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
    """The same loop over phases as in `train`, with any trainer: `make(work, params=, client_state=)`."""
    training = LocalTraining(method, settings, broadcast, params, client_state)
    for phase, batches in zip(phases, schedules, strict=True):
        work, before = training.start(phase)
        trainer = make(work, params=training.params, client_state=training.client_state)
        training.end(*trainer.phase(before, batches), moved=bool(batches))
    return training.trained


def _sent(method: Method, settings: StageSettings, params: Tree) -> list[str]:
    return method.sent(params, settings.model)


def initial_client_state(method: Method, settings: StageSettings) -> PartTrees:
    """A client's state before its first participation, with every key that it will ever have: so states can be stacked."""
    model, params = settings.model, method.trained_params(settings.model)
    client_state = {p.name: p.client_init({n: w for n, w in params.items() if p.keeps(n, model)}) for p in method.parts}
    client_state |= {f"{p.name}.{BUFFERS}": model.buffers for p in method.keepers}
    client_state[BUFFERS] = _split(method, settings, model.buffers)[1]
    if settings.work.keep_optimizer_state:
        parts = [
            (p.work(settings.work).solver, _variables(method, p, model, model.params, client_state))
            for p in method.phases
        ]
        client_state[SOLVER] = _pack_solver_states(
            [initial_solver_state(solver, variables) for solver, variables in parts]
        )
    device = next(iter(model.params.values())).device
    return map_tensors(lambda t: t.to(device), _filled(client_state))


def _variables(method: Method, phase: Phase, model: Model, params: Tree, client_state: PartTrees) -> PartTrees:
    """The variables of the solver in a phase: the trainable parameters, and the models of the parts that train one."""
    variables = {MODEL: tree.shared(params, trained_names(method, phase, model))}
    return variables | {p.name: client_state[p.name] for p in method.trained}


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
    """The buffers of the parts' models, by part."""
    return {part.name: client_state.get(f"{part.name}.{BUFFERS}", {}) for part in method.keepers}


def _pack_solver_states(states: Sequence[dict[str, PartTrees]]) -> Tree:
    """The solver's states by phase as one tree: `<phase>.<variables>.<slot>/<parameter>`."""
    return tree.pack(
        {
            f"{number}.{name}.{slot}": t
            for number, state in enumerate(states)
            for name, slots in state.items()
            for slot, t in slots.items()
        }
    )


def _unpack_solver_states(packed: Tree) -> dict[int, dict[str, PartTrees]]:
    states: dict[int, dict[str, PartTrees]] = {}
    for path, slot in tree.unpack(packed).items():
        number, name, kind = path.split(".")
        states.setdefault(int(number), {}).setdefault(name, {})[kind] = slot
    return states


def _filled(part_trees: PartTrees) -> PartTrees:
    return {name: t for name, t in part_trees.items() if t}
