"""The client half of a round: `train`, and `finetune` for the model that a client is evaluated with. Both are pure.

Fine-tuning is training by another method (`Method.finetuning_method`), of which nothing is sent.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.nests import Nest, map_tensors
from unalike.core.types import ClientUpdate, PartTrees, Tree
from unalike.core.views import ClientView, StageSettings
from unalike.core.work import Work
from unalike.methods import return_checks
from unalike.methods.compressor import Compressor
from unalike.methods.method import Method
from unalike.methods.part import Part, overrides
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

    Training made new tensors for the parameters `new_tensors`, which may be overwritten, and added `added_to_model` to others,
    where the trainer returns that. `buffers` are the shared model's, `own_buffers` those of the parts' models. `solver_states`
    are those after each phase, `steps` those that trained shared parameters, `loss` is the mean task loss over all steps.
    `finished` are new client states that the trainer has found in place of `finish`, by part.
    """

    params: Tree
    new_tensors: Tree
    added_to_model: Tree
    buffers: Tree
    own_buffers: PartTrees
    client_state: PartTrees
    solver_states: list[dict[str, PartTrees]]
    steps: Tensor | float
    loss: Tensor
    finished: PartTrees = {}  # noqa: RUF012

    @property
    def model(self) -> Tree:
        """The parameters and buffers of the client's model."""
        return self.params | self.buffers


def stepwise(task: ClientTask, stacked: bool = False) -> partial[LocalStep]:
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
    # parts make the start of training from what was received and kept
    task = task.begin()
    # the solver moves the parameters, phase by phase
    trained = run_phases(task, trainers(task))
    # parts look at the result: what they keep, and what is sent
    return make_client_update(task, trained)


def finetune(task: ClientTask, trainers: Trainers = stepwise) -> Tree:
    """The same training, but nothing is sent or kept: the parameters and buffers that a client is evaluated with.

    The task is one of `Method.finetuning_method`, from a fresh solver (`without_solver_state`).
    """
    task = task.begin()
    return run_phases(task, trainers(task)).model


def run_phases(task: ClientTask, make_trainer: TrainerFactory) -> TrainedClient:
    """Local training, phase by phase."""
    training = LocalTraining(task)
    for number, (phase, batches) in enumerate(
        zip(task.method.phases, task.data.batches, strict=True)
    ):
        work, before = training.start(phase)
        trainer = make_trainer(
            work, phase=number, params=training.params, client_state=training.client_state
        )
        sums, after = trainer.phase(before, batches)
        training.end(sums, after, has_batches=bool(batches))
    return training.trained


def make_client_update(task: ClientTask, trained: TrainedClient) -> tuple[ClientUpdate, PartTrees]:
    """The client update and the client's new state after training.

    Stacked clients work if no part acts after training (`Method.parts_after_training`).
    """
    method, settings = task.method, task.settings
    params, buffers, steps = trained.params, trained.buffers, trained.steps
    messages: PartTrees = {}
    kept: PartTrees = {}

    def view_of(part: Part, params: Tree, buffers: Tree) -> ClientView:
        return task.view_of(part, params, buffers, trained.client_state, steps=steps)

    def finish(part: Part, params: Tree) -> None:
        part_buffers = trained.own_buffers[part.name] if part.trains else buffers
        kept[part.name], message = _finished(part, view_of(part, params, part_buffers))
        _check_counts_what_is_sent(task, part, message)
        # private parameters stay at the client
        messages[part.name] = {
            name: t for name, t in message.items() if name in task.sent_names or name not in params
        }

    # the parts' states and messages; those that count what is sent have to wait for the upload
    for part in method.parts:
        kept[part.name] = trained.client_state.get(part.name, {})
        if part.name in trained.finished:
            kept[part.name] = trained.finished[part.name]
        elif part in method.parts_after_training and part not in method.parts_after_upload:
            finish(part, params)
        if part in method.parts_with_client_model:
            own_buffers = trained.own_buffers[part.name]
            if not part.trains:
                own_buffers = part.kept_buffers(view_of(part, params, buffers), own_buffers)
            kept[f"{part.name}.{BUFFERS}"] = own_buffers

    # what the client keeps beside them
    if settings.work.keep_optimizer_state:
        kept[SOLVER] = _pack_solver_states(trained.solver_states)
    shared_buffers, kept[BUFFERS] = _split_buffers(method, settings, buffers)

    # the update, as the uploads encode it
    update, kept_of_uploads = _encoded_update(task, trained, view_of)
    kept |= kept_of_uploads

    # parts that sum what is sent see the model that the server makes of it
    if method.parts_after_upload:
        reached = params | _reached(task, update, kept)
        for part in method.parts_after_upload:
            finish(part, reached)

    # the numbers
    steps_made = torch.as_tensor(steps, dtype=task.size.dtype, device=task.size.device)
    client_update = ClientUpdate(
        update=_sent_values(method, update),
        buffers=shared_buffers,
        messages=_sent_values(method, _without_empty(messages)),
        size=task.size,
        steps=steps_made,
        weight=settings.work.solver.weight(steps_made),
        loss=torch.zeros_like(trained.loss) if method.hides_client_numbers else trained.loss,
        shared=method.shared_facts(task.context),
    )
    return client_update, _without_empty(kept)


