"""The client half of a round: `train`, and `tune` for the fine-tuned model that a client is evaluated with. Both are pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.nests import map_tensors
from unalike.core.types import ClientUpdate, PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.core.work import Work
from unalike.methods import return_checks
from unalike.methods.compressor import Compressor
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.methods.roles import Phase, Upload
from unalike.training.client.client_task import BUFFERS, ClientTask
from unalike.training.client.local_step import (
    MODEL,
    LocalStep,
    StepState,
    StepSums,
    TrainerFactory,
    initial_solver_state,
    merge_states,
)
from unalike.training.server.updates import decode_update

Trainers = Callable[[ClientTask], TrainerFactory]
"""Makes the trainers of a client that has begun."""
SOLVER = "solver"
"""Key of the solver's state in a client's state (`keep_optimizer_state`)."""


class TrainedClient(NamedTuple):
    """A client after its local training, before its update is made; of stacked clients every tensor has a leading [K].

    Training made new tensors for the parameters `moved`, which may be overwritten, and added `gained` to others, where the
    trainer returns that. `buffers` are the shared model's, `own` those of the parts' models. `states` are the solver's after
    each phase, `steps` those that trained shared parameters, `loss` is the mean task loss over all steps. `finished` are new
    client states that the trainer has found in place of `finish`, by part.
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
    finished: PartTrees = {}  # noqa: RUF012


def stepwise(task: ClientTask, stacked: bool = False) -> TrainerFactory:
    """Makes the trainer of each phase, step by step; with `stacked` under `torch.vmap`."""
    # steps may overwrite copies of parameters, but a part that trains still reads the values before a step
    leaf = None if stacked or task.method.trained_parts else task.settings.model.layout.leaf
    return partial(LocalStep, task, stacked=stacked, leaf=leaf)


def train(task: ClientTask, trainers: Trainers = stepwise) -> tuple[ClientUpdate, PartTrees]:
    """One client's round: train locally on what the server broadcast.

    Pure, and written once for one client: executors call it as it is, or stacked with `torch.vmap`. A step whose rows all have
    weight 0 changes nothing.

    Returns the client update for the server, and the client's new state.
    """
    task = task.begin()
    return make_client_update(task, run_phases(task, task.method.phases, trainers(task)))


def run_phases(
    task: ClientTask, phases: Sequence[Phase], make_trainer: TrainerFactory
) -> TrainedClient:
    """Local training, phase by phase."""
    training = LocalTraining(task)
    for number, (phase, batches) in enumerate(zip(phases, task.data.batches, strict=True)):
        work, before = training.start(phase)
        trainer = make_trainer(
            work, phase=number, params=training.params, client_state=training.client_state
        )
        training.end(*trainer.phase(before, batches), moved=bool(batches))
    return training.trained


def make_client_update(task: ClientTask, trained: TrainedClient) -> tuple[ClientUpdate, PartTrees]:
    """The client update and the client's new state after training. Stacked clients work if no part is `closing`."""
    method, settings, broadcast, size, sent = (
        task.method,
        task.settings,
        task.broadcast,
        task.size,
        task.sent,
    )
    params, buffers, steps = trained.params, trained.buffers, trained.steps
    messages, kept = {}, {}

    def finish(member: Part, params: Tree) -> None:
        now = trained.own[member.name] if member.trains else buffers
        view = task.view_of(member, params, now, trained.client_state, steps=steps)
        with return_checks.errors_name_hook(member, "finish"):
            kept[member.name], message = member.finish(view)
        messages[member.name] = {n: t for n, t in message.items() if n in sent or n not in params}

    for member in method.parts:
        kept[member.name] = trained.client_state.get(member.name, {})
        if member.name in trained.finished:
            kept[member.name] = trained.finished[member.name]
        elif member in method.parts_after_training and member not in method.parts_after_upload:
            finish(member, params)
        if member in method.parts_with_client_model:
            own = trained.own[member.name]
            view = task.view_of(member, params, buffers, trained.client_state, steps=steps)
            kept[f"{member.name}.{BUFFERS}"] = (
                own if member.trains else member.kept_buffers(view, own)
            )
    if settings.work.keep_optimizer_state:
        kept[SOLVER] = _pack_solver_states(trained.states)
    shared_buffers, kept[BUFFERS] = _split(method, settings, buffers)

    spare = {} if method.parts_after_training else trained.moved  # no part reads them any more
    rest = [n for n in sent if n not in trained.gained]
    update = {
        n: spare[n].sub_(broadcast.params[n]) if n in spare else params[n] - broadcast.params[n]
        for n in rest
    }
    update = tree.only(update | trained.gained, sent)
    for upload in method.role(Upload):
        view = task.view_of(upload, params, buffers, trained.client_state, steps=steps)
        update, kept[upload.name] = upload.encode(view, update)
    reached = params | _reached(task, update, kept) if method.parts_after_upload else params
    for member in method.parts_after_upload:
        finish(member, reached)
    shared = {name: task.context[name] for member in method.parts for name in member.shares}
    made = torch.as_tensor(steps, dtype=size.dtype, device=size.device)
    weight = settings.work.solver.weight(made)
    # where numbers of clients are hidden the loss stays at home: it has no noise
    loss = torch.zeros_like(trained.loss) if method.hides_client_numbers else trained.loss
    client_update = ClientUpdate(
        update, shared_buffers, _filled(messages), size, made, weight, loss, shared
    )
    return client_update, _filled(kept)


