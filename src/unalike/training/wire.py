"""The list of everything that crosses the wire: all that a client receives and all that leaves it, with bytes."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.inputs import tensors_by_place
from unalike.core.model import Model
from unalike.core.tasks.classification import ASSUMED_TASK
from unalike.core.tasks.task import Task
from unalike.core.types import Batch, Context, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import Work
from unalike.methods import return_checks
from unalike.methods.client_query import QueryInputs
from unalike.methods.method import Method, as_method
from unalike.methods.plan import (
    Answers,
    Plan,
    PlanInputs,
    QueryStep,
    Stage,
    StageResults,
    Step,
    next_step,
    steps_of,
)
from unalike.methods.roles import Upload
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import initial_client_state
from unalike.training.server.server_update import initial_server_state, make_broadcast

CHOICE_BYTES = 8
"""Bytes of a client's choice of a model."""
NUMBERS_BYTES = 16
"""Bytes of the numbers in every client update: samples, steps, the solver's weight and the training loss."""
COUNTS = "counts"
"""These numbers where the loss is 0, because a part hides what it does not account for."""


class Item(NamedTuple):
    """One thing on the wire.

    Attributes:
        direction: "down" (server to client) or "up".
        what: Description.
        bytes: Bytes per client and round; with `once` per client.
        once: Sent once in a stage instead of every round.
    """

    direction: str
    what: str
    bytes: int
    once: bool = False


def wire(
    method: Method | str,
    model: nn.Module | Model,
    context: Context | None = None,
    *,
    work: Work | None = None,
    classes: int | None = None,
    proxy: tuple[Tensor, Tensor] | None = None,
) -> list[Item]:
    """List every tensor that a client receives or sends in a round. Nothing else leaves the client.

    Args:
        method: A method, or its spec text.
        model: A module, or the model as a function.
        context: Static facts of a client, for methods that share some of them.
        work: Local work, for methods whose messages depend on it; the default otherwise.
        classes: Number of classes of the labels, for methods whose messages depend on it.
        proxy: Samples (x, y) of the server, for methods whose messages depend on them.

    Returns:
        One item for each kind of tensor, with its bytes; empty for a method without communication.

    >>> [f"{item.direction} {item.what} {item.bytes}" for item in wire("fedavg", nn.Linear(4, 2))]
    ['down parameters 40', 'up update 40', 'up counts and loss 16']
    """
    method = as_method(method)
    settings = StageSettings(
        model=model if isinstance(model, Model) else Model(model),
        task=ASSUMED_TASK,
        work=method.local_work(work or Work()),
        proxy=None if proxy is None else Batch(*proxy),
        classes=classes,
    )
    unknown = [name for name in ("classes", "proxy") if getattr(settings, name) is None]
    note = f"; no {' and no '.join(unknown)} were given, so they are None in its settings"
    return round_wire(method, settings, context or {}, note=note if unknown else "")


def round_wire(
    method: Method,
    settings: StageSettings,
    context: Context,
    clients: int = 1,
    *,
    received_buffers: Sequence[str] | None = None,
    note: str = "",
) -> list[Item]:
    """The items of a round of `clients` clients, with the settings of the stage; `context` are the facts of one of them.

    The parts' hooks are tried on a client without samples: what they send then has the names and shapes of what any client
    sends. An error in a hook says so, with the `note`. Clients receive the buffers
    `received_buffers`, all shared ones unless given.
    """
    try:
        return _items_of_round(method, settings, context, clients, received_buffers)
    except Exception as error:
        error.add_note(
            f"in a trial of {method!r} on a client without samples, which finds the bytes that cross the wire{note}"
        )
        raise


