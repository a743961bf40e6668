"""A plan is what runs: a generator of stages, which train, and of surveys, which ask."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from unalike._utils import spec
from unalike.core.model import Model
from unalike.core.tasks import TASKS, Task
from unalike.core.types import Batch, Tree
from unalike.core.views import ServerState
from unalike.methods.client_query import ClientQuery
from unalike.methods.method import Method, as_method
from unalike.methods.part import registry


@dataclass(frozen=True)
class PlanInputs:
    """What a plan is laid out for: what the server knows before the first round.

    `clients` and `rounds` are numbers of them, `model` is the start, `samples` counts the training samples of all clients,
    `clusters` numbers the true cluster of each client where it is known, `proxy` are the samples on the server, `task` is what
    the labels ask for.
    """

    clients: int
    rounds: int
    model: Model
    seed: int = 0
    samples: int = 0
    clusters: Sequence[int] | None = None
    proxy: Batch | None = None
    task: Task = TASKS["classification"]


States = Mapping[str, ServerState]
"""Group -> the state of its model on the server."""


def never(states: States) -> bool:
    """A stage makes all its rounds."""
    return False


@dataclass(frozen=True)
class Stage:
    """One stage: `rounds` rounds of `method` in each of the `groups` (name -> client numbers; None: all clients together).

    `model` is its architecture, None that of the run. `start` holds the states that its groups go on from; a part finds its
    memory on the server there, or opens it anew, and clients begin with fresh memories. With `trained=False` the start is a
    model that the server made: nobody trains, but it is evaluated and recorded as any model.
    `pooled` trains on the union of each group's data as if it were one client. `shared` are public samples that every client
    trains on beside its own. With `chooses` a client belongs to no group for good: in every round it answers the question
    for the model of each group, trains the one of least answer, and only its choice leaves it.
    `until` ends the stage early; it sees the states after every round and nothing else, so that a resumed run ends there too.
    """

    name: str
    method: Method
    rounds: int
    groups: dict[str, tuple[int, ...]] | None = None
    pooled: bool = False
    trained: bool = True
    model: Model | None = None
    start: States | None = None
    shared: Batch | None = None
    chooses: ClientQuery | None = None
    until: Callable[[States], bool] = never

    def members(self, clients: int) -> Mapping[str, Sequence[int]]:
        """The groups with their clients' numbers; with `chooses`, those who may choose the group."""
        return self.groups if self.groups is not None else {"all": range(clients)}


@dataclass(frozen=True)
class QueryStep:
    """Every client with training samples answers `query` once, about the values of a model where they are given."""

    name: str
    query: ClientQuery
    state: ServerState | None = None
    model: Model | None = None


class StageResults(dict[str, ServerState]):
    """What a stage came to: group -> its final state, after so many `rounds`."""

    def __init__(self, states: States, rounds: int):
        super().__init__(states)
        self.rounds = rounds


class Answers(NamedTuple):
    """What a survey came to: the answers of `clients`, stacked along a leading [K]."""

    clients: tuple[int, ...]
    tree: Tree


Step = Stage | QueryStep
PlanSteps = Generator[Step, Any, None]
"""Each `yield` returns what the step came to: `StageResults` of a stage, `Answers` of a survey."""


def next_step(steps: PlanSteps, outcome: Any) -> Step | None:
    """The step after the one that came to `outcome`; None where that was the last."""
    try:
        return steps.send(outcome)
    except StopIteration:
        return None


class StagePlan(Protocol):
    """A few stages of methods. Its repr is its spec text."""

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        """Yield stages and surveys one by one.

        It is run again from the start when a run is resumed, with what the steps came to before, and must then yield the same
        steps: all it knows are the scene, its own fields and what the steps came to.
        """


Plan = Method | StagePlan
"""Anything that runs."""


def plan(given: object) -> Plan:
    """The plan that spec text, a part, a method or a plan stands for. Raises `UnalikeError` for anything else."""
    if isinstance(given, str):
        built = [registry.build(call) for call in spec.parse(given)]
        if len(built) == 1 and hasattr(built[0], "stages"):
            return built[0]
        return sum((as_method(thing) for thing in built), start=Method())
    return given if hasattr(given, "stages") and not isinstance(given, type) else as_method(given)


def steps_of(plan: Plan, plan_inputs: PlanInputs) -> PlanSteps:
    """The steps of a plan one by one; those of a method are one stage with one group of all clients."""
    if isinstance(plan, Method):
        yield Stage("train", plan, plan_inputs.rounds)
    else:
        yield from plan.stages(plan_inputs)


def method_of(plan: Plan) -> Method:
    """The method that a plan runs in its stages: itself, the one that it names, or FedAvg."""
    return plan if isinstance(plan, Method) else Method.parse(getattr(plan, "method", "fedavg"))
