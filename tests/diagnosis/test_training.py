"""The measures of a few rounds of training."""

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.core.model import Model
from unalike.core.tasks.registry import find_task
from unalike.data.population import Population
from unalike.diagnosis.training import FOLDS, cancelled, cancelled_gradients, gradient_products


def test_cancelled_share_of_equal_opposite_and_orthogonal_movements():
    half = np.array([0.5, 0.5])
    assert cancelled(np.array([[4.0, 4.0], [4.0, 4.0]]), half) == pytest.approx(0)
    assert cancelled(np.array([[4.0, -4.0], [-4.0, 4.0]]), half) == pytest.approx(1)
    assert cancelled(np.eye(2), half) == pytest.approx(1 / 2)
    assert cancelled(np.zeros((2, 2)), half) == 0


def test_cancelled_share_of_weighted_movements_by_hand():
    # movements 2 and -1 on a line with weights 3/4 and 1/4: mean 5/4, mean square 13/4
    assert cancelled(np.array([[4.0, -2.0], [-2.0, 1.0]]), np.array([0.75, 0.25])) == pytest.approx(
        1 - (25 / 16) / (13 / 4)
    )


def test_cancelled_gradients_leave_the_noise_of_samples_out():
    rng, clients, size = np.random.default_rng(0), 40, 500
    common = rng.normal(size=size) / np.sqrt(size)
    parts = common + rng.normal(size=(clients, FOLDS, size)) / np.sqrt(
        size
    )  # clients differ by noise alone
    rows = parts.reshape(clients * FOLDS, size)
    products = (rows @ rows.T).reshape(clients, FOLDS, clients, FOLDS)
    weights = np.full(clients, 1 / clients)
    assert cancelled(products.mean((1, 3)), weights) > 0.15
    assert cancelled_gradients(products, weights) < 0.03


def test_gradient_products_equal_those_of_autograd():
    rng = np.random.default_rng(0)
    clients = [
        ua.ClientData(train=(rng.normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2))
        for _ in range(2)
    ]
    population, model = Population.of(clients), Model(torch.nn.Linear(3, 2))
    products = gradient_products(
        model,
        model.params,
        model.buffers,
        population=population,
        task=find_task("classification"),
        seed=0,
    )
    whole = []
    for client in clients:
        module = model.module(model.params, model.buffers)
        torch.nn.functional.cross_entropy(module(client.train[0]), client.train[1]).backward()
        whole.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    # the mean over parts of equal size is the gradient of all samples
    expected = torch.stack(whole) @ torch.stack(whole).T
    assert products.mean((1, 3)) == pytest.approx(expected.numpy(), rel=1e-4)


def test_training_measures_of_skewed_clients_lie_above_iid(trained):
    drift, cosine = trained.measures["drift"], trained.measures["cosine"]
    assert drift.scale["iid"] < drift.value and cosine.value < cosine.scale["iid"]
    assert list(drift.scale)[:3] == ["iid", "Dir(1)", "Dir(0.1)"]
    assert drift.low <= drift.value <= drift.high
    cosines = trained.training.cosines
    assert cosines.shape == (8, 8) and cosines.diagonal() == pytest.approx(1)
    assert [layer.name for layer in trained.training.layers] == ["head.weight"]


def test_training_drift_matches_the_recorder():
    clients = ua.partition(ua.load("digits"), "dirichlet(alpha=0.3)", clients=5, seed=1)
    found = ua.diagnose(clients, rounds=1, model="linear", progress=False)
    table = ua.run(
        "fedavg", clients, model="linear", rounds=1, record="server + updates", progress=False
    ).records
    norms = table[(table["quantity"] == "update_norm") & (table["layer"] == "")].sort_values(
        "client"
    )["value"]
    step = table[(table["quantity"] == "step_norm") & (table["layer"] == "")]["value"].item()
    weights = clients.sizes / clients.sizes.sum()
    assert found.measures["drift"].value == pytest.approx(
        1 - step**2 / (weights @ norms**2), abs=1e-4
    )


def test_clusters_by_gradients_are_found_where_labels_are_swapped(plant):
    clients = plant([60] * 12, labels_of=lambda k: [0, 1, 2, 3] if k < 6 else [1, 0, 3, 2])
    found = ua.diagnose(clients, rounds=3, model="linear", progress=False)
    by = {clusters.basis: clusters for clusters in found.clusters}
    assert by["gradients"].found and by["gradients"].members.tolist() == [0] * 6 + [1] * 6
    assert "label distributions" not in by  # they are equal


def test_clusters_by_gradients_none_in_iid_data(plant):
    alarms = 0
    for seed in range(5):
        found = ua.diagnose(
            plant([48] * 8, seed=seed), rounds=1, model="linear", seed=seed, progress=False
        )
        alarms += any(clusters.found for clusters in found.clusters)
    assert alarms <= 1