def _sent_values(method: Method, values: Nest) -> Nest:
    """The values as they are sent: finite where the method promises it, since noise and the server alone decide by then."""
    if method.sends_finite_values:
        return map_tensors(tree.finite, values)
    return values


def _check_counts_what_is_sent(task: ClientTask, part: Part, message: Tree) -> None:
    """Raise `UnalikeError` where client and server count other updates: one has its own, the other what an upload made of them."""
    if message or part.sums_sent or not overrides(part, "finish"):
        return
    uploads = task.method.role(Upload)
    if uploads and task.sent_names and part in task.method.parts_with_linked_states:
        raise UnalikeError(
            f"{part.name} has a state on the client and one on the server and sends no message, so that the server counts the "
            f"updates that {uploads[0].name} makes of the client's; write sums_sent = True in the class, and `finish` sees what "
            "the server sees"
        )


def _finished(part: Part, view: ClientView) -> tuple[Tree, Tree]:
    """The trees that a part keeps and sends after training."""
    with return_checks.inputs_unchanged(part, "finish", view):
        return return_checks.returned_pair(part, "finish", part.finish, view)


def _encoded_update(
    task: ClientTask, trained: TrainedClient, view_of: Callable[[Part, Tree, Tree], ClientView]
) -> tuple[Tree, PartTrees]:
    """The update as the uploads encode it, and what the client keeps of each of them."""
    update = _difference(task, trained)
    kept = {}
    for upload in task.method.role(Upload):
        view = view_of(upload, trained.params, trained.buffers)
        with return_checks.inputs_unchanged(upload, "encode", view):
            update, kept[upload.name] = return_checks.returned_pair(
                upload, "encode", upload.encode, view, update
            )
    return update, kept


def _difference(task: ClientTask, trained: TrainedClient) -> Tree:
    """The update w_k - w of the shared parameters. It overwrites new tensors that no part reads any more."""
    received = task.broadcast.params
    spare = {} if task.method.parts_after_training else trained.new_tensors
    update = {}
    for name in task.sent_names:
        if name in trained.added_to_model:
            update[name] = trained.added_to_model[name]
        elif name in spare:
            update[name] = spare[name].sub_(received[name])
        else:
            update[name] = trained.params[name] - received[name]
    return update


def _reached(task: ClientTask, update: Tree, kept: PartTrees) -> Tree:
    """The parameters that the server makes of an encoded update, with what error feedback keeps of it for later rounds."""
    arrived = decode_update(task.method, update, task.broadcast)
    for compressor in task.method.role(Compressor):
        if compressor.error_feedback:
            name = compressor.name
            kept_back = tree.sub(tree.shared(kept[name], arrived), task.client_state[name])
            arrived |= tree.map(lambda e, u: u + e, kept_back, arrived)
    return tree.map(lambda u, w: w + u, arrived, task.broadcast.params)


def without_solver_state(client_state: PartTrees) -> PartTrees:
    """A client's state without the solver's, for training that starts with a fresh solver."""
    return {name: mine for name, mine in client_state.items() if name != SOLVER}


class LocalTraining:
    """Local training between its phases, of one client or of stacked ones: each phase starts where the last one ended.

    `params`, `buffers` and `client_state` are the current values.
    """

    def __init__(self, task: ClientTask):
        self.method = task.method
        self.model = task.settings.model
        self.sent_names = task.sent_names
        self.params = task.start
        self.client_state = task.client_state
        self.buffers = task.buffers
        # the broadcast has the learning rate of the round, which may follow a schedule
        work, lr = task.settings.work, task.broadcast.lr
        self._work = work if lr == work.lr else replace(work, lr=lr)
        self._own_buffers = {
            part.name: task.client_state.get(f"{part.name}.{BUFFERS}", {})
            for part in task.method.parts_with_client_model
        }
        self._kept_solver_states = _unpack_solver_states(task.client_state.get(SOLVER, {}))
        # what the phases so far came to
        self._sums: list[StepSums] = []
        self._solver_states: list[dict[str, PartTrees]] = []
        self._new_tensors: Tree = {}
        self._added_to_model: Tree = {}
        self._trains_shared = True

    def start(self, phase: Phase) -> tuple[Work, StepState]:
        """The work of the next phase, and the values that it starts from."""
        variables = _variables(self.method, phase, self.model, self.params, self.client_state)
        # only steps that train shared parameters count, if there are such parameters
        self._trains_shared = not self.sent_names or not variables[MODEL].keys().isdisjoint(
            self.sent_names
        )
        number = len(self._solver_states)
        solver_state = map_tensors(Tensor.clone, self._kept_solver_states.get(number, {}))
        before = StepState(variables, solver_state, self.buffers, self._own_buffers)
        return phase.work(self._work), before

    def end(self, sums: StepSums, after: StepState, has_batches: bool) -> None:
        """Take over what a phase came to."""
        params = tree.detach(after.variables[MODEL])
        self._sums.append(sums if self._trains_shared else sums._replace(steps=0.0))
        self._solver_states.append(after.solver_state)
        self.params = self.params | params
        if sums.added_to_model is not None:
            self._added_to_model = self._added_to_model | sums.added_to_model
        elif has_batches:
            # without a step the tensors are still the broadcast's
            self._new_tensors = self._new_tensors | params
        self.client_state = merge_states(self.client_state, after.variables)
        self.buffers = after.buffers
        self._own_buffers = after.own_buffers

    @property
    def trained(self) -> TrainedClient:
        """The client after the last phase."""
        loss = _total([sums.loss for sums in self._sums])
        rows = _total([sums.rows for sums in self._sums])
        return TrainedClient(
            params=self.params,
            new_tensors=self._new_tensors,
            added_to_model=self._added_to_model,
            buffers=self.buffers,
            own_buffers=self._own_buffers,
            client_state=self.client_state,
            solver_states=self._solver_states,
            steps=_total([sums.steps for sums in self._sums]),
            loss=torch.as_tensor(loss) / torch.as_tensor(rows).clamp_min(1),
        )


