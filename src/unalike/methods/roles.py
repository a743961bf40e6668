"""The roles of parts: each one adds a verb to `Part`. The module docstring of `part.py` lists the hooks in the order of a round."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.model import Group, Model
from unalike.core.types import Batch, Context, Output, PartTrees, Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.core.work import Batches, Work
from unalike.methods.gradient_rule import GradientRule
from unalike.methods.part import Part, Setup


class Objective(Part):
    """A term of the local loss. A method sums the terms of all its objectives."""

    @abstractmethod
    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        """The term, differentiable in `client.params`. Called in every local step. No default.

        Take means over samples with `batch.mean(per_sample)`: it leaves padding out.

        Args:
            client: View of the client; `client.params` are the current parameters.
            batch: Samples of the step.

        Returns:
            A scalar tensor.

        Shapes:
            batch.x [B, ...], batch.y [B, ...], batch.weight [B] or None.
        """


class TaskObjective(Objective):
    """The objective that fits the model to the labels; a method has exactly one (default: `TaskLoss`)."""

    takes_loss: ClassVar[bool] = False
    """It takes the loss from `client.task_loss`, so that `loss=` changes it.

    Without it: `loss=` is refused.
    """


class Correction(Part):
    """A change of the local gradient. The corrections of a method are chained by rank."""

    @abstractmethod
    def correct(self, client: ClientView, grads: Tree, batch: Batch) -> Tree:
        """The gradient that the next correction, and at last the solver, sees. Called in every local step. No default.

        `client.gradient(at=...)` is the gradient of the local loss at other parameters. A part that replaces `grads` by it
        needs a negative `rank`, or it would undo the corrections before it.

        Args:
            client: View of the client before the step; `client.phase` and `client.step` say which step it is.
            grads: Gradients of the shared parameters that move.
            batch: Samples of the step.

        Returns:
            A tree of the same names, shapes and types.
        """


class LocalGradient(Part):
    """The gradient of local steps, found by a rule of the part's own (DP-SGD); a method has at most one."""

    @property
    def draws_own_batches(self) -> bool:
        """Whether it draws its batches itself (`draw_batches`); some may be empty.

        Without it: no.
        """
        return False

    @abstractmethod
    def gradient_rule(self, client: ClientView, work: Work, samples: Tensor) -> GradientRule:
        """The rule of a client's steps. Called at the start of a phase. No default.

        Args:
            client: View of the client at the start of the phase.
            work: Work of the phase.
            samples: Number of training samples of the client, [].

        Returns:
            The rule, which may hold what stays the same in all steps of the phase.
        """

    def draw_batches(
        self, work: Work, rows: np.ndarray, rng: np.random.Generator, settings: StageSettings
    ) -> Batches:
        """The batches of a client in a phase, for a part with `draws_own_batches`. Default: each sample by itself.

        Args:
            work: Work of the phase.
            rows: Indices of the client's training samples [n].
            rng: Generator of this client and phase, which follows from the seed.
            settings: Settings of the stage.

        Returns:
            The sample indices of each batch.
        """
        return work.poisson_batches(rows, rng)


class LocalWork(Part):
    """The amount of local work of a method that prescribes it (FedSGD); a method has at most one."""

    @abstractmethod
    def work(self, work: Work) -> Work:
        """The work that clients do. Called when a stage is prepared. No default.

        Args:
            work: Work that the user asked for.

        Returns:
            The work that replaces it.
        """


def as_asked(work: Work) -> Work:
    """The work of the round, unchanged."""
    return work


def passes(epochs: int) -> Callable[[Work], Work]:
    """The work of the round, with `epochs` passes over the client's data."""
    return lambda work: dataclasses.replace(work, epochs=epochs, steps=None)


@dataclass(frozen=True)
class Phase:
    """One section of local training.

    Attributes:
        moves: Group of parameters that the phase trains: "all", "head", "body", "norm" or "bias".
        work: Function from the work of the round to the work of the phase.
    """

    moves: Group = "all"
    work: Callable[[Work], Work] = as_asked


