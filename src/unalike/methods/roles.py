"""The roles of parts. Each role has one verb: what its parts do in the round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from unalike.core import tree
from unalike.core.model import Group, Model
from unalike.core.types import Batch, Context, Output, PartTrees, Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.core.work import Work
from unalike.methods.part import Part


class Objective(Part):
    """A term of the local loss."""

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        """A scalar, added to the other terms; means over samples are `batch.mean(per_sample)`, which leaves padding out."""
        raise NotImplementedError


class TaskObjective(Objective):
    """The term that fits the model to its labels; exactly one."""


class Correction(Part):
    """A change of the local gradient."""

    def correct(self, client: ClientView, grads: Tree) -> Tree:
        """The gradient the solver sees; corrections are chained by rank."""
        raise NotImplementedError


class LocalWork(Part):
    """A method's own amount of local work; at most one."""

    def work(self, work: Work) -> Work:
        """The work a client does instead of what the person asked for."""
        raise NotImplementedError


def as_asked(work: Work) -> Work:
    """The round's work as it is."""
    return work


def passes(epochs: int) -> Callable[[Work], Work]:
    """The round's work with so many passes over the client's data."""
    return lambda work: dataclasses.replace(work, epochs=epochs, steps=None)


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: which group of parameters moves, and how the round's work is changed meanwhile."""

    moves: Group = "all"
    work: Callable[[Work], Work] = as_asked


class Personalizer(Part):
    """Where training starts, what moves, what is averaged and what a client is evaluated with."""

    vmappable: ClassVar[bool] = True
    """False: `begin` needs control flow on data (FedALA). It then runs client by client; the steps are stacked all the same."""

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        """The parameters that training starts from, and this part's memory."""
        return client.params, client.state

    def trainable(self, name: str, model: Model) -> bool:
        """Whether the parameter ever moves."""
        return True

    def phases(self) -> tuple[Phase, ...]:
        """The stretches of local training one after the other; a method has room for one part that says so."""
        return (Phase(),)

    def tune(self) -> Phase | None:
        """Fine-tuning of what the client received, on its training data, before it is evaluated; nothing of it is kept."""
        return None

    def shared(self, name: str, model: Model) -> bool:
        """Whether the parameter (or buffer) is sent and averaged."""
        return True

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        """The parameters that the client is evaluated with, from the global ones and its memory."""
        return params

    def predict(self, model: Model, shared: Tree, state: Tree, own: Tree, x: Tensor, context: Context) -> Output:
        """The client's personal model on `x` [B, ...].

        `shared` are the parameters and buffers of the shared model, `own` the buffers of the client's.
        """
        return model(self.personal(model, tree.only(shared, model.params), state), x, buffers=own, context=context)


class PersonalModel(Personalizer):
    """A personalizer that trains a model of the client's own beside the shared one; at most one."""

    trains: ClassVar[bool] = True

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        """Its objective in `client.state`; it must not depend differentiably on `client.params`."""
        raise NotImplementedError


class Conditioner(Part):
    """Static facts of a client, computed from its training data alone, that its model is fed. They never leave it."""

    @property
    def pooled(self) -> bool:
        """Whether it describes the training data of all clients together: a reference that a simulation alone can have."""
        return False

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        return {self.name: self.describe(data, settings.classes if settings.task.name == "classification" else None)}

    def describe(self, data: Batch, outputs: int | None) -> Tree:
        """The facts, from all its training samples; `outputs` counts the classes, None is one output (binary, regression).

        The model finds them in `context[name]`.
        """
        raise NotImplementedError


class Upload(Part):
    """A transformation of what is sent, chained by rank: clip < withhold < sparsify < quantize < mask.

    What `encode` returns is what is sent, byte for byte: fewer or smaller numbers cost less. Its shapes and types follow from
    those it is given and from its letter down, never from a client's values. A tensor that goes with parameter `w` is named
    `w:<what>`, and an empty one, which stands for what is withheld, passes as it is. The memory it returns is the one that is
    kept, whatever `finish` returned.
    """

    CLIP: ClassVar[int] = 4
    WITHHOLD: ClassVar[int] = 5
    """Beyond all ranks of server steps: what is not sent, the server leaves as it is at last."""
    SPARSIFY: ClassVar[int] = 6
    QUANTIZE: ClassVar[int] = 7
    MASK: ClassVar[int] = 8

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        """On the client, by rank: what is sent, and the memory to keep."""
        return update, client.state

    def decode(self, update: Tree, params: Tree) -> Tree:
        """On the server, in the reverse order, on the stacked updates [K, ...]; `params` are those of the model."""
        return update


class BaseWeights(Part):
    """The weights of the participants before anything else; exactly one."""

    def weights(self, cohort: Cohort) -> Tensor:
        """[K], not negative; normalized to sum 1 by the caller."""
        raise NotImplementedError


class Weighting(Part):
    """A change of the weights, chained after the base."""

    def weigh(self, cohort: Cohort, weights: Tensor) -> Tensor:
        """[K] -> [K], not negative; normalized to sum 1 by the caller."""
        raise NotImplementedError


class Aggregator(Part):
    """How the participants' updates become one; exactly one."""

    needs: ClassVar[Literal["sums", "spread", "updates"]] = "updates"

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        """[K]: the final weights, for parameters and float buffers, of a rule that finds them in the updates themselves."""
        return weights

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        """The update, from the stacked ones and the final weights."""
        raise NotImplementedError

    def combine_buffers(self, buffers: Tree, weights: Tensor) -> Tree:
        """Float buffers [K, ...] as one; the mean with the method's final weights unless the rule needs its own."""
        return tree.weighted_sum(buffers, weights)


class LinearAggregator(Aggregator):
    """An aggregator that is a sum of the updates with coefficients from the reports' scalars alone."""

    needs = "sums"

    def coefficients(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        """[K]: the update is sum_k coefficients_k * update_k."""
        raise NotImplementedError

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.weighted_sum(cohort.update, self.coefficients(server, cohort, weights))


class ServerStep(Part):
    """A change of the combined update on the server, chained by rank: noise < dynamic < optimizer < distillation < shrinking."""

    NOISE: ClassVar[int] = 0
    DYNAMIC: ClassVar[int] = 1
    OPTIMIZER: ClassVar[int] = 2
    DISTILLATION: ClassVar[int] = 3
    SHRINKING: ClassVar[int] = 4

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        """The update to apply, and this part's new memory on the server."""
        raise NotImplementedError


class ServerOptimizer(ServerStep):
    """A server step that treats the combined update as a gradient; at most one."""

    rank: ClassVar[int] = ServerStep.OPTIMIZER
