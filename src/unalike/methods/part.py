"""A part is one remedy: a frozen dataclass whose fields are its hyperparameters and whose methods are pure functions.

Each role below has one verb. Besides it, every part may use the drawers and letters that `Part` declares, all empty by
default: what it remembers on the server and on a client, what it sends down and up.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from unalike._utils.registry import Registry
from unalike._utils.validated import validated
from unalike.core.model import Model
from unalike.core.tasks import TASKS
from unalike.core.types import Batch, PartTrees, Tree
from unalike.core.views import ClientView, PartLookup, ServerView, StageSettings
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


def initial_part_states(parts: tuple[Part, ...], model: Model) -> PartTrees:
    """The client memories of these parts before the first participation."""
    kept = {p.name: p.client_init({n: w for n, w in model.params.items() if p.keeps(n, model)}) for p in parts}
    return {name: state for name, state in kept.items() if state}


def parameters(part: Part) -> dict[str, Any]:
    """The fields of a part with their values, in the order of the class."""
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}  # type: ignore[arg-type]