class Personalizer(Part):
    """Start of training, trained parameters, shared parameters and the personal model of a client."""

    vmappable: ClassVar[bool] = True
    """False: `begin` has control flow on data (FedALA), and executors call it client by client.

    Without it: True, and stacking such a `begin` is an error of `torch.vmap`.
    """

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        """Parameters that local training starts from. Called once a round, before the first phase.

        Args:
            client: View of the client; `client.params` are the received parameters, or those of the personalizer before.

        Returns:
            (parameters, client state of this part). Default: both unchanged.
        """
        return client.params, client.state

    def trainable(self, name: str, model: Model) -> bool:
        """Whether clients train this parameter. Default: True."""
        return True

    def phases(self) -> tuple[Phase, ...]:
        """The phases of local training, in order. Default: one phase of all parameters.

        At most one part of a method may override it.
        """
        return (Phase(),)

    def tune(self) -> Phase | None:
        """Fine-tuning of the received model before a client is evaluated; its result is not kept. Default: None.

        It runs on the client's training data with the task's loss and a fresh solver.
        """
        return None

    def shared(self, name: str, model: Model) -> bool:
        """Whether this parameter or buffer is sent and averaged. Default: True."""
        return True

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        """Parameters that a client is evaluated with. Default: the shared ones.

        Args:
            model: The model.
            params: Shared parameters.
            state: Client state of this part.

        Returns:
            A tree of all the model's parameters.
        """
        return params

    @property
    def predicts_as_received(self) -> bool:
        """Whether a client is evaluated with what the server would send it now (`personal`).

        Without it: no.
        """
        return False

    def predict(
        self, model: Model, shared: Tree, state: Tree, own: Tree, x: Tensor, context: Context
    ) -> Output:
        """Output of the client's personal model. Default: the model at `personal`.

        Args:
            model: The model.
            shared: Parameters and buffers of the shared model.
            state: Client state of this part.
            own: Buffers of the client's model.
            x: Samples.
            context: Static facts of the client.

        Returns:
            The output in evaluation mode.

        Shapes:
            x [B, ...], output.logits [B, C].
        """
        params = self.personal(model, tree.only(shared, model.params), state)
        return model(params, x, buffers=own, context=context)


class PersonalModel(Personalizer):
    """A personalizer that trains a model of the client's own beside the shared one; a method has at most one."""

    trains: ClassVar[bool] = True

    @abstractmethod
    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        """Objective of the personal model. Called in every local step. No default.

        Args:
            client: View of the client; the term is differentiable in `client.state`, and constant in `client.params`.
            batch: Samples of the step.

        Returns:
            A scalar tensor.
        """


class Conditioner(Part):
    """Static facts of a client that its model takes as an input. They never leave the client."""

    @property
    def pooled(self) -> bool:
        """Whether it describes the training data of all clients together, for simulations only.

        Without it: no.
        """
        return False

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        """The facts of `describe`, under the part's name."""
        task = settings.task
        outputs = task.outputs(settings.classes, data.y.shape[1:])
        if task.label_shape is not None:
            # what such a label says besides its outcome, as an exposure, is no statistic of labels
            data = data._replace(y=task.outcome(data.y))
        return {self.name: self.describe(data, outputs)}

    @abstractmethod
    def describe(self, data: Batch, outputs: int | None) -> Tree:
        """The facts. Called once per client and stage. No default.

        Args:
            data: All training samples of the client.
            outputs: Number of classes; None for a model with one output (binary, regression).

        Returns:
            A tree with the same names and shapes on all clients; the model finds it in `context[name]`.
        """

    def shortfall(self, setup: Setup) -> str:
        """The reason: a model that is not fed facts."""
        if setup.model.takes_context:
            return ""
        return "the model takes no facts of its client; the models conditional_* do"


class Upload(Part):
    """A transformation of the update before it is sent, chained by rank: clip < withhold < sparsify < quantize < mask.

    The client sends exactly the tensors that `encode` returns, so their bytes are the cost. Their shapes and types may depend
    on the update's shapes and on the message from the server, never on a client's values. A tensor that belongs to parameter
    `w` is named `w:<what>`. An empty tensor stands for a withheld one and passes unchanged.
    """

    @property
    def shortens(self) -> bool:
        """Whether no decoded update has a larger L2 norm than it had before `encode`.

        Without it: `client_dp` refuses the upload.
        """
        return False

    CLIP: ClassVar[int] = 4
    WITHHOLD: ClassVar[int] = 5
    """Higher than all ranks of server steps: the server leaves withheld parameters unchanged after all other steps."""
    SPARSIFY: ClassVar[int] = 6
    QUANTIZE: ClassVar[int] = 7

    additive: ClassVar[bool] = False
    """The sum of what clients send decodes to the sum of their updates.

    Without it: secure aggregation refuses the method.
    """

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        """Encode the update on the client. Called after `finish`, by rank. Default: unchanged.

        Args:
            client: View of the client after training.
            update: w_k - w of the shared parameters, as the uploads of lower rank encoded it.

        Returns:
            (tensors to send, client state). This state replaces the one that `finish` returned.
        """
        return update, client.state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        """Decode the updates on the server. Called in reverse order of rank. Default: unchanged.

        Args:
            update: Received tensors of all clients.
            params: Parameters of the model, for names and shapes.
            round: Index of the round, from 0.

        Returns:
            The updates as they were before `encode`.

        Shapes:
            Every tensor of `update` and of the result is [K, ...].
        """
        return update


