"""Networks that differ between clients: what a user gives, and which client has which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

import numpy as np

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry
from unalike._utils.spec import Call, parse_one
from unalike.client_devices.device_model import DeviceModel
from unalike.core.corners import corner
from unalike.core.model import Model
from unalike.core.types import PartTrees, Tree
from unalike.core.views import StageSettings
from unalike.data.population import Population
from unalike.data.sanity import listed
from unalike.methods.method import Method
from unalike.runtime.setup.given_model import ModelLike
from unalike.training.server.server_update import initial_server_state

SPEC_NAME = "networks"
"""Name of the spec text that stands for several networks."""
rules = Registry("rule of networks", home="unalike.runtime.setup.client_networks")
"""Name -> function that chooses the network of each client: its index among the networks, [clients], -1 for none."""


@dataclass(frozen=True)
class RuleInputs:
    """The inputs of a rule: the clients of a run, its simulated devices if it has some, its seed, and the number of networks."""

    population: Population
    devices: DeviceModel | None
    seed: int
    networks: int


@dataclass(frozen=True)
class Networks:
    """Networks by name, and the rule by which a client has one of them.

    Spec text says the same: `networks(small='mlp(hidden=8)', large='mlp(hidden=32)', rule='shares(of=(0.7, 0.3))')`.

    Attributes:
        models: Name -> model, as `ua.run` takes one.
        rule: "shares(of=(0.7, 0.3))", drawn by the seed of the run; "names(patterns=('ward-*', '*'))", the first network with a
            pattern that the client's name fits; "clusters(of=((0, 1), (2,)))", by the client's cluster in the partition; or
            "devices(of=(0.7, 0.3))", shares by the training speed of the simulated devices, the slowest first. Each has one entry
            for each network, in order.
    """

    models: Mapping[str, ModelLike]
    rule: str = "shares"

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise UnalikeError(
                f"found the networks {[*self.models]}; expected two or more by name, or model='mlp' for one"
            )
        rules.check(parse_one(self.rule))

    def __str__(self) -> str:
        texts = {name: model_text(model) for name, model in self.models.items()}
        return str(Call(SPEC_NAME, texts | {"rule": self.rule}))

    def clients(
        self,
        population: Population,
        *,
        may_train: np.ndarray,
        devices: DeviceModel | None,
        seed: int,
    ) -> dict[str, tuple[int, ...]]:
        """Name of a network -> numbers of its clients; `may_train` [clients] says which of these have training samples.

        Raises `UnalikeError` for a client without a network, or a network without a client that may train it.
        """
        inputs = RuleInputs(population, devices, seed, len(self.models))
        chosen = rules.build(parse_one(self.rule), inputs=inputs)
        without = np.flatnonzero(chosen < 0).tolist()
        if without:
            names = listed([population.names[k] for k in without])
            raise UnalikeError(
                f"the rule {self.rule} gives no network to {names}; expected one for every client"
            )
        groups = {}
        for number, name in enumerate(self.models):
            groups[name] = tuple(np.flatnonzero(chosen == number).tolist())
            if not may_train[list(groups[name])].any():
                raise UnalikeError(
                    f"the rule {self.rule} gives the network {name!r} to no client with training samples; leave it out, or give it "
                    "to more clients"
                )
        return groups


ModelOrNetworks = ModelLike | Networks | Mapping[str, ModelLike]
"""What a user gives as `model`: one, or several by name."""


def given_networks(model: object) -> Networks | None:
    """The networks that a user gave: `Networks`, a dict by name, or their spec text; None for one model."""
    if isinstance(model, Networks):
        return model
    if isinstance(model, Mapping):
        return Networks(MappingProxyType(dict(model)))
    if not isinstance(model, str) or model.strip().partition("(")[0] != SPEC_NAME:
        return None
    parameters = parse_one(model).parameters
    rule = str(parameters.pop("rule", "shares"))
    for name, text in parameters.items():
        if not isinstance(text, str):
            raise UnalikeError(
                f"networks: found {name}={text!r}, expected the text of a model: {name}='mlp(hidden=8)'"
            )
    return Networks(MappingProxyType(parameters), rule)


def model_text(model: ModelLike) -> str:
    """The text of a model as a record names it."""
    return model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


def check_sums(method: Method, settings: StageSettings, models: Mapping[str, Model]) -> None:
    """Raise `UnalikeError` where the method adds up over all clients what has unlike shapes in their networks."""
    first, *_ = models
    wanted: PartTrees = {}
    for name, model in models.items():
        states = initial_server_state(method, replace(settings, model=model)).part_states
        wanted = wanted or states
        for part, state in states.items():
            for what, values in state.items():
                shape = wanted[part][what].shape
                if values.shape != shape:
                    raise UnalikeError(
                        f"{part} adds up over all clients what has the shape {list(shape)} in the network {first!r} and "
                        f"{list(values.shape)} in {name!r} ({what}); give networks whose heads read equally many features "
                        "and have equally many outputs"
                    )


def models_by_name(model: ModelOrNetworks) -> Mapping[str, ModelLike]:
    """The networks that a user gave, by name; of a single one the name is "all"."""
    networks = given_networks(model)
    if networks is not None:
        return networks.models
    assert not isinstance(model, Networks | Mapping)
    return {"all": model}


def common_start(method: Method, models: Mapping[str, Model]) -> dict[str, Model]:
    """The networks with equal initial values of what the method averages: those of the largest tensor of each name.

    Raises `UnalikeError` for a tensor that is no corner of the largest one.
    """
    largest: Tree = {}
    for model in models.values():
        for name in method.shared_names(model.params, model):
            values = model.params[name]
            if name not in largest or values.numel() > largest[name].numel():
                largest[name] = values
    begun = {}
    for network, model in models.items():
        shared = {}
        for name in method.shared_names(model.params, model):
            wanted = model.params[name].shape
            fits = len(wanted) == largest[name].dim() and all(
                size <= limit for size, limit in zip(wanted, largest[name].shape, strict=True)
            )
            if not fits:
                raise UnalikeError(
                    f"{name} has the shape {list(wanted)} in the network {network!r}, which is no corner of "
                    f"{list(largest[name].shape)} in another; expected networks of which one is narrower in every layer"
                )
            shared[name] = corner(largest[name], wanted)
        begun[network] = model.with_initial(shared)
    return begun


@rules.register("shares")
def shares(inputs: RuleInputs, *, of: tuple[float, ...] = ()) -> np.ndarray:
    """Shares of the clients, drawn by the seed; equal ones by default."""
    return seeds.generator(inputs.seed, "networks").permutation(_stretches(inputs, of))


@rules.register("devices")
def devices(inputs: RuleInputs, *, of: tuple[float, ...] = ()) -> np.ndarray:
    """Shares of the clients by the training speed of their simulated devices, the slowest first; equal ones by default."""
    if inputs.devices is None:
        raise UnalikeError(
            "the rule devices found no simulated devices; give devices='lognormal(sigma=1)' or others, or choose the rule names or "
            "shares"
        )
    speeds = inputs.devices.rates(len(inputs.population), inputs.seed).samples_per_second
    slowest_first = np.argsort(speeds, kind="stable")
    chosen = np.empty(len(speeds), np.int64)
    chosen[slowest_first] = _stretches(inputs, of)
    return chosen


@rules.register("names")
def names(inputs: RuleInputs, *, patterns: tuple[str, ...]) -> np.ndarray:
    """The first network with a pattern, as of files, that the client's name fits."""
    _check_count(patterns, inputs.networks, "patterns")
    population = inputs.population
    chosen = np.full(len(population), -1)
    for client in range(len(population)):
        fitting = [i for i, p in enumerate(patterns) if fnmatchcase(population.names[client], p)]
        if fitting:
            chosen[client] = fitting[0]
    return chosen


