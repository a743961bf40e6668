"""Hidden units in the order of each other: permuted copies, numbers by hand, and networks whose units keep their places."""

from itertools import permutations

import numpy as np
import torch
from simulation import Clients, Simulation, mlp, same
from torch import nn

from unalike.core.hidden_layers import hidden_layers
from unalike.core.model import Model
from unalike.methods.part import Setup
from unalike.methods.parts.matched import Matched, assignments
from unalike.models.cnn import CNN
from unalike.training.functional import aggregate


def permuted(module: nn.Module, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The state of a network with the units of every hidden layer in a random order, written without the part."""
    state = {name: t.clone() for name, t in module.state_dict().items()}
    for layer in hidden_layers(Model(module)):
        order = torch.from_numpy(rng.permutation(len(state[layer.units[0]])))
        for name in layer.units:
            state[name] = state[name][order]
        reader = state[layer.reader].unflatten(1, (len(order), -1))
        state[layer.reader] = reader[:, order].flatten(1, 2)
    return state


def small_cnn() -> nn.Module:
    """Two convolutions with batch norm, whose channels a linear layer reads at four positions each."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cnn = CNN((1, 4, 4), classes=3, channels=(4, 5), hidden=6, norm="batch").double()
        for t in cnn.state_dict().values():
            if t.is_floating_point():
                t.copy_(torch.rand_like(t) + 0.1)
        return cnn


def test_permuted_copies_of_a_network_give_it_back():
    rng = np.random.default_rng(0)
    cnn = small_cnn()
    copies = [permuted(cnn, rng) for _ in range(4)]
    x = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    moved = small_cnn()
    moved.load_state_dict(copies[0])
    torch.testing.assert_close(moved.eval()(x), cnn.eval()(x))
    start = cnn.state_dict()
    buffers = [name for name, _ in cnn.named_buffers()]
    matched, _ = aggregate("matched", start, copies, model=cnn, buffers=buffers)
    plain, _ = aggregate("fedavg", start, copies, model=cnn, buffers=buffers)
    assert not torch.allclose(plain["convolutions.0.weight"], start["convolutions.0.weight"])
    for name, t in start.items():
        torch.testing.assert_close(matched[name], t, rtol=1e-12, atol=1e-12)


def test_assignments_of_two_passes_equal_best_of_all_orders():
    """Four clients with three units: each in turn takes the best of six orders, given the others as they stand."""
    rng = np.random.default_rng(1)
    own = rng.normal(size=(4, 3, 2))
    to = rng.normal(size=(3, 2))
    everyone = [list(order) for order in permutations(range(3))]
    placed = np.zeros_like(own)
    for _ in range(2):
        for k in range(4):
            placed[k] = 0
            others = to + placed.sum(0)
            best = max(everyone, key=lambda order: (own[k][order] * others).sum())
            placed[k] = own[k][best]
    found = assignments(torch.from_numpy(own), torch.from_numpy(to), passes=2)
    for k, order in enumerate(found):
        np.testing.assert_array_equal(own[k][order], placed[k])


def test_units_that_stay_in_place_give_the_bits_of_the_base_method():
    sims = []
    for method in ("fedavg", "matched", "matched + private(select='head')", "fedper"):
        sim = Simulation(method, mlp(), Clients.random((7, 3, 5)), epochs=1, batch_size=4, lr=0.01)
        sim.round(), sim.round()
        sims.append(sim)
    assert same(sims[0].params, sims[1].params)
    assert same(sims[2].params, sims[3].params)


class Shortcut(nn.Module):
    """A hidden layer to which its own input is added, so that each unit has its place."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + torch.relu(self.body(x)))


def test_network_with_shortcuts_is_averaged_and_noted():
    torch.manual_seed(0)
    module = Shortcut()
    clients = Clients.random((7, 5))
    matched, plain = (
        Simulation(m, module, clients, epochs=1, lr=1.0) for m in ("matched", "fedavg")
    )
    matched.round(), plain.round()
    assert same(matched.params, plain.params)
    setup = Setup(matched.settings, participants=2, clients=2, rounds=1, steps=(1, 1))
    assert "units cannot change places" in Matched().shortfall(setup)
    chain = setup._replace(settings=Simulation("matched", mlp(), clients, epochs=1).settings)
    assert not Matched().shortfall(chain)