class CohortStep(Part):
    """A change of the client updates as they arrive, chained by rank: every other part of the server sees its result."""

    @abstractmethod
    def receive(self, server: ServerView, cohort: Cohort) -> Cohort:
        """The cohort that the server goes on with. Called once a round, before the updates are weighed. No default.

        Args:
            server: View of the server before the round's update.
            cohort: The client updates, decoded; with needs = "sums" in all parts of the method their numbers alone.
        """


class BaseWeights(Part):
    """The weights of the clients before any other part changes them; a method has exactly one (default: `BySize`)."""

    @abstractmethod
    def weights(self, cohort: Cohort) -> Tensor:
        """Weights of the clients. Called once a round. No default.

        Args:
            cohort: The client updates; read the numbers only (`sizes`, `steps`, `shared`).

        Returns:
            Weights [K], not negative. The caller normalizes them to sum 1.
        """

    def importance(self, cohort: Cohort) -> Tensor:
        """N p_k, [K], with p_k the client's weight in the objective sum_k p_k F_k over all N clients. Default: 1.

        Parts with client states weigh them by it, so that they minimize this objective.
        """
        return torch.ones_like(cohort.sizes)


class Weighting(Part):
    """A change of the weights, chained after the base weights."""

    @abstractmethod
    def weigh(self, cohort: Cohort, weights: Tensor) -> Tensor:
        """Change the weights. Called once a round, by rank. No default.

        Args:
            cohort: The client updates; read the numbers only (`sizes`, `steps`, `ages`, `shared`).
            weights: Weights so far, of sum 1.

        Returns:
            New weights [K], not negative. The caller normalizes them to sum 1.

        Shapes:
            weights [K] -> [K].
        """


class Aggregator(Part):
    """The rule that combines the clients' updates into one; a method has exactly one (default: `Mean`)."""

    needs: ClassVar[Literal["sums", "spread", "updates"]] = "updates"

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        """Weights for `combine` and `combine_buffers`, for a rule that finds them in the updates. Default: unchanged.

        Args:
            server: View of the server before the round's update.
            cohort: The decoded client updates.
            weights: Weights [K] of sum 1.

        Returns:
            Weights [K].
        """
        return weights

    @abstractmethod
    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        """Combine the updates. Called once a round. No default.

        Args:
            server: View of the server; `server.params` are the shared parameters w.
            cohort: The decoded client updates; `cohort.update` is w_k - w, every tensor [K, ...].
            weights: Final weights [K].

        Returns:
            The update: a tree with the names of `cohort.update` and the shapes of the parameters.
        """

    def combine_buffers(self, buffers: Tree, weights: Tensor) -> Tree:
        """Combine float buffers. Called once a round. Default: the mean with the final weights.

        Args:
            buffers: Buffers of the clients, [K, ...] each.
            weights: Final weights [K].

        Returns:
            A tree of the same names without the leading [K].
        """
        return tree.weighted_sum(buffers, weights)


class LinearAggregator(Aggregator):
    """A weighted sum of the updates. Its coefficients depend on the numbers of the client updates, not on their tensors."""

    needs = "sums"

    @abstractmethod
    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        """Coefficients of the sum. Called once a round, before the updates arrive where they are added up as they come.

        Args:
            server: View of the server; `server.params` may be empty.
            cohort: The numbers of the client updates (`sizes`, `steps`, `solver_weights`, `shared`).
            weights: Weights [K] of sum 1.

        Returns:
            Coefficients c [K]: the update is sum_k c_k update_k.
        """

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        """The sum of the updates with these coefficients: u = sum_k c_k update_k."""
        return tree.weighted_sum(cohort.update, self.coefficients(server, cohort, weights))


class ServerStep(Part):
    """A change of the combined update, chained by rank: noise < dynamic < optimizer < distillation < shrinking."""

    NOISE: ClassVar[int] = 0
    DYNAMIC: ClassVar[int] = 1
    OPTIMIZER: ClassVar[int] = 2
    DISTILLATION: ClassVar[int] = 3
    SHRINKING: ClassVar[int] = 4

    @property
    def moves_buffers(self) -> bool:
        """Whether `step` also moves the averaged float buffers, in `server.params`, `update` and `cohort.spread`; needs "spread".

        Integer buffers keep the maximum of the clients'.

        Without it: no.
        """
        return False

    @abstractmethod
    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        """Change the combined update. Called once a round, after `absorb`. No default.

        Args:
            server: View of the server; `server.params` are the parameters before the update, `server.state` is what
                `absorb` returned.
            update: Combined update, as server steps of lower rank changed it.
            cohort: The decoded client updates; with needs = "sums" only their numbers. Without clients after a round in which
                none took part, and in a method that hides clients (`client_dp`).

        Returns:
            (update, server state). The update keeps its names and shapes; `advance` adds it to the parameters.
        """


class ServerOptimizer(ServerStep):
    """A server step that uses the combined update as a gradient; a method has at most one."""

    rank: ClassVar[int] = ServerStep.OPTIMIZER
