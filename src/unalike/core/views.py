"""The views that parts are given: `ClientView` on a client, `ServerView` and `Cohort` on the server.

Both views hold the `StageSettings`. `docs/reference/views.md` shows the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.nests import map_tensors, select_rows
from unalike.core.privacy import ReleaseSampling
from unalike.core.tasks.task import Task
from unalike.core.types import Batch, ClientUpdate, Context, Output, PartTrees, Tree
from unalike.core.update_spread import spread
from unalike.core.work import Work


@dataclass(frozen=True)
class StageSettings:
    """Values that stay the same during a stage.

    Attributes:
        model: The model as a function, with its initial parameters and buffers.
        task: The task of the labels.
        work: Local work of a client in a round, after the method's own `LocalWork`.
        seed: Seed of the run.
        buffers: "average", "local" or "first": the handling of float buffers.
        proxy: Samples that the user gave to the server, or None.
        classes: Number of classes of the labels; None for regression.
        stage: Index of the stage in the plan.
        group: Index of the group in the stage (clients of a group share a model).
        sampling: How clients take part in rounds; None where that is not known, as in `ua.wire`.
        secret_noise: Noise for privacy comes from the operating system, not from the seed, as in a federation.
        malicious: Numbers of the malicious clients of an attack.
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
    sampling: ReleaseSampling | None = None
    secret_noise: bool = False
    malicious: frozenset[int] = frozenset()


class ClientBatches(NamedTuple):
    """A client's samples in a round.

    Attributes:
        batches: The batches of each phase, in order.
        whole: All local samples once, in batches, in random order; an error for parts without `needs_data`.
    """

    batches: Sequence[Sequence[Batch]]
    whole: Sequence[Batch] = ()


class UnseenSamples(Sequence[Batch]):
    """All local samples as a part finds them that does not say that it reads them: any look at them is an error.

    Without it the part would read none, and gradients of 0.
    """

    def __init__(self, part: str):
        self.part = part

    def __len__(self) -> int:
        raise self._error()

    def __getitem__(self, index: Any) -> Any:
        raise self._error()

    def _error(self) -> UnalikeError:
        return UnalikeError(
            f"{self.part} reads all local samples (client.data.whole or client.full_gradient) without saying so, and would find "
            "none; write needs_data = True in the class of the part"
        )


