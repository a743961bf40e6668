"""No method sends, keeps or averages parameters that the module itself froze."""

from collections import OrderedDict

import pytest
import torch
from every_method import METHODS, SIZES, WORK
from simulation import Clients, Simulation, mlp

from unalike.core.types import Batch
from unalike.training.server.server_update import make_broadcast
from unalike.training.wire import NUMBERS_BYTES, wire

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
every = pytest.mark.parametrize("name", METHODS)


def partly_frozen(dim=4):
    """A frozen layer `base` under a body and a head that are trained."""
    layers = {
        "base": torch.nn.Linear(dim, 4),
        "sigmoid": torch.nn.Sigmoid(),
        **dict(mlp().named_children()),
    }
    module = torch.nn.Sequential(OrderedDict(layers))
    module.base.requires_grad_(False)
    return module


def three_rounds(name, executor="loop"):
    clients = Clients.random(SIZES)
    proxy = Batch(clients.x[1:7], clients.y[1:7])
    torch.manual_seed(0)
    sim = Simulation(
        METHODS[name], partly_frozen(), clients, executor=executor, proxy=proxy, **WORK
    )
    for _ in range(3):
        sim.round()
    return sim


def paths(nest, path=""):
    """The path of every tensor of a nest."""
    if isinstance(nest, torch.Tensor):
        return [path]
    items = nest.items() if isinstance(nest, dict) else nest._asdict().items()
    return [found for name, value in items for found in paths(value, f"{path}/{name}")]


@every
def test_frozen_layer_is_in_no_state_message_or_update(name):
    sim = three_rounds(name)
    down = make_broadcast(sim.method, sim.settings, sim.state, len(SIZES), [0]).to(0).messages
    held = {
        "server": sim.state.part_states,
        "client": sim.memory(0),
        "down": down,
        "up": sim.run().stacked,
    }
    assert [path for path in paths(held) if "base" in path] == []


@every
@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_frozen_layer_is_that_of_the_run_in_every_personal_model(name, executor):
    sim = three_rounds(name, executor)
    part, frozen = sim.method.personalizer, [n for n in sim.params if "base" in n]
    for client in range(len(SIZES)):
        state = sim.memory(client).get(part.name, {}) if part else {}
        own = part.personal(sim.settings.model, sim.params, state) if part else sim.params
        assert set(own) >= set(sim.params)
        assert all(torch.equal(own[n], sim.settings.model.params[n]) for n in frozen)


@every
def test_wire_does_not_depend_on_width_of_frozen_layer(name):
    assert wire(METHODS[name], partly_frozen(4)) == wire(METHODS[name], partly_frozen(400))


def test_wire_of_scaffold_on_frozen_layer_is_that_of_two_models_without_it():
    trained = 4 * sum(p.numel() for p in mlp().parameters())
    sent = {(i.direction, i.what): i.bytes for i in wire("scaffold", partly_frozen())}
    assert sent == {
        ("down", "parameters"): trained,
        ("down", "message of control_variates"): trained,
        ("up", "update"): trained,
        ("up", "message of control_variates"): trained,
        ("up", "counts and loss"): NUMBERS_BYTES,
    }