def _total(values: list[Tensor | float]) -> Tensor | float:
    """The sum in this order, which starts with the first value and not with 0."""
    return sum(values[1:], start=values[0])


def initial_client_state(method: Method, settings: StageSettings) -> PartTrees:
    """A client's state before its first participation, with every key that it will ever have: so states can be stacked."""
    model, params = settings.model, method.trained_params(settings.model)
    client_state: PartTrees = {}
    for part in method.parts:
        given = {n: w for n, w in params.items() if part.keeps(n, model)}
        first = part.client_init(given)
        client_state[part.name] = return_checks.check_tensors(part, "client_init", first)
    for part in method.parts_with_client_model:
        client_state[f"{part.name}.{BUFFERS}"] = model.buffers
    _, client_state[BUFFERS] = _split_buffers(method, settings, model.buffers)
    if settings.work.keep_optimizer_state:
        solver_states = []
        for phase in method.phases:
            variables = _variables(method, phase, model, model.params, client_state)
            solver_states.append(initial_solver_state(phase.work(settings.work).solver, variables))
        client_state[SOLVER] = _pack_solver_states(solver_states)
    device = next(iter(model.params.values())).device
    return map_tensors(lambda t: t.to(device), _without_empty(client_state))


def _variables(
    method: Method, phase: Phase, model: Model, params: Tree, client_state: PartTrees
) -> PartTrees:
    """The variables of the solver in a phase: the trainable parameters, and the models of the parts that train one."""
    variables = {MODEL: tree.shared(params, trained_names(method, phase, model))}
    return variables | {part.name: client_state[part.name] for part in method.trained_parts}


def trained_names(method: Method, phase: Phase, model: Model) -> list[str]:
    """The parameters that a phase trains. Raises `UnalikeError` where it would train nothing."""
    names = [n for n in model.params if method.trains(n, model) and model.within(phase.moves, n)]
    if not names and not method.trained_parts:
        raise UnalikeError(
            f"nothing of the model moves where {method!r} trains its {phase.moves!r}; expected parameters there that require "
            "gradients (the head is the model's attribute `head`, or its last linear layer; the body is the rest)"
        )
    return names


def _split_buffers(method: Method, settings: StageSettings, buffers: Tree) -> tuple[Tree, Tree]:
    """The buffers that are sent, and those that stay on the client.

    Those that follow from shared parameters are neither: the server computes them from the parameters that it makes.
    """
    model = settings.model
    sent_names = method.sent_buffers(model)
    follow = set(method.shared_names(buffers, model)) - set(sent_names)
    sent: Tree = {}
    if settings.buffers != "local":
        sent = tree.only(buffers, sent_names)
    return sent, {n: b for n, b in buffers.items() if n not in sent and n not in follow}


def _pack_solver_states(states: Sequence[dict[str, PartTrees]]) -> Tree:
    """The solver's states by phase as one tree: `<phase>.<variables>.<slot>/<parameter>`."""
    slots: PartTrees = {}
    for number, state in enumerate(states):
        for name, trees in state.items():
            for slot, values in trees.items():
                slots[f"{number}.{name}.{slot}"] = values
    return tree.pack(slots)


def _unpack_solver_states(packed: Tree) -> dict[int, dict[str, PartTrees]]:
    states: dict[int, dict[str, PartTrees]] = {}
    for path, values in tree.unpack(packed).items():
        number, name, slot = path.split(".")
        states.setdefault(int(number), {}).setdefault(name, {})[slot] = values
    return states


def _without_empty(part_trees: PartTrees) -> PartTrees:
    return {name: values for name, values in part_trees.items() if values}
