"""FedETF: the balanced loss by hand, the fixed simplex, one round against numpy, what it is for."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, same

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.methods.plan import PlanInputs
from unalike.methods.plans.simplex_head import Fedetf, simplex

SIZES = (7, 3, 1, 5)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}


def test_balanced_softmax_full_batch_step_equals_hand_numbers():
    """One full-batch step of a linear model in float64: the gradient's softmax is n_c^gamma e^(u_c), absent classes have none."""
    rng, gamma = np.random.default_rng(0), 0.7
    x, y = rng.normal(size=(5, 4)), np.array([0, 0, 2, 0, 2])
    module = torch.nn.Sequential(torch.nn.Linear(4, 3)).double()
    w, b = (t.detach().numpy().copy() for t in (module[0].weight, module[0].bias))
    other = (rng.normal(size=(1, 4)), np.array([1]))
    clients = Clients.of((x, y), other, dtype=torch.float64)
    sim = Simulation(f"balanced_softmax(gamma={gamma})", module, clients, batch_size=None, lr=0.1)
    sim.round([0])
    u = np.exp(x @ w.T + b) * np.array([3, 0, 2]) ** gamma
    d = (u / u.sum(1, keepdims=True) - np.eye(3)[y]) / 5
    np.testing.assert_allclose(sim.params["0.weight"].numpy(), w - 0.1 * d.T @ x, rtol=1e-12)
    np.testing.assert_allclose(sim.params["0.bias"].numpy(), b - 0.1 * d.sum(0), rtol=1e-12)
    assert sim.params["0.bias"][1] == b[1]  # nothing is said of the class that the client has not
    assert not sim.run().stacked.shared  # the counts stay on the client


def test_balanced_softmax_gamma_zero_equals_fedavg():
    a, b = (
        Simulation(m, mlp(), Clients.random(SIZES), **WORK)
        for m in ("balanced_softmax(gamma=0)", "fedavg")
    )
    for _ in range(2):
        a.round(), b.round()
    assert same(a.params, b.params)


@pytest.mark.parametrize(
    "y", [np.array([True, False, True]), np.array([0.5, 1.0, 2.0])], ids=["binary", "regression"]
)
def test_balanced_softmax_without_classes_is_refused(y):
    client = ua.ClientData(train=(np.ones((3, 2), np.float32), y))
    with pytest.raises(UnalikeError, match="needs classes"):
        ua.run("balanced_softmax", [client], model="linear", rounds=1, executor="loop")


@pytest.mark.parametrize("width, classes", [(2, 2), (5, 3), (10, 10)])
def test_simplex_vectors_have_equal_angles(width, classes):
    """Length 1, cosine -1/(C-1) between any two, 1e-6 in float32."""
    v = simplex(width, classes)
    expected = (classes * torch.eye(classes) - 1) / (classes - 1)
    torch.testing.assert_close(v.T @ v, expected, rtol=0, atol=1e-6)


def stage(**fields):
    return next(Fedetf(**fields).stages(PlanInputs(4, 3, Model(mlp()), seed=5)))


def test_simplex_model_equals_formula():
    model = stage(scale=4.0, width=6).model
    p, x = model.params, torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    z = torch.tanh(x @ mlp().body.weight.T + mlp().body.bias)
    mu = z @ p["projecting.weight"].T + p["projecting.bias"]
    expected = 4 * (mu / mu.norm(dim=1, keepdim=True)) @ p["head.weight"].T
    torch.testing.assert_close(
        model(p, x, buffers={}).logits, expected.detach(), rtol=1e-5, atol=1e-6
    )
    assert p["head.weight"].shape == (3, 6) and stage().model.params["head.weight"].shape == (3, 5)
    assert same(
        p, stage(scale=4.0, width=6).model.params
    )  # drawn from the run's seed: a resumed run has the same


def test_fedetf_head_is_fixed_and_temperature_learns():
    given = stage()
    sim = Simulation(
        given.method, given.model.module(given.model.params, {}), Clients.random(SIZES), **WORK
    )
    before = sim.params
    cohort = sim.round()
    assert "head.weight" not in cohort.update and torch.equal(
        sim.params["head.weight"], before["head.weight"]
    )
    assert {"encoder.body.weight", "projecting.weight", "scale"} <= set(cohort.update)
    assert sim.params["scale"] != before["scale"]


def test_fedetf_unsupported_models_are_refused():
    with pytest.raises(UnalikeError, match="3 classes and a width of 2"):
        stage(width=2)
    clients = [
        ua.ClientData(train=(np.zeros((3, 2), np.float32), np.zeros(3, np.float32)), test=None)
    ]
    with pytest.raises(UnalikeError, match="fedetf needs classes"):
        ua.run("fedetf", clients, model="linear", rounds=1)
    with pytest.raises(UnalikeError, match="cannot combine"):
        stage(method="perfedavg")


def test_fedetf_clients_with_two_classes_learn_all_three_classes():
    rng = np.random.default_rng(1)
    centres = 2 * rng.normal(size=(3, 4))

    def person(classes):
        y = np.repeat(classes, 10)
        x = (centres[y] + rng.normal(size=(len(y), 4))).astype(np.float32)
        return ua.ClientData(train=(x[::2], y[::2]), test=(x[1::2], y[1::2]))

    people = [person([c, d]) for c, d in ((0, 1), (1, 2), (2, 0), (0, 1))]
    run = ua.run(
        "fedetf",
        people,
        model="mlp(hidden=(8,))",
        rounds=15,
        work=ua.Work(epochs=3, batch_size=5, lr=0.1),
    )
    assert run.history.rounds["accuracy"].iloc[-1] > 0.8 > run.history.rounds["accuracy"].iloc[0]