class ClientView(NamedTuple):
    """The view that a part has of one client. It holds no tensor of another client and no other part's state.

    Every tensor is that of one client, without a leading [K]; stacked executors map the hooks over clients with `torch.vmap`.

    Attributes:
        settings: Settings of the stage. Set in every hook.
        part: Name of the part that looks. Set in every hook.
        received_params: Shared parameters w as received, [*shape] each. Set in every hook; in `begin` it holds all parameters.
        initial_params: All parameters where training starts, [*shape] each. Set in every hook; in `begin` as received.
        initial_buffers: Buffers where training starts: those received, and the client's own. Set in every hook.
        params: Current parameters v, [*shape] each. Set in every hook: as received in `begin`, before the step in `loss`,
            `correct` and `project`, after training in `finish` and `encode`.
        buffers: Current buffers of the model, or of the part's own model if it keeps one. Set in every hook.
        message: Message of the server to this part: `broadcast`, and `address` to this client. Set in every hook.
        state: Client state of this part; differentiable in `loss` of a part with `trains`. Set in every hook.
        context: Static facts of the client by name: name -> tree. Set in every hook.
        lr: Learning rate. Set in every hook: that of the phase in a step, that of the round in `begin`, `finish`, `encode`.
        round: Index of the round, from 0. Set in every hook.
        data: Batches of the round, and all local samples. Set in every hook.
        cache: Values that `out` and `teacher` compute once for all parts in a step; not for parts. Set in every hook.
        phase: Index of the phase of local training, from 0. Set in `loss`, `correct`, `project` and `pull`.
        step: Index of the step in its phase, from 0. Set in `loss`, `correct` and `project`.
        steps: Steps made that moved shared parameters, []. Set in `finish`, `kept_buffers` and `encode`.
        output: Output of the model at `params`, computed once for all parts. Set in `loss`; read it through `out`.
        gradient_at: Computes the gradient of the local loss. Set in `correct`; call it through `gradient`.
    """

    settings: StageSettings
    part: str
    received_params: Tree
    initial_params: Tree
    initial_buffers: Tree
    params: Tree
    buffers: Tree
    message: Tree
    state: Tree
    context: Context
    lr: float
    round: int
    data: ClientBatches
    cache: dict[str, Any]
    phase: int = 0
    step: int = 0
    steps: Tensor | float = 0.0
    output: Output | None = None
    gradient_at: Callable[[Tree], Tree] | None = None

    @property
    def model(self) -> Model:
        """The model as a function of its parameters."""
        return self.settings.model

    @property
    def start(self) -> Tree:
        """Earlier name of `received_params`."""
        return self.received_params

    @property
    def origin(self) -> Tree:
        """Earlier name of `initial_params`."""
        return self.initial_params

    @property
    def received(self) -> Tree:
        """Earlier name of `initial_buffers`."""
        return self.initial_buffers

    @property
    def own(self) -> Tree:
        """Parameters of the model in the part's client state; frozen ones, which no state holds, as training starts."""
        return self.initial_params | self.state

    def out(self, batch: Batch, params: Tree | None = None) -> Output:
        """Output of the model in training mode on `batch`.

        Args:
            batch: Samples, `x` [B, ...].
            params: Parameters to use in the place of the current ones; buffers are then updated for this part alone.

        Returns:
            The output, differentiable in the parameters. At the current ones it is computed once for all parts.
        """
        if params is None and self.output is not None:
            return self.output
        output = self.at(batch, self.params if params is None else params)
        self.cache[self.part] = output.buffers
        return output

    def teacher(self, batch: Batch) -> Output:
        """Output of the received model in evaluation mode, without gradient; computed once a step.

        Private parameters have their values where training starts.
        """
        if "teacher" not in self.cache:
            params = self.initial_params | self.received_params
            self.cache["teacher"] = self._frozen(params, self.initial_buffers, batch)
        return self.cache["teacher"]

    def own_output(self, batch: Batch) -> Output:
        """Output of the model in the part's client state, in evaluation mode, without gradient."""
        return self._frozen(self.own, self.buffers, batch)

    def at(self, batch: Batch, params: Tree) -> Output:
        """Output of the model in training mode at any parameters; the new buffers are not kept."""
        return self.model(
            params,
            batch.x,
            buffers=self.buffers,
            context=self.context,
            training=True,
            weight=batch.weight,
        )

    def _frozen(self, params: Tree, buffers: Tree, batch: Batch) -> Output:
        """Output of the model in evaluation mode, without gradient."""
        output = self.model(tree.detach(params), batch.x, buffers=buffers, context=self.context)
        features = output.features
        if features is not None:
            features = features.detach()
        return Output(logits=output.logits.detach(), features=features, buffers=buffers)

    def gradient(self, at: Tree) -> Tree:
        """Gradient of the local loss, the sum of the terms of all parts, on the batch of the step; for `correct`.

        It is another pass through the model. Corrections and clipping are not part of it, and it leaves buffers as they are.

        Args:
            at: Parameters where it is taken; those that `at` lacks have their current values.

        Returns:
            The gradient in the parameters of `at`.

        Raises:
            UnalikeError: The hook is not `correct`.
        """
        if self.gradient_at is None:
            raise UnalikeError(
                f"{self.part} asks for the gradient of the local loss outside of a step; call client.gradient(at=...) in "
                "`correct`, or client.full_gradient(params) for that of the task's loss over all local samples"
            )
        return self.gradient_at(at)

    def task_loss(self, output: Output, batch: Batch) -> Tensor:
        """Mean loss of an output over the rows that count, a scalar: that of the work (`loss=`), or else the task's."""
        criterion = self.settings.work.criterion
        if criterion is not None:
            return criterion.mean(output.logits, batch, self.context)
        return self.settings.task.batch_loss(output.logits, batch)

    def full_loss(self, params: Tree) -> Tensor:
        """Mean task loss over all local samples, at `params`, a scalar.

        Raises `UnalikeError` unless the part has `needs_data`. Zero without samples, as when `wire` counts bytes.
        """
        total = torch.zeros((), dtype=tree.dtype(params))
        if not self.data.whole:
            return total
        # batches differ in size: each counts by its rows
        count: Tensor | float = 0.0
        for batch in self.data.whole:
            rows = batch.rows
            total = total + rows * self.task_loss(self.at(batch, params), batch)
            count = count + rows
        return total / count

    def full_gradient(self, params: Tree) -> Tree:
        """Gradient of the mean task loss over all local samples, at `params`.

        Raises `UnalikeError` unless the part has `needs_data`. Zeros without samples, as when `wire` counts bytes.
        """
        total = tree.zeros(params)
        if not self.data.whole:
            return total

        def mean_loss(values: Tree, batch: Batch) -> Tensor:
            return self.task_loss(self.at(batch, values), batch)

        # batches differ in size: each counts by its rows
        count: Tensor | float = 0.0
        for batch in self.data.whole:
            rows = batch.rows
            gradient, _ = grad_and_value(mean_loss)(params, batch)
            total = tree.map(lambda t, g, n=rows: t + n * g, total, gradient)
            count = count + rows
        return tree.scale(total, 1 / count)


