"""The list of everything that crosses the wire: all that a client receives and all that leaves it, with bytes."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks import TASKS
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

CHOICE = 8
"""Bytes of a client's choice of a model."""
SCALARS = 16
"""Bytes of the numbers in every client update: samples, steps, the solver's weight and the training loss."""
COUNTS = "counts"
"""These numbers where the loss is 0, because the method is differentially private."""


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
    method, model = as_method(method), model if isinstance(model, Model) else Model(model)
    settings = StageSettings(model, TASKS["classification"], Work())
    broadcast = make_broadcast(method, settings, initial_server_state(method, settings), 1, [0]).to(
        0
    )
    client_state, nothing = initial_client_state(method, settings), ClientBatches(())
    task = ClientTask(
        method, settings, broadcast, client_state, nothing, {}, torch.ones(()), begun=model.params
    )
    params = tree.only(model.params, task.sent)
    buffers = tree.only(model.buffers, method.shared_names(model.buffers, model))
    messages = [(f"message of {p}", t) for p, t in broadcast.messages.items()]
    down = [("parameters", params), ("buffers", buffers), *messages]
    update = tree.map(
        _without_values, params
    )  # encoding shapes and types alone costs nothing and draws nothing
    for upload in method.role(Upload):
        mine = tree.map(_without_values, client_state.get(upload.name, {}))
        update, _ = upload.encode(
            task.view_of(upload, model.params, model.buffers, {upload.name: mine}), update
        )
    up = [("update", update), ("buffers", buffers)]
    for p in method.parts:
        message = p.finish(task.view_of(p, model.params, model.buffers, client_state, steps=1.0))[1]
        up.append(
            (
                f"message of {p.name}",
                {n: t for n, t in message.items() if n in params or n not in model.params},
            )
        )
        up += [(f"{name} of the training data", (context or {}).get(name, {})) for name in p.shares]
    items = [
        Item(way, what, tree.nbytes(t))
        for way, rows in (("down", down), ("up", up))
        for what, t in rows
        if tree.nbytes(t)
    ]
    counts = "counts and loss" if method.privacy is None else COUNTS
    return [*items, Item("up", counts, SCALARS)] if items else []


def _without_values(t: Tensor) -> Tensor:
    return t.to("meta")


def stage_wire(stage: Stage, model: Model, context: Context | None = None) -> list[Item]:
    """List the traffic of a stage: of each of its rounds, and once at its beginning. `context` is that of `wire`."""
    if stage.pooled:
        return []  # a reference, whose clients have handed over their data
    method, copies = stage.method, len(stage.members(1)) if stage.chooses else 1
    items = (
        [
            i._replace(bytes=i.bytes * copies, what=_copies(i.what, copies))
            if i.direction == "down"
            else i
            for i in wire(method, model, context)
        ]
        if stage.trained
        else []
    )
    if stage.chooses is not None:
        items.append(Item("up", "choice of the model", CHOICE))
    once: list[tuple[str, Tree]] = []
    if stage.shared is not None:
        once.append(("shared samples", {"x": stage.shared.x, "y": stage.shared.y}))
    if stage.start is not None and stage.trained:
        given = model.params | model.buffers
        still = {
            n: t
            for n, t in given.items()
            if not method.shares(n, model) and not method.trains(n, model)
        }
        once.append(
            (
                "parameters that stay fixed",
                tree.only(still, [n for n in still if n in model.params]),
            )
        )
        once.append(
            ("buffers that stay fixed", tree.only(still, [n for n in still if n in model.buffers]))
        )
    return items + [Item("down", what, tree.nbytes(t), once=True) for what, t in once if t]


def query_wire(query_step: QueryStep, model: Model) -> list[Item]:
    """Everything that crosses the wire in a client query, once for each client."""
    model = query_step.model or model
    query, values = query_step.query, model.params | model.buffers
    items = [Item("down", "model", tree.nbytes(values), once=True)] if query.needs_model else []
    return [
        *items,
        Item("up", f"answer to {query.name}", tree.nbytes(unasked(query_step, model)), once=True),
    ]


def plan_wire(
    steps: Sequence[Step], model: Model, facts: Callable[[Method], Context]
) -> list[Item]:
    """List the traffic of the steps of a plan. `model` is that of the run, `facts` gives the context of a client."""
    items = []
    for step in steps:
        own = step.model or model
        found = (
            stage_wire(step, own, facts(step.method))
            if isinstance(step, Stage)
            else query_wire(step, own)
        )
        items += [in_plan(step, i, several=len(steps) > 1) for i in found]
    return items


def plan_outline(plan: Plan, plan_inputs: PlanInputs) -> list[Step]:
    """The steps that a plan would make with untrained models and random answers of clients."""
    steps, found = steps_of(plan, plan_inputs), []
    step = next(steps, None)
    while step is not None:
        found.append(step)
        outcome = (
            untrained(step, plan_inputs)
            if isinstance(step, Stage)
            else at_random(step, plan_inputs)
        )
        step = next_step(steps, outcome)
    return found


def untrained(
    stage: Stage, plan_inputs: PlanInputs, groups: Iterable[str] | None = None
) -> StageResults:
    """Result of a stage without training. `groups` names the groups if they differ from those of the stage."""
    settings = StageSettings(
        stage.model or plan_inputs.model, TASKS["classification"], Work(), plan_inputs.seed
    )
    start = stage.start or {}
    states = {
        name: initial_server_state(stage.method, settings, start.get(name))
        for name in groups or stage.members(plan_inputs.clients)
    }
    return StageResults(states, stage.rounds)


def at_random(query_step: QueryStep, plan_inputs: PlanInputs) -> Answers:
    """Random answers with the names and shapes of real ones."""
    rng = seeds.generator(plan_inputs.seed, "outline")

    def answers(t: Tensor) -> Tensor:
        """[K, *t.shape], different along the first two dimensions only: covariances of all clients would not fit."""
        front = t.shape[:1]
        drawn = torch.from_numpy(1 + 9 * rng.random((plan_inputs.clients, *front))).to(t.dtype)
        return drawn.reshape(*drawn.shape, *[1] * (t.dim() - len(front))).expand(
            plan_inputs.clients, *t.shape
        )

    return Answers(
        tuple(range(plan_inputs.clients)),
        tree.map(answers, unasked(query_step, query_step.model or plan_inputs.model)),
    )


def unasked(query_step: QueryStep, model: Model) -> Tree:
    """An answer without samples: it has the shape of all answers."""
    return query_step.query.answer(
        QueryInputs(model, TASKS["classification"], model.params, model.buffers, ())
    )


def _copies(what: str, copies: int) -> str:
    return what if copies == 1 else f"{what} of {copies} models"


def in_plan(step: Step, item: Item, several: bool) -> Item:
    """The item as the list of a plan names it, which has one or several steps."""
    what = f"{item.what} (once)" if item.once else item.what
    return item._replace(what=f"{step.name}: {what}" if several else what)