def _reached(task: ClientTask, update: Tree, kept: PartTrees) -> Tree:
    """The parameters that the server makes of an encoded update, with what error feedback keeps of it for later rounds."""
    arrived = decode_update(task.method, update, task.broadcast)
    for name in (u.name for u in task.method.role(Compressor) if u.error_feedback):
        kept_back = tree.sub(tree.shared(kept[name], arrived), task.client_state[name])
        arrived |= tree.map(lambda e, u: u + e, kept_back, arrived)
    return tree.map(lambda u, w: w + u, arrived, task.broadcast.params)


def tune(task: ClientTask, trainers: Trainers = stepwise) -> Tree:
    """The parameters and buffers that a client is evaluated with after the method's fine-tuning; its state stays as it is.

    Fine-tuning starts from the broadcast model with a fresh solver, and minimizes the task's loss alone. The arguments are those
    of `train`.
    """
    phase = task.method.finetuning_phase
    if phase is None:
        raise UnalikeError(f"{task.method!r} has no fine-tuning; add local_finetune")
    fresh = without_solver_state(task.client_state)
    task = replace(task, method=task.method.finetuning_method, client_state=fresh).begin()
    trained = run_phases(task, (phase,), trainers(task))
    return trained.params | trained.buffers


def without_solver_state(client_state: PartTrees) -> PartTrees:
    """A client's state without the solver's, for training that starts with a fresh solver."""
    return {name: mine for name, mine in client_state.items() if name != SOLVER}


class LocalTraining:
    """Local training between its phases, of one client or of stacked ones: each phase starts where the last one ended.

    `params`, `buffers` and `client_state` are the current values.
    """

    def __init__(self, task: ClientTask):
        self.method, self.model, self.sent = task.method, task.settings.model, task.sent
        self.params, self.client_state, self.buffers = task.start, task.client_state, task.buffers
        work, lr = task.settings.work, task.broadcast.lr
        self._work = work if lr == work.lr else replace(work, lr=lr)
        self._own = {
            p.name: task.client_state.get(f"{p.name}.{BUFFERS}", {})
            for p in task.method.parts_with_client_model
        }
        self._solver_states = _unpack_solver_states(task.client_state.get(SOLVER, {}))
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
        now, gained = tree.detach(after.variables[MODEL]), sums.added_to_model
        self._sums.append(sums if self._counts else sums._replace(steps=0.0))
        self._states.append(after.solver_state)
        self.params, self._gained = self.params | now, self._gained | (gained or {})
        self._moved |= now if moved and gained is None else {}
        self.client_state = merge_states(self.client_state, after.variables)
        self.buffers, self._own = after.buffers, after.own_buffers

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


def initial_client_state(method: Method, settings: StageSettings) -> PartTrees:
    """A client's state before its first participation, with every key that it will ever have: so states can be stacked."""
    model, params = settings.model, method.trained_params(settings.model)
    client_state = {
        p.name: p.client_init({n: w for n, w in params.items() if p.keeps(n, model)})
        for p in method.parts
    }
    client_state |= {f"{p.name}.{BUFFERS}": model.buffers for p in method.parts_with_client_model}
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


def _variables(
    method: Method, phase: Phase, model: Model, params: Tree, client_state: PartTrees
) -> PartTrees:
    """The variables of the solver in a phase: the trainable parameters, and the models of the parts that train one."""
    variables = {MODEL: tree.shared(params, trained_names(method, phase, model))}
    return variables | {p.name: client_state[p.name] for p in method.trained_parts}


def trained_names(method: Method, phase: Phase, model: Model) -> list[str]:
    """The parameters that a phase trains. Raises `UnalikeError` where it would train nothing."""
    names = [n for n in model.params if method.trains(n, model) and model.within(phase.moves, n)]
    if not names and not method.trained_parts:
        raise UnalikeError(
            f"nothing of the model moves where {method!r} trains its {phase.moves!r}; expected parameters there that require "
            "gradients (the head is the model's attribute `head`, or its last linear layer; the body is the rest)"
        )
    return names


def _split(method: Method, settings: StageSettings, buffers: Tree) -> tuple[Tree, Tree]:
    """The buffers that are sent, and those that stay on the client."""
    sent = (
        {}
        if settings.buffers == "local"
        else tree.only(buffers, method.shared_names(buffers, settings.model))
    )
    return sent, {n: b for n, b in buffers.items() if n not in sent}


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