def _items_of_round(
    method: Method,
    settings: StageSettings,
    context: Context,
    clients: int,
    received_buffers: Sequence[str] | None,
) -> list[Item]:
    """`round_wire`, without its note."""
    model = settings.model
    state = initial_server_state(method, settings)
    broadcast = make_broadcast(method, settings, state, clients, [0]).to(0)
    client_state = initial_client_state(method, settings)
    task = ClientTask(
        method=method,
        settings=settings,
        broadcast=broadcast,
        client_state=client_state,
        data=ClientBatches(()),
        context=context,
        size=torch.ones(()),
        begun=model.params,
    )
    params = tree.only(model.params, task.sent_names)
    buffers = tree.only(model.buffers, method.shared_names(model.buffers, model))

    items = [Item("down", "parameters", tree.nbytes(params))]
    received = buffers if received_buffers is None else tree.only(buffers, received_buffers)
    items.append(Item("down", "buffers", tree.nbytes(received)))
    for name, message in broadcast.messages.items():
        items.append(Item("down", f"message of {name}", tree.nbytes(message)))

    # Encoding shapes and types alone costs nothing and draws nothing.
    update = tree.map(_without_values, params)
    for upload in method.role(Upload):
        upload_state = tree.map(_without_values, client_state.get(upload.name, {}))
        view = task.view_of(upload, model.params, model.buffers, {upload.name: upload_state})
        update, _ = return_checks.returned_pair(upload, "encode", upload.encode, view, update)
    items.append(Item("up", "update", tree.nbytes(update)))
    if settings.buffers != "local":
        sent_buffers = tree.only(buffers, method.sent_buffers(model))
        items.append(Item("up", "buffers", tree.nbytes(sent_buffers)))

    # Parameters that are private are taken out of messages, as after training.
    for part in method.parts:
        view = task.view_of(part, model.params, model.buffers, client_state, steps=1.0)
        _, message = return_checks.returned_pair(part, "finish", part.finish, view)
        sent = {n: t for n, t in message.items() if n in params or n not in model.params}
        items.append(Item("up", f"message of {part.name}", tree.nbytes(sent)))
        for name in part.shares:
            fact = context.get(name, {})
            items.append(Item("up", f"{name} of the training data", tree.nbytes(fact)))

    items = [item for item in items if item.bytes]
    if items:
        numbers = COUNTS if method.hides_client_numbers else "counts and loss"
        items.append(Item("up", numbers, NUMBERS_BYTES))
    return items


def _without_values(t: Tensor) -> Tensor:
    return t.to("meta")


def stage_wire(stage: Stage, settings: StageSettings, context: Context, clients: int) -> list[Item]:
    """List the traffic of a stage: of each of its rounds, and once at its beginning. `settings` are those of the stage.

    The other arguments are those of `round_wire`.
    """
    if stage.pooled:
        return []  # a reference, whose clients have handed over their data
    # a client that chooses is sent the models of all groups
    copies = len(stage.members(clients)) if stage.chooses else 1
    items = []
    if stage.trained:
        received_buffers = stage.received_buffers(settings)
        for item in round_wire(
            stage.method, settings, context, clients, received_buffers=received_buffers
        ):
            if item.direction == "down":
                item = item._replace(bytes=item.bytes * copies, what=_copies(item.what, copies))
            items.append(item)
    if stage.chooses is not None:
        items.append(Item("up", "choice of the model", CHOICE_BYTES))
    return items + begin_wire(stage, settings.model)


def networks_wire(
    stage: Stage, settings: StageSettings, facts: Callable[[Method], Context], clients: int
) -> list[Item]:
    """`stage_wire`, where clients have unlike networks with the items of each network under its name."""
    context = facts(stage.method)
    if stage.models is None:
        return stage_wire(stage, settings, context, clients)
    items = []
    for number, name in enumerate(stage.models):
        of_network = stage.group_settings(settings, number, name)
        for item in stage_wire(stage, of_network, context, clients):
            items.append(item._replace(what=f"{name}: {item.what}"))
    return items


def begin_wire(stage: Stage, model: Model) -> list[Item]:
    """List what every client is sent once, at the beginning of a stage."""
    if stage.pooled:
        return []
    once: dict[str, Tree] = {}
    if stage.shared is not None:
        once["shared samples"] = tensors_by_place(stage.shared.x) | {"y": stage.shared.y}
    if stage.start is not None and stage.trained:
        # what the stage begins with and no round sends: nobody trains it
        once["parameters that stay fixed"] = _fixed(stage.method, model, model.params)
        once["buffers that stay fixed"] = _fixed(stage.method, model, model.buffers)
    items = []
    for what, values in once.items():
        if values:
            items.append(Item("down", what, tree.nbytes(values), once=True))
    return items


