"""Floco: centers by hand, a step against numpy, regions of clients, and its limit case."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, same
from torch import nn

import unalike as ua
from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.methods.parts.connected_modes import ENDPOINTS, MIXTURE, ConnectedModes, centers
from unalike.methods.plan import PlanInputs
from unalike.methods.plans.connected_heads import Floco, MixedHead

SIZES = (7, 3, 5)
WHOLE = {"batch_size": None, "epochs": 1, "lr": 0.1}


def simulated(endpoints, method=None):
    """A federation under the model that the plan makes for 4 rounds, by its method or another one."""
    inputs = PlanInputs(clients=3, rounds=4, model=Model(mlp()))
    given = next(Floco(endpoints=endpoints).stages(inputs))
    module = given.model.module(given.model.params, {})
    return Simulation(method or given.method, module, Clients.random(SIZES), **WHOLE)


def test_opposite_gradients_get_a_corner_and_the_edge_that_faces_it():
    """Components +-1 and 0: the projection of (1, 0, 0) is the corner, that of (-1, 0, 0) half of each other endpoint."""
    found = centers(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), endpoints=3)
    expected = torch.tensor([[1, 0, 0], [0, 0.5, 0.5]], dtype=torch.float64)
    # which of two equal entries counts as the larger one may turn on the last bit
    found = found if found[0, 0] > 0.5 else found.flip(0)
    torch.testing.assert_close(found, expected)


def test_equal_gradients_get_the_center_of_the_simplex():
    found = centers(torch.ones(4, 6), endpoints=2)
    torch.testing.assert_close(found, torch.full((4, 2), 0.5, dtype=torch.float64))


def test_size_of_the_simplex_is_the_one_that_spreads_clients_most():
    """Components -0.1, 0 and 0.1: sizes of 0.1 and less make corners of the outer ones, size 1 would make 0.45 and 0.55."""
    found = centers(torch.tensor([[-0.1], [0.0], [0.1]]), endpoints=2)
    torch.testing.assert_close(found[1], torch.full((2,), 0.5, dtype=torch.float64))
    assert sorted(found[[0, 2], 0].tolist()) == pytest.approx([0, 1])


def head_step(w, b, z, y, a, lr):
    """Endpoints [M, C, D] and bias [C] after a step of gradient descent under the weights a [M]."""
    scores = z @ np.tensordot(a, w, 1).T + b
    p = np.exp(scores)
    d = (p / p.sum(1, keepdims=True) - np.eye(len(b))[y]) / len(y)
    return w - lr * a[:, None, None] * (d.T @ z), b - lr * d.sum(0)


def test_each_endpoint_moves_by_its_weight_times_the_gradient_of_the_head():
    """A full-batch step of one client on the whole simplex, and one in its region, against numpy in float64."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), np.array([0, 1, 2, 0, 1])
    clients = Clients.of((x, y), dtype=torch.float64)
    module = nn.Sequential()
    module.head = MixedHead(4, 3, endpoints=2)
    sim = Simulation("connected_modes(after=1, radius=0.4)", module.double(), clients, **WHOLE)
    w, b = (sim.params[n].numpy().copy() for n in (ENDPOINTS, "head.bias"))

    of_first = seeds.generator(3, "connected_modes", 0, 0)
    w, b = head_step(w, b, x, y, of_first.dirichlet([1.0, 1.0]), lr=0.1)
    sim.round()
    np.testing.assert_allclose(sim.params[ENDPOINTS].numpy(), w, rtol=1e-6)

    # of one client the center is that of the simplex
    of_second = seeds.generator(3, "connected_modes", 1, 0)
    of_second.dirichlet([1.0, 1.0])
    direction = of_second.uniform(-1, 1, 2)
    a = 0.5 + of_second.uniform(0, 0.4) * direction / abs(direction).sum()
    w, b = head_step(w, b, x, y, a / a.sum(), lr=0.1)
    sim.round()
    np.testing.assert_allclose(sim.params[ENDPOINTS].numpy(), w, rtol=1e-6)
    np.testing.assert_allclose(sim.params["head.bias"].numpy(), b, rtol=1e-6)


def test_clients_of_the_round_get_regions_and_the_others_the_whole_simplex():
    sim = simulated(endpoints=3)
    part = next(p for p in sim.method.parts if isinstance(p, ConnectedModes))
    assert part.after == 2
    sim.round([0, 1, 2])
    assert not sim.state.part_states.get("connected_modes")
    moved = sim.round([0, 2]).update[ENDPOINTS]
    found = sim.state.part_states["connected_modes"]
    expected = centers(-moved.flatten(1), endpoints=3).float()
    assert set(found) == {"0", "2"}
    torch.testing.assert_close(torch.stack([found["0"], found["2"]]), expected)
    sim.round([0, 1])
    assert same(found, sim.state.part_states["connected_modes"])


def test_floco_with_one_endpoint_is_its_method():
    with_part, plain = simulated(1), simulated(1, "fedavg")
    for _ in range(3):
        with_part.round(), plain.round()
    assert same(with_part.params, plain.params)


def test_client_is_evaluated_at_its_center_and_the_shared_model_at_that_of_the_simplex():
    model = Model(nn.Sequential(nn.Identity(), nn.Linear(2, 2)))
    params = {MIXTURE: torch.tensor([0.5, 0.5])}
    center = torch.tensor([1.0, 0.0])
    personal = ConnectedModes().personal(model, params, {"center": center})
    assert torch.equal(personal[MIXTURE], center)
    assert ConnectedModes().personal(model, params, {}) is params


def test_floco_without_classes_is_refused():
    labels = np.zeros(3, np.float32)
    clients = [ua.ClientData(train=(np.zeros((3, 2), np.float32), labels), test=None)]
    with pytest.raises(UnalikeError, match="floco needs classes"):
        ua.run("floco", clients, model="linear", rounds=1)