R = TypeVar("R")


class PartLookup(Protocol):
    """The method as its parts see it."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """All parts, in the canonical order of roles."""

    def role(self, role: type[R]) -> tuple[R, ...]:
        """The parts of a role, in the order in which they act."""


class ServerState(NamedTuple):
    """Everything that the server keeps between rounds.

    Attributes:
        round: Number of finished rounds.
        params: Parameters of the model.
        buffers: Buffers of the model.
        part_states: Server state of each part, by the part's name.
    """

    round: int
    params: Tree
    buffers: Tree
    part_states: PartTrees


class Members(NamedTuple):
    """The clients of a group that have training samples, in the round or not.

    Attributes:
        clients: Number of these clients, N.
        samples: Number of training samples that they have together.
    """

    clients: int
    samples: float


@dataclass(frozen=True)
class Cohort:
    """The client updates of a round, stacked along a leading [K].

    Attributes:
        ids: Numbers of the K clients, in the order of the rows. Set in every hook.
        stacked: The client updates, every tensor [K, ...]. Set in every hook.
        members: All clients of the group, in the round or not. Set in every hook.
        part: Name of the part that looks. Set in every hook.
        folded: True if updates and messages were added up as they arrived, so that only numbers of each client are left. Set in
            every hook.
        measured: `spread`, measured while the updates were combined; else empty. Set in `step`.
        rounds_late: Client -> rounds of the server since the one whose model it trained; without clients that trained the
            current model. Set in every hook.
    """

    ids: tuple[int, ...]
    stacked: ClientUpdate
    members: Members
    part: str = ""
    folded: bool = False
    measured: Tree = field(default_factory=dict)
    rounds_late: Mapping[int, int] = field(default_factory=dict)

    @property
    def update(self) -> Tree:
        """Decoded updates w_k - w of the shared parameters, [K, ...] each. Needs `needs = "updates"`."""
        return self._by_client(self.stacked.update)

    @property
    def message(self) -> Tree:
        """Messages that `finish` of this part sent, [K, ...] each. Needs `needs = "updates"`."""
        return self._by_client(self.stacked.messages.get(self.part, {}))

    @property
    def spread(self) -> Tree:
        """||g_k - mean_j g_j||^2 of every tensor of the updates g, [K] each. Needs `needs = "spread"` or "updates"."""
        return self.measured or spread(self.update)

    def _by_client(self, stacked: Tree) -> Tree:
        """These trees of single clients. Raises `UnalikeError` where they were added up as they arrived."""
        if self.folded:
            raise UnalikeError(
                f"{self.part or 'a part'} looks at what single clients sent, and found it added up already; "
                'say needs = "updates" in the class of the part'
            )
        return stacked

    @property
    def population(self) -> int:
        """Number of all clients of the group."""
        return self.members.clients

    @property
    def sizes(self) -> Tensor:
        """Number of training samples n_k, [K]."""
        return self.stacked.size

    @property
    def relative_sizes(self) -> Tensor:
        """n_k over the mean number of samples of all N clients of the group, [K]."""
        return self.sizes * (self.members.clients / self.members.samples)

    @property
    def steps(self) -> Tensor:
        """Number of local steps tau_k, [K]."""
        return self.stacked.steps

    @property
    def solver_weights(self) -> Tensor:
        """Accumulated weight ||a_k||_1 of the local solver (FedNova), [K]."""
        return self.stacked.weight

    @property
    def ages(self) -> Tensor:
        """Rounds of the server since the one whose model the client trained, [K]; 0 where it trained the current model."""
        ages = [self.rounds_late.get(client, 0) for client in self.ids]
        return self.sizes.new_tensor(ages)

    @property
    def shared(self) -> PartTrees:
        """Facts that clients shared with the server: name -> tree of [K, ...]."""
        return self.stacked.shared

    def rows(self, keep: Tensor) -> Cohort:
        """The cohort of the rows with these indices, `keep` [k]."""
        ids = tuple(self.ids[row] for row in keep.tolist())
        return replace(self, ids=ids, stacked=select_rows(self.stacked, keep))

    def with_update(self, update: Tree) -> Cohort:
        """The cohort with other updates, [K, ...] each."""
        return replace(self, stacked=self.stacked._replace(update=update))

    @property
    def numbers(self) -> Cohort:
        """The cohort without updates, buffers and messages."""
        return replace(self, stacked=self.stacked.numbers, folded=True)

    def one(self, client: int) -> ClientUpdate:
        """The client update of one client, without the leading [K]."""
        row = self.ids.index(client)
        return map_tensors(lambda t: t[row], self.stacked)


@dataclass(frozen=True)
class ServerView:
    """The view that a part has of the server in a round, before the update is applied.

    Attributes:
        settings: Settings of the stage. Set in every hook.
        method: The method with all its parts, to look up another part's hyperparameters. Set in every hook.
        params: Shared parameters w, [*shape] each. Set in every hook: all parameters in `broadcast` and `address`, empty in
            `coefficients` if updates are added up as they arrive.
        state: Server state of this part. Set in every hook; in `step` as `absorb` returned it.
        round: Index of the round, from 0. Set in every hook.
        population: Number of all clients of the group. Set in every hook.
        part: Name of the part that looks. Set in every hook.
    """

    settings: StageSettings
    method: PartLookup
    params: Tree
    state: Tree
    round: int
    population: int
    part: str = ""

    @property
    def proxy(self) -> Batch:
        """Samples on the server, for a part with `needs_proxy`. Raises `UnalikeError` if the user gave none."""
        if self.settings.proxy is None:
            raise UnalikeError(
                f"{self.part} learns from samples on the server and found none; pass proxy=(x, y)"
            )
        return self.settings.proxy

    @property
    def generator(self) -> torch.Generator:
        """Random generator of this part for this stage, round and group; parts that shared one would draw correlated noise."""
        settings = self.settings
        purpose = f"server.{self.part}"
        # the first group of the first stage has the numbers of a run without stages and groups
        if settings.stage or settings.group:
            number = seeds.number(
                settings.seed, purpose, self.round, settings.stage, settings.group
            )
        else:
            number = seeds.number(settings.seed, purpose, self.round)
        return torch.Generator().manual_seed(number)
