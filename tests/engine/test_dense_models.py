"""Dense models: chunks by `torch.vmap` agree with the loop, and only chains of layers are trained in compiled loops."""

import threading
import warnings

import pytest
import torch
from every_method import PLANS
from simulation import Clients, Simulation, distance, mlp
from torch import nn

import unalike as ua
from unalike.core.model import Model
from unalike.core.types import Batch
from unalike.engine.batched import Batched
from unalike.engine.compiled import compiled_training
from unalike.engine.compiled.layer_chain import LayerChain, chain_of, layer_chain
from unalike.methods.method import Method

SIZES = (7, 3, 1, 5)
METHODS = {name: p for name, p in PLANS.items() if isinstance(p, Method) and not p.trained_parts}
HEAVY = {
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.01,
    "clip": 1.0,
    "keep_optimizer_state": True,
}
MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01, "keep_optimizer_state": True}
ENLARGING = (
    "powersgd",
    "feddf",
    "fedgh",
    "fedgen",
    "newton_own_intercepts",
)
"""The server trains, too, directions of tiny updates are scaled to norm 1, or a fit has no finite end: last bits grow."""


def trained(method, executor, module=None, clients=None, **more):
    """Two rounds of ragged clients, one of them with a single sample."""
    clients = clients or Clients.random(SIZES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proxy = Batch(clients.x[1:7], clients.y[1:7])
        work = {"epochs": 2, "batch_size": 4, "lr": 0.1} | more
        sim = Simulation(method, module or mlp(), clients, proxy=proxy, executor=executor, **work)
        if executor == "batched":
            sim.executor = Batched(sim.executor.client_pool, compiled_loops=False)
        sim.round(), sim.round([0, 1, 3])
        return sim


def gap(method, *given, **more):
    """The distance between loop and chunks, relative to the update."""
    loop, stacked = (trained(method, executor, *given, **more) for executor in ("loop", "batched"))
    for k in range(len(SIZES)):
        torch.testing.assert_close(
            stacked.memory(k), loop.memory(k), rtol=1e-4, atol=1e-6
        )  # float32
    return distance(stacked.params, loop.params, loop.settings.model.params)


def gap64(method, module, **more):
    """The same in float64."""
    return gap(method, module.double(), Clients.random(SIZES, dtype=torch.float64), **more)


@pytest.mark.parametrize("more", [{}, MOMENTUM, HEAVY], ids=["sgd", "momentum", "heavy"])
@pytest.mark.parametrize("name", METHODS)
def test_batched_without_compiled_loops_equals_loop_for_every_method(name, more):
    """1e-6 of the update; float64 where last bits are enlarged, as by a hundred steps of Adam on the server."""
    if name == "control_variates_after_momentum" and more:
        pytest.skip(
            "it refuses an optimizer state that is kept between rounds, as its own test shows"
        )
    if name in ENLARGING:
        assert gap64(METHODS[name], mlp(), **more) < 1e-7
    else:
        assert gap(METHODS[name], **more) < 1e-6


def deep():
    torch.manual_seed(0)
    layers = [
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Linear(6, 5, bias=False),
        nn.Identity(),
        nn.Linear(5, 4),
        nn.Sigmoid(),
    ]
    return nn.Sequential(*layers, nn.Dropout(0.0), nn.Linear(4, 3))


@pytest.mark.parametrize(
    "module", [deep, lambda: ua.model("linear", (4,), 3), lambda: ua.model("mlp", (4,), 3)]
)
@pytest.mark.parametrize(
    "method", ["fedprox(mu=0.1) + scaffold", "moon", "fedrep", "fedper", "fine_tuned"]
)
def test_batched_without_compiled_loops_equals_loop_for_other_models(module, method):
    """With several phases, frozen layers, and objectives on features and logits."""
    built = module()
    if method == "fedrep" and len(list(built.parameters())) == 2:
        pytest.skip("it has no body")
    if method == "fedrep":  # ten epochs of the head enlarge last bits
        assert gap64(Method.parse(method), built) < 1e-7
    else:
        assert gap(Method.parse(method), built) < 1e-6


@pytest.mark.parametrize("labels", [torch.bool, torch.float32])
def test_batched_without_compiled_loops_equals_loop_for_one_output(labels):
    data = [(torch.randn(n, 4), (torch.randn(n) > 0).to(labels)) for n in SIZES]
    clients = Clients.of(*data)
    clients.y = clients.y.to(labels)
    task = {torch.bool: "binary", torch.float32: "regression"}[labels]
    net = ua.model("mlp(hidden=(5,))", (4,), None)
    assert gap(Method.parse("fedprox"), net, clients, momentum=0.9, task=task) < 1e-6


def test_frozen_layer_stays_as_it_is():
    module = deep()
    module[2].weight.requires_grad_(False)
    assert torch.equal(trained(Method(), "batched", module).params["2.weight"], module[2].weight)
    assert gap(Method(), module) < 1e-6


class Twice(nn.Module):
    """A layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


class Skip(nn.Module):
    """More than a chain."""

    def __init__(self):
        super().__init__()
        self.one, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x + self.one(x))


def tied():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    module[2].weight = module[0].weight
    return module


class Own(nn.Linear):
    """Looks like a linear layer."""

    def forward(self, x):
        return super().forward(x) ** 2


class Louder(nn.Module):
    """A chain in evaluation mode alone."""

    def __init__(self):
        super().__init__()
        self.one, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.one(x)
        return self.head(2 * h if self.training else h)


def hooked(path):
    module = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 3))
    module.get_submodule(path).register_full_backward_hook(
        lambda m, into, out: tuple(g and 2 * g for g in into)
    )
    return module


def images(*layers):
    module = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(2, 3, 8, 8))  # the last layer becomes a linear one
    return module


OTHERS = {
    "training": lambda: Louder().eval(),
    "gradients": lambda: hooked("0.0"),
    "all gradients": lambda: hooked(""),
    "twice": Twice,
    "skip": Skip,
    "tied": tied,
    "own": lambda: nn.Sequential(nn.Linear(4, 4), Own(4, 3)),
    "dropout": lambda: mlp(dropout=0.5),
    "norm": lambda: mlp(norm=True),
    "ends": lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
    "late": lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(3, 3)),
    "strided": lambda: images(nn.Conv2d(3, 4, 3, stride=2)),
    "grouped": lambda: images(nn.Conv2d(3, 3, 3, groups=3)),
    "reflected": lambda: images(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")),
    "oblong": lambda: images(nn.Conv2d(3, 4, (3, 1))),
    "named padding": lambda: images(nn.Conv2d(3, 4, 3, padding="same")),
    "overlapping": lambda: images(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2)),
    "rounded up": lambda: images(nn.Conv2d(3, 4, 3), nn.MaxPool2d(4, ceil_mode=True)),
    "averaged": lambda: images(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2)),
    "pooled twice": lambda: images(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2)),
    "images with norm": lambda: ua.model("cnn(norm='batch')", (3, 8, 8), 3),
    "rows of images": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(6, 3)),
}


REASONS = {
    "gradients": "hooks",
    "twice": "its parameters are not those of its layers",
    "skip": "one takes more than the output of the operation before it",
    "training": "mul",
    "dropout": "Dropout(p=0.5",
    "norm": "BatchNorm1d",
    "ends": "its last layer is not linear",
    "strided": "stride=(2, 2)",
}


@pytest.mark.parametrize("name", OTHERS)
def test_layer_chain_of_other_module_is_the_reason(name):
    found = layer_chain(OTHERS[name]())
    assert isinstance(found, str) and REASONS.get(name, "") in found


class Meanwhile(nn.Module):
    """A layer, and another module that is called by another thread at the same moment."""

    other, seen = nn.Linear(4, 2), []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        thread = threading.Thread(
            target=lambda: self.seen.append(Meanwhile.other(torch.ones(1, 4)))
        )
        thread.start()
        thread.join()
        return self.layer(x)


def test_layer_chain_tracing_does_not_disturb_other_threads():
    assert isinstance(layer_chain(Meanwhile()), LayerChain)
    assert torch.equal(Meanwhile.seen[0], Meanwhile.other(torch.ones(1, 4)))


def test_compiled_training_mixed_models_and_adam_are_not_supported():
    pytest.importorskip("numba")
    clients = Clients.random(SIZES)
    for method, more, expected in (
        ("fedavg", {}, None),
        ("ditto", {}, None),
        ("apfl", {}, "the method changes its gradients"),
        ("fedavg", {"optimizer": "adam"}, "they have no optimizer but SGD"),
    ):
        sim = Simulation(method, mlp(), clients, **more)
        found = compiled_training.obstacle(sim.method, sim.settings, clients.x, 4)
        assert found == expected
    model = Model(mlp())
    chain = chain_of(model)
    assert chain is not None and not chain.takes(torch.zeros(2, 3, 4))


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("activation", [nn.GELU, nn.Tanh])
def test_padding_does_not_mix_clients_numbers(activation, loops):
    """The samples of one client (here a file's fill value in row 0) never meet those of another."""
    clients = Clients.random(SIZES)
    clients.y = clients.y.float()
    clients.x[0], clients.y[0] = 9.96921e36, 9.96921e36
    module = nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 1))
    sim = Simulation("fedavg", module, clients, task="regression", lr=0.01, batch_size=4)
    sim.executor = Batched(sim.executor.client_pool, compiled_loops=loops)
    found = sim.run().stacked
    assert found.loss.isfinite().all() and all(u.isfinite().all() for u in found.update.values())
