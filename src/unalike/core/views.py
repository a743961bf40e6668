"""The views that parts get: `ClientView` on a client, `ServerView` and `Cohort` on the server, `StageSettings` in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.nests import select_rows
from unalike.core.tasks import Task
from unalike.core.types import Batch, ClientUpdate, Context, Output, PartTrees, Tree
from unalike.core.update_spread import spread
from unalike.core.work import Work


@dataclass(frozen=True)
class StageSettings:
    """What stays the same during a stage; `work` is the method's own, `buffers` is "average", "local" or "first".

    `proxy` are samples on the server, `classes` counts the classes of the labels (None: regression), `stage` is the
    step of the plan, `group` numbers those who share the model among the groups of the stage.
    """

    model: Model
    task: Task
    work: Work
    seed: int = 0
    buffers: str = "average"
    proxy: Batch | None = None
    classes: int | None = None
    stage: int = 0
    group: int = 0


class ClientBatches(NamedTuple):
    """A client's samples in a round: the batches of each phase in order, and all of them once where a part asks for that."""

    batches: Sequence[Sequence[Batch]]
    whole: Sequence[Batch] = ()


class ClientView(NamedTuple):
    """What a part sees on a client.

    `start` are the shared parameters as received, `origin` all of them where training starts, `params` the current ones,
    `message` and `state` the part's own; `step` counts the steps of a phase from 0 while training, `steps` [] those made; `data` are
    the round's batches, `whole` all local samples once (for parts that say `needs_data`), `context` the client's static facts.
    """

    settings: StageSettings
    part: str
    start: Tree
    origin: Tree
    received: Tree
    params: Tree
    buffers: Tree
    message: Tree
    state: Tree
    context: Context
    lr: float
    data: ClientBatches
    cache: dict[str, Any]
    step: int = 0
    steps: Tensor | float = 0.0
    output: Output | None = None

    @property
    def model(self) -> Model:
        return self.settings.model

    def out(self, batch: Batch, params: Tree | None = None) -> Output:
        """The model in training mode: at the current parameters, or at others with the part's own buffers."""
        if params is None and self.output is not None:
            return self.output
        output = self.at(batch, self.params if params is None else params)
        self.cache[self.part] = output.buffers
        return output

    def teacher(self, batch: Batch) -> Output:
        """The received model, with what is private where training starts, in evaluation mode, constant; computed once a step."""
        if "teacher" not in self.cache:
            self.cache["teacher"] = self._frozen(self.origin | self.start, self.received, batch)
        return self.cache["teacher"]

    def remembered(self, batch: Batch) -> Output:
        """The model in the part's memory in evaluation mode, constant."""
        return self._frozen(self.state, self.buffers, batch)

    def at(self, batch: Batch, params: Tree) -> Output:
        """The model in training mode at any parameters, leaving no trace."""
        return self.model(
            params, batch.x, buffers=self.buffers, context=self.context, training=True, weight=batch.weight
        )

    def _frozen(self, params: Tree, buffers: Tree, batch: Batch) -> Output:
        out = self.model(tree.detach(params), batch.x, buffers=buffers, context=self.context)
        return Output(out.logits.detach(), None if out.features is None else out.features.detach(), buffers)

    def task_loss(self, output: Output, batch: Batch) -> Tensor:
        """The mean task loss of an output, a scalar."""
        if batch.weight is None:
            return self.settings.task.loss(output.logits, batch.y)
        return batch.mean(self.settings.task.losses(output.logits, batch.y))

    def full_gradient(self, params: Tree) -> Tree:
        """The gradient of the mean task loss over all local samples, at `params`; its part must say `needs_data`.

        Zeros where there are no samples, as when `wire` asks what would be sent.
        """
        total = tree.zeros(params)
        if not self.data.whole:
            return total
        count: Tensor | float = 0.0
        for batch in self.data.whole:
            rows = batch.rows
            grads, _ = grad_and_value(lambda w, b: self.task_loss(self.at(b, w), b))(params, batch)
            total, count = tree.map(lambda t, g, n=rows: t + n * g, total, grads), count + rows
        return tree.scale(total, 1 / count)


R = TypeVar("R")


class PartLookup(Protocol):
    """A method as its parts see it."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """All parts, in canonical order."""

    def role(self, role: type[R]) -> tuple[R, ...]:
        """The parts of a role, in the order in which they act."""


class ServerState(NamedTuple):
    """All that the server keeps: after `round` rounds, the model and each part's memory."""

    round: int
    params: Tree
    buffers: Tree
    part_states: PartTrees


@dataclass(frozen=True)
class Cohort:
    """The reports of a round's participants `ids`, stacked along a leading [K]; `population` counts all clients.

    A part sees its own letters only: `message` is the tree of what its `finish` sent. `folded`: updates and letters were added
    up as they came; what is left of each report are its numbers. `measured`: their spread, where it is known already.
    """

    ids: tuple[int, ...]
    stacked: ClientUpdate
    population: int
    part: str = ""
    folded: bool = False
    measured: Tree = field(default_factory=dict)

    @property
    def update(self) -> Tree:
        """w_k - w, [K, ...]."""
        return self._single(self.stacked.update)

    @property
    def message(self) -> Tree:
        return self._single(self.stacked.messages.get(self.part, {}))

    @property
    def spread(self) -> Tree:
        """||g_k - mean_j g_j||^2 of every tensor of the updates g, [K] each."""
        return self.measured or spread(self.update)

    def _single(self, kept: Tree) -> Tree:
        if self.folded:
            raise UnalikeError(
                f"{self.part or 'a part'} looks at what single clients sent, and found it added up already; "
                'say needs = "updates" in the class of the part'
            )
        return kept

    @property
    def sizes(self) -> Tensor:
        """n_k, [K]."""
        return self.stacked.size

    @property
    def steps(self) -> Tensor:
        """tau_k, [K]."""
        return self.stacked.steps

    @property
    def solver_weights(self) -> Tensor:
        """||a_k||_1, [K]."""
        return self.stacked.weight

    @property
    def shared(self) -> PartTrees:
        """The context entries that clients let go."""
        return self.stacked.shared

    def rows(self, keep: Tensor) -> Cohort:
        """The cohort of some of its rows, `keep` [k] being their places."""
        return replace(self, ids=tuple(self.ids[i] for i in keep.tolist()), stacked=select_rows(self.stacked, keep))

    @property
    def numbers(self) -> Cohort:
        """What is left of it when updates, buffers and letters need not be kept."""
        return replace(self, stacked=self.stacked.numbers, folded=True)

    def one(self, client: int) -> ClientUpdate:
        """One client's report, as it sent it."""
        place = self.ids.index(client)
        return self.stacked.map(lambda t: t[place])


@dataclass(frozen=True)
class ServerView:
    """What a part sees on the server. `params` and the update hold the shared parameters; `round` counts from 0."""

    settings: StageSettings
    method: PartLookup
    params: Tree
    state: Tree
    round: int
    population: int
    part: str = ""

    @property
    def proxy(self) -> Batch:
        """The samples on the server, for a part that says `needs_proxy`."""
        if self.settings.proxy is None:
            raise UnalikeError(f"{self.part} learns from samples on the server and found none; pass proxy=(x, y)")
        return self.settings.proxy

    @property
    def generator(self) -> torch.Generator:
        """A generator of this part's own for this stage, round and group: noise that two had in common would cancel out."""
        settings = self.settings
        place = (settings.stage, settings.group) if settings.stage or settings.group else ()
        return torch.Generator().manual_seed(seeds.number(settings.seed, f"server.{self.part}", self.round, *place))
