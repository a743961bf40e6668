"""A part is one remedy: a frozen dataclass whose fields are its hyperparameters and whose methods are pure functions.

Each role below has one verb. Besides it, every part may use the drawers and letters that `Part` declares, all empty by
default: what it remembers on the server and on a client, what it sends down and up.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from torch import Tensor

from unalike._utils.registry import Registry
from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.model import Group, Model
from unalike.core.tasks import TASKS
from unalike.core.types import Batch, Context, Output, PartTrees, Tree
from unalike.core.views import ClientView, Cohort, PartLookup, ServerView, StageSettings
from unalike.core.work import Work

registry = Registry("method or part", home="unalike.methods.catalogue", group="unalike.parts")
"""Everything that may stand in spec text: parts by what they do, methods by their paper."""

P = TypeVar("P", bound=type)


def snake(name: str) -> str:
    """`ControlVariates` -> `control_variates`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@dataclass_transform(frozen_default=True)
def part(cls: P) -> P:
    """Class decorator: make a frozen, validated dataclass of a part and register it under its name for spec text.

    The name is the class attribute `name`, or the class name in snake case.
    """
    if "name" not in vars(cls):
        cls.name = snake(cls.__name__)  # type: ignore[attr-defined]
    made = validated(cls)
    return registry.register(made.name)(made)  # type: ignore[attr-defined]


class Pull(NamedTuple):
    """What is added to the gradient at the parameters v of a client that received w: strength (v - w) + constant.

    The constant has shared parameters only; where it has none it is 0. Neither changes from step to step.
    """

    strength: float = 0.0
    constant: Tree = {}  # noqa: RUF012  (a NamedTuple field is immutable by use)


class Part:
    """The drawers and letters that every role shares."""

    name: ClassVar[str]
    rank: ClassVar[int] = 0
    """Place in a chained role: lower ranks come first, whatever the order of writing."""
    trains: ClassVar[bool] = False
    """Its client memory is optimized with the model, by the same solver with a state of its own (Ditto, APFL)."""
    remembers_model: ClassVar[bool] = False
    """Its client memory holds a model, whose buffers are kept beside it (MOON); implied by `trains`."""
    shares: ClassVar[tuple[str, ...]] = ()
    """The facts of the client that may leave it, by the names that `facts` gives them."""
    needs: ClassVar[Literal["sums", "spread", "updates"]] = "sums"
    """What its server half needs of the reports: sums over the clients (`fold`), how far the updates are from their mean
    (`cohort.spread`, measured while they are combined), or what every single client sent."""
    needs_steps: ClassVar[bool] = False
    """Its result depends on how many steps the clients made."""
    needs_letters: ClassVar[bool] = False
    """Its server half works on the letters of its client half."""
    tasks: ClassVar[tuple[str, ...]] = tuple(TASKS)
    """The tasks for which it means anything."""
    needs_proxy: ClassVar[bool] = False
    """It learns on the server from `server.proxy`, the samples that the person gives the server."""

    @property
    def needs_data(self) -> bool:
        """Whether it looks at all local samples (`client.data.whole`, in a random order), beside the round's batches."""
        return False

    def server_init(self, params: Tree) -> Tree:
        """Its memory on the server before the first round."""
        return {}

    def server_open(self, settings: StageSettings) -> Tree:
        """The same, for a part that must know the model or the seed."""
        return self.server_init(settings.model.params)

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        """Static facts of a client by name, from all its training samples; they stay there but for those in `shares`."""
        return {}

    def client_init(self, params: Tree) -> Tree:
        """Its memory on a client before its first participation; `params` are the initial ones of the run that it `keeps`."""
        return {}

    def keeps(self, name: str, model: Model) -> bool:
        """Whether its memory on a client has room for the parameter: `client_init` sees these alone."""
        return True

    def broadcast(self, server: ServerView) -> Tree:
        """Its letter down, the same to every participant."""
        return {}

    def address(self, server: ServerView, client: int) -> Tree:
        """What it sends to this client alone, read with its letter down: of the same names and shapes for all clients."""
        return {}

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        """After local training: the memory to keep, and the letter up."""
        return client.state, {}

    def pull(self, client: ClientView) -> Pull:
        """What an objective or a correction adds to the gradient, where that is a pull: compiled loops train its method then.

        It says in short what `loss` or `correct` says; a test holds both equal.
        """
        raise NotImplementedError

    def project(self, client: ClientView, grads: Tree, stepped: Tree) -> Tree:
        """For a part that trains: its memory after a solver step (`stepped`), to be constrained (APFL's weight in [0, 1])."""
        return stepped

    def fold(self, update: Tree, message: Tree) -> Tree:
        """What of one report `absorb` needs, to be summed over the cohort."""
        return {}

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        """Its new memory on the server, from the folded sums."""
        return server.state

    def needs_rate(self, method: PartLookup) -> bool:
        """Whether its server half reckons with the clients' learning rate."""
        return False

    def check(self, method: PartLookup, work: Work) -> None:
        """Raise `UnalikeError` for a combination without meaning, or warn of one that is known to mislead."""


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


def initial_part_states(parts: tuple[Part, ...], model: Model) -> PartTrees:
    """The client memories of these parts before the first participation."""
    kept = {p.name: p.client_init({n: w for n, w in model.params.items() if p.keeps(n, model)}) for p in parts}
    return {name: state for name, state in kept.items() if state}


def parameters(part: Part) -> dict[str, Any]:
    """The fields of a part with their values, in the order of the class."""
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}  # type: ignore[arg-type]