def _fixed(method: Method, model: Model, values: Tree) -> Tree:
    """The values that are neither sent nor trained."""
    return {
        name: t
        for name, t in values.items()
        if not method.shares(name, model) and not method.trains(name, model)
    }


def query_wire(query_step: QueryStep, settings: StageSettings) -> list[Item]:
    """Everything that crosses the wire in a client query, once for each client. `settings` are those of the run."""
    model = query_step.model or settings.model
    query = query_step.query
    items = []
    if query.needs_model:
        items.append(Item("down", "model", tree.nbytes(model.params, model.buffers), once=True))
    answer = unasked(query_step, model, settings.task)
    items.append(Item("up", f"answer to {query.name}", tree.nbytes(answer), once=True))
    return items


def plan_wire(
    steps: Sequence[Step],
    settings: StageSettings,
    facts: Callable[[Method], Context],
    clients: int,
) -> list[Item]:
    """List the traffic of the steps of a plan with so many clients.

    `settings` are those of the run, `facts` gives the context of a client.
    """
    items = []
    for index, step in enumerate(steps):
        if isinstance(step, Stage):
            step_items = networks_wire(step, step.settings(settings, index), facts, clients)
        else:
            step_items = query_wire(step, settings)
        items += [in_plan(step, item, several=len(steps) > 1) for item in step_items]
    return items


def plan_outline(plan: Plan, plan_inputs: PlanInputs, settings: StageSettings) -> list[Step]:
    """The steps that a plan would make with untrained models and random answers of clients; `settings` are those of the run."""
    outline = []
    steps = steps_of(plan, plan_inputs)
    step = next(steps, None)
    while step is not None:
        outline.append(step)
        outcome: StageResults | Answers
        if isinstance(step, Stage):
            outcome = untrained(step, plan_inputs, settings)
        else:
            outcome = at_random(step, plan_inputs)
        step = next_step(steps, outcome)
    return outline


def untrained(
    stage: Stage,
    plan_inputs: PlanInputs,
    settings: StageSettings,
    groups: Iterable[str] | None = None,
) -> StageResults:
    """Result of a stage without training; `settings` are those of the run.

    `groups` names the groups if they differ from those of the stage.
    """
    settings = stage.settings(settings)
    start = stage.start or {}
    states = {}
    for number, name in enumerate(groups or stage.members(plan_inputs.clients)):
        of_group = stage.group_settings(settings, number, name)
        states[name] = initial_server_state(stage.method, of_group, start.get(name))
    return StageResults(states, stage.rounds)


def at_random(query_step: QueryStep, plan_inputs: PlanInputs) -> Answers:
    """Random answers with the names and shapes of real ones."""
    rng = seeds.generator(plan_inputs.seed, "outline")
    clients = plan_inputs.clients

    def answers(t: Tensor) -> Tensor:
        """[K, *t.shape], different along the first two dimensions only: covariances of all clients would not fit."""
        front = t.shape[:1]
        numbers = 1 + 9 * rng.random((clients, *front))
        values = torch.from_numpy(numbers).to(t.dtype)
        further_dimensions = [1] * (t.dim() - len(front))
        return values.reshape(*values.shape, *further_dimensions).expand(clients, *t.shape)

    answer = unasked(query_step, query_step.model or plan_inputs.model, plan_inputs.task)
    return Answers(tuple(range(clients)), tree.map(answers, answer))


def unasked(query_step: QueryStep, model: Model, task: Task) -> Tree:
    """An answer without samples: it has the shape of all answers."""
    inputs = QueryInputs(model, task, model.params, model.buffers, ())
    return query_step.query.answer(inputs)


def _copies(what: str, copies: int) -> str:
    return what if copies == 1 else f"{what} of {copies} models"


def in_plan(step: Step, item: Item, several: bool) -> Item:
    """The item as the list of a plan names it, which has one or several steps."""
    what = f"{item.what} (once)" if item.once else item.what
    return item._replace(what=f"{step.name}: {what}" if several else what)
