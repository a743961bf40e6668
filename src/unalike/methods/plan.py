"""A plan is a method or several stages: a generator of stages, which train, and of client queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.core.tasks.classification import ASSUMED_TASK
from unalike.core.tasks.task import Task
from unalike.core.types import Batch, Tree
from unalike.core.views import ServerState, StageSettings
from unalike.methods.base_plan import Plan
from unalike.methods.client_query import ClientQuery
from unalike.methods.method import Method, as_method, cannot_be_added
from unalike.methods.part import registry, spec_text

DEFAULT_METHOD = "fedavg"
"""The method that a plan trains if it is given no other."""


@dataclass(frozen=True)
class PlanInputs:
    """Inputs of a plan: everything that the server knows before the first round.

    Attributes:
        clients: Number of clients.
        rounds: Number of rounds of the run.
        model: The model with its initial values.
        seed: Seed of the run.
        samples: Number of training samples of all clients.
        clusters: Number of the true cluster of each client, if known.
        proxy: Samples on the server, if the user gave any.
        task: Task of the labels.
        groups: Name of a network -> numbers of the clients that have it; None: all have one.
        models: Name of a network -> its model; None: there is one.
        input_shape: Shape of one sample; of several arrays, that of each.
    """

    clients: int
    rounds: int
    model: Model
    seed: int = 0
    samples: int = 0
    clusters: Sequence[int] | None = None
    proxy: Batch | None = None
    task: Task = ASSUMED_TASK
    groups: dict[str, tuple[int, ...]] | None = None
    models: Mapping[str, Model] | None = None
    input_shape: tuple[Any, ...] = ()


States = Mapping[str, ServerState]
"""Group -> server state of its model."""


def never(states: States) -> bool:
    """End condition of a stage that makes all its rounds."""
    return False


@dataclass(frozen=True)
class Stage:
    """One stage of a plan: `rounds` rounds of `method` in each group.

    Attributes:
        name: Name of the stage, unique in the plan.
        method: The method.
        rounds: Number of rounds.
        groups: Group name -> client numbers; None for one group of all clients.
        models: Group name -> its model, where clients have unlike networks. What they have in common is averaged over all groups.
        pooled: Train on the union of each group's data as if it were one client.
        trained: False: nobody trains; the model in `start`, which the server made, is evaluated and recorded.
        model: Architecture of the stage; None for that of the run.
        start: Group -> state to go on from. Parts take over their server state from it; client states start anew.
        shared: Public samples that every client trains on beside its own.
        chooses: In every round each client answers this query for the model of every group and trains the model of the
            least answer; only its choice leaves it. Clients then belong to no fixed group.
        until: Ends the stage early. It sees the states after each round only, so that a resumed run ends at the same round.
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
    models: Mapping[str, Model] | None = None

    def members(self, clients: int) -> Mapping[str, Sequence[int]]:
        """Group -> numbers of its clients; with `chooses`, of the clients that may choose the group."""
        if self.groups is None:
            return {"all": range(clients)}
        return self.groups

    def check_groups(self, clients: int) -> None:
        """Raise `UnalikeError` for a client that is not there or in two groups, and for a group without a state to start from."""
        counts = Counter(number for ids in (self.groups or {}).values() for number in ids)
        strange = sorted(number for number in counts if not 0 <= number < clients)
        twice = sorted(number for number, times in counts.items() if times > 1)
        found = ""
        if strange:
            found = f"client {strange[0]} in its groups, expected numbers from 0 to {clients - 1}"
        elif twice and self.chooses is None:
            found = f"client {twice[0]} in two groups, expected each client in one group at most"
        missing = sorted(self.members(clients).keys() - (self.start or {}).keys())
        if self.start is not None and missing:
            found = (
                f"no state in start for the group {missing[0]!r}, but for {', '.join(self.start)}; expected start={{"
                f"{missing[0]!r}: state, ...}}"
            )
        if found:
            raise UnalikeError(f"the stage {self.name!r} has {found}")

    def settings(self, run: StageSettings, index: int = 0) -> StageSettings:
        """The settings of the stage at this place of the plan, from those of the run."""
        return replace(
            run,
            stage=index,
            model=(self.model or run.model).at(run.model.precision),
            work=self.method.local_work(run.work),
            # a pooled stage has one client, which owns the shared buffers
            buffers="average" if self.pooled else run.buffers,
        )

    def group_settings(self, settings: StageSettings, number: int, group: str) -> StageSettings:
        """The settings of a group, the `number`-th of the stage, from those of the stage."""
        model = settings.model
        if self.models is not None:
            model = self.models[group].at(model.precision)
        return replace(settings, group=number, model=model)

    def received_buffers(self, settings: StageSettings) -> list[str]:
        """The names of the buffers that clients receive in a round.

        Clients that keep buffers of their own receive those that they keep only in a stage that gives all of them a start; they
        keep none of those that follow from shared parameters.
        """
        shared = self.method.shared_names(settings.model.buffers, settings.model)
        if settings.buffers != "local" or self.start is not None:
            return shared
        kept = set(self.method.sent_buffers(settings.model))
        return [name for name in shared if name not in kept]

    def why_no_single_model(self, model: Model, buffers: str, groups: int) -> str:
        """The reason why no one model predicts for all clients, nor for one that never trained; empty if one does."""
        if groups > 1:
            return f"has {groups} models, one for each group of clients"
        if not self.method.has_shared_model(model):
            return "has no shared model: its clients keep parameters that they train and never send"
        if self.method.is_conditioned(model):
            return "feeds its model facts of each client's own samples"
        if buffers == "local" and model.buffers and not self.pooled:
            return "leaves each client its own batch-norm statistics (buffers='local')"
        return ""


