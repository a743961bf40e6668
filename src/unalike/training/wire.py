"""The list of everything that crosses the wire: all that a client receives and all that leaves it, with bytes."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.classification import ASSUMED_TASK
from unalike.core.types import Context, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import Work
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
    method: Method | str, model: nn.Module | Model, context: Context | None = None
) -> list[Item]:
    """List every tensor that a client receives or sends in a round. Nothing else leaves the client.

    Args:
        method: A method, or its spec text.
        model: A module, or the model as a function.
        context: Static facts of a client, for methods that share some of them.

    Returns:
        One item for each kind of tensor, with its bytes; empty for a method without communication.

    >>> [f"{item.direction} {item.what} {item.bytes}" for item in wire("fedavg", nn.Linear(4, 2))]
    ['down parameters 40', 'up update 40', 'up counts and loss 16']
    """
    method = as_method(method)
    model = model if isinstance(model, Model) else Model(model)
    context = context or {}

    # A round of one client without samples: what the hooks then send has the names and shapes of what any client sends.
    settings = StageSettings(model, ASSUMED_TASK, Work())
    state = initial_server_state(method, settings)
    broadcast = make_broadcast(method, settings, state, 1, [0]).to(0)
    client_state = initial_client_state(method, settings)
    task = ClientTask(
        method=method,
        settings=settings,
        broadcast=broadcast,
        client_state=client_state,
        data=ClientBatches(()),
        context={},
        size=torch.ones(()),
        begun=model.params,
    )
    params = tree.only(model.params, task.sent_names)
    buffers = tree.only(model.buffers, method.shared_names(model.buffers, model))

    items = [Item("down", "parameters", tree.nbytes(params))]
    items.append(Item("down", "buffers", tree.nbytes(buffers)))
    for name, message in broadcast.messages.items():
        items.append(Item("down", f"message of {name}", tree.nbytes(message)))

    # Encoding shapes and types alone costs nothing and draws nothing.
    update = tree.map(_without_values, params)
    for upload in method.role(Upload):
        upload_state = tree.map(_without_values, client_state.get(upload.name, {}))
        view = task.view_of(upload, model.params, model.buffers, {upload.name: upload_state})
        update, _ = upload.encode(view, update)
    items.append(Item("up", "update", tree.nbytes(update)))
    sent_buffers = tree.only(buffers, method.sent_buffers(model))
    items.append(Item("up", "buffers", tree.nbytes(sent_buffers)))

    # Parameters that are private are taken out of messages, as after training.
    for part in method.parts:
        view = task.view_of(part, model.params, model.buffers, client_state, steps=1.0)
        _, message = part.finish(view)
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


def stage_wire(stage: Stage, model: Model, context: Context | None = None) -> list[Item]:
    """List the traffic of a stage: of each of its rounds, and once at its beginning. `context` is that of `wire`."""
    if stage.pooled:
        return []  # a reference, whose clients have handed over their data
    method = stage.method
    # a client that chooses is sent the models of all groups
    copies = len(stage.members(1)) if stage.chooses else 1
    items = []
    for item in wire(method, model, context) if stage.trained else ():
        if item.direction == "down":
            item = item._replace(bytes=item.bytes * copies, what=_copies(item.what, copies))
        items.append(item)
    if stage.chooses is not None:
        items.append(Item("up", "choice of the model", CHOICE_BYTES))

    once: dict[str, Tree] = {}
    if stage.shared is not None:
        once["shared samples"] = {"x": stage.shared.x, "y": stage.shared.y}
    if stage.start is not None and stage.trained:
        # what the stage begins with and no round sends: nobody trains it
        once["parameters that stay fixed"] = _fixed(method, model, model.params)
        once["buffers that stay fixed"] = _fixed(method, model, model.buffers)
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


def query_wire(query_step: QueryStep, model: Model) -> list[Item]:
    """Everything that crosses the wire in a client query, once for each client."""
    model = query_step.model or model
    query = query_step.query
    items = []
    if query.needs_model:
        items.append(Item("down", "model", tree.nbytes(model.params, model.buffers), once=True))
    answer = unasked(query_step, model)
    items.append(Item("up", f"answer to {query.name}", tree.nbytes(answer), once=True))
    return items


def plan_wire(
    steps: Sequence[Step], model: Model, facts: Callable[[Method], Context]
) -> list[Item]:
    """List the traffic of the steps of a plan. `model` is that of the run, `facts` gives the context of a client."""
    items = []
    for step in steps:
        step_model = step.model or model
        if isinstance(step, Stage):
            step_items = stage_wire(step, step_model, facts(step.method))
        else:
            step_items = query_wire(step, step_model)
        items += [in_plan(step, item, several=len(steps) > 1) for item in step_items]
    return items


def plan_outline(plan: Plan, plan_inputs: PlanInputs) -> list[Step]:
    """The steps that a plan would make with untrained models and random answers of clients."""
    outline = []
    steps = steps_of(plan, plan_inputs)
    step = next(steps, None)
    while step is not None:
        outline.append(step)
        outcome: StageResults | Answers
        if isinstance(step, Stage):
            outcome = untrained(step, plan_inputs)
        else:
            outcome = at_random(step, plan_inputs)
        step = next_step(steps, outcome)
    return outline


def untrained(
    stage: Stage, plan_inputs: PlanInputs, groups: Iterable[str] | None = None
) -> StageResults:
    """Result of a stage without training. `groups` names the groups if they differ from those of the stage."""
    model = stage.model or plan_inputs.model
    settings = StageSettings(model, ASSUMED_TASK, Work(), plan_inputs.seed)
    start = stage.start or {}
    states = {}
    for name in groups or stage.members(plan_inputs.clients):
        states[name] = initial_server_state(stage.method, settings, start.get(name))
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

    answer = unasked(query_step, query_step.model or plan_inputs.model)
    return Answers(tuple(range(clients)), tree.map(answers, answer))


def unasked(query_step: QueryStep, model: Model) -> Tree:
    """An answer without samples: it has the shape of all answers."""
    inputs = QueryInputs(model, ASSUMED_TASK, model.params, model.buffers, ())
    return query_step.query.answer(inputs)


def _copies(what: str, copies: int) -> str:
    return what if copies == 1 else f"{what} of {copies} models"


def in_plan(step: Step, item: Item, several: bool) -> Item:
    """The item as the list of a plan names it, which has one or several steps."""
    what = f"{item.what} (once)" if item.once else item.what
    return item._replace(what=f"{step.name}: {what}" if several else what)