@rules.register("clusters")
def clusters(inputs: RuleInputs, *, of: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """The network that has the client's cluster in its list."""
    _check_count(of, inputs.networks, "lists of clusters")
    if inputs.population.clusters is None:
        raise UnalikeError(
            "the rule clusters found a partition without clusters; choose one that has them, or the rule names or shares"
        )
    of_client = np.array([int(c) for c in inputs.population.clusters])
    chosen = np.full(len(of_client), -1)
    for number, numbers in enumerate(of):
        chosen[np.isin(of_client, list(numbers))] = number
    return chosen


def _stretches(inputs: RuleInputs, of: Sequence[float]) -> np.ndarray:
    """So many clients of each network, one network after the other, as the shares say; the ends are rounded. [clients]"""
    clients = len(inputs.population)
    weights = np.array(of or [1.0] * inputs.networks)
    if len(weights) != inputs.networks or (weights < 0).any() or not weights.sum() > 0:
        raise UnalikeError(
            f"found the shares {list(of)} for {inputs.networks} networks; expected one for each, not negative"
        )
    ends = np.rint(np.cumsum(weights) / weights.sum() * clients)
    return np.searchsorted(ends, np.arange(clients), side="right")


def _check_count(found: Sequence[object], networks: int, what: str) -> None:
    if len(found) != networks:
        raise UnalikeError(
            f"found {len(found)} {what} for {networks} networks; expected one for each"
        )