@dataclass(frozen=True)
class QueryStep:
    """A step of a plan in which every client with training samples answers a query once.

    Attributes:
        name: Name of the step, unique in the plan.
        query: The query.
        state: Values of the model that the query looks at; None for the initial ones.
        model: Architecture; None for that of the run.
    """

    name: str
    query: ClientQuery
    state: ServerState | None = None
    model: Model | None = None


class StageResults(dict[str, ServerState]):
    """Result of a stage: group -> final state. `rounds` counts the rounds that it made."""

    def __init__(self, states: States, rounds: int):
        super().__init__(states)
        self.rounds = rounds


class Answers(NamedTuple):
    """Result of a client query.

    Attributes:
        clients: Numbers of the K clients that answered.
        tree: Their answers, stacked along a leading [K].
    """

    clients: tuple[int, ...]
    tree: Tree


Step = Stage | QueryStep
PlanSteps = Generator[Step, Any, None]
"""Each `yield` returns the result of the step: `StageResults` of a stage, `Answers` of a client query."""


def next_step(steps: PlanSteps, outcome: Any) -> Step | None:
    """The step that follows a step with this result; None after the last."""
    try:
        return steps.send(outcome)
    except StopIteration:
        return None


class StagedPlan(Plan):
    """A plan of several stages, with fields. Its repr is its spec text; equal fields are equal plans."""

    name: ClassVar[str]

    def stages(self, plan_inputs: PlanInputs) -> PlanSteps:
        """Yield stages and client queries one by one. No default.

        A resumed run calls it again from the start and sends the results of the finished steps; it must then yield the same
        steps. So it may depend on its fields, `plan_inputs` and results only.

        Args:
            plan_inputs: What the server knows before the first round.

        Yields:
            `Stage` or `QueryStep`; the result is sent back.
        """
        raise NotImplementedError

    def with_parts(self, parts: Sequence[object]) -> StagedPlan:
        """The plan with the parts that spec text adds to it, `centralised + conditional`. Default: refused."""
        raise cannot_be_added(self)

    def __repr__(self) -> str:
        return spec_text(self)


def plan(thing: object) -> Plan:
    """Build a plan.

    Args:
        thing: Spec text such as `"fedprox(mu=0.1) + lws"`, a part, a method or a plan.

    Returns:
        A method, or a plan of several stages.

    Raises:
        UnalikeError: Anything else, an unknown name, or parts that do not combine.
    """
    if isinstance(thing, str):
        return _parse(thing)
    if isinstance(thing, StagedPlan):
        return thing
    return as_method(thing)


def _parse(text: str) -> Plan:
    first, *others = [registry.build(call) for call in spec.parse(text)]
    if isinstance(first, StagedPlan):
        return first.with_parts(others) if others else first
    return sum((as_method(other) for other in others), start=as_method(first))


def complete_spec(plan: Plan) -> str:
    """Spec text with every field of every part, also of the method that a plan runs: what the record of a run holds."""
    if is_dataclass(plan) and isinstance(getattr(plan, "method", None), str):
        plan = replace(plan, method=repr(method_of(plan)))
    return repr(plan)


def is_same_spec(stored: object, complete: object) -> bool:
    """Whether stored spec text stands for the plan with this complete text; fields that it lacks have their defaults.

    A record lacks a field that its part gained later.
    """
    try:
        return complete_spec(plan(stored)) == complete
    except UnalikeError:
        return False


def steps_of(plan: Plan, plan_inputs: PlanInputs) -> PlanSteps:
    """The steps of a plan, one by one. A method is one stage with one group of all clients."""
    if isinstance(plan, StagedPlan):
        yield from plan.stages(plan_inputs)
    else:
        yield Stage(
            "train",
            as_method(plan),
            plan_inputs.rounds,
            groups=plan_inputs.groups,
            models=plan_inputs.models,
        )


def method_of(plan: Plan) -> Method:
    """The method that a plan runs in its stages: the plan itself, its field `method`, or FedAvg."""
    if isinstance(plan, Method):
        return plan
    return Method.parse(getattr(plan, "method", DEFAULT_METHOD))
