import numpy as np
import pytest

from unalike._utils.errors import UnalikeError
from unalike.data import load, partition


def least_squares(x, y):
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]


def rmse(theta, x, y):
    return np.sqrt(np.mean((np.c_[x, np.ones(len(x))] @ theta - y) ** 2))


def test_linear_clusters_errors_match_formula():
    """One model for all: sqrt(10 * 100/3 * (1 - 1/c)) over draws; on one client: .1 sqrt(1 + 10/89) = .1055."""
    shared = []
    for seed in range(12):
        data = load(f"linear_clusters(clients=5, seed={seed})")
        x, y = (t.double().numpy() for t in data.train)
        shared.append(rmse(least_squares(x, y), *(t.double().numpy() for t in data.test)))
    assert np.sqrt(np.mean(np.square(shared))) == pytest.approx(14.91, rel=0.12)
    clients = partition(load("linear_clusters(clients=20)"), "natural(cluster='cluster')")
    assert len(clients) == 60 and set(clients.sizes) == {100} == set(clients.test.sizes)
    assert clients.task.name == "regression" and np.bincount(clients.clusters).tolist() == [20] * 3
    alone = [
        rmse(least_squares(*(t.numpy() for t in c.train)), *(t.numpy() for t in c.test))
        for c in clients
    ]
    assert np.mean(alone) == pytest.approx(0.1055, rel=0.04)


def test_linear_clusters_clients_of_cluster_share_coefficients():
    clients = partition(
        load("linear_clusters(clusters=2, clients=2, features=3)"), "natural(cluster='cluster')"
    )
    theta = np.array([least_squares(*(t.numpy() for t in client.train)) for client in clients])
    assert np.abs(theta[0] - theta[1]).max() < 0.2 and np.abs(theta[1] - theta[2]).max() > 1


def test_logistic_clusters_are_binary_and_balanced():
    data = load("logistic_clusters(clusters=2, clients=30)")
    assert data.task.name == "binary" and float(data.train[1].float().mean()) == pytest.approx(
        0.5, abs=0.05
    )


def test_synthetic_heterogeneity_grows_with_alpha_and_beta():
    data = load("synthetic(alpha=0, beta=0, clients=40)")
    clients = partition(data, "natural")
    assert len(clients) == 40 and clients.input_shape == (60,) and len(clients.classes) == 10
    assert clients.sizes.min() >= 45 and np.median(clients.sizes) < 400
    spread = [
        np.std(
            [
                float(c.train[0].mean())
                for c in partition(load(f"synthetic(beta={beta}, clients=40)"), "natural")
            ]
        )
        for beta in (0, 3)
    ]
    assert spread[1] > 5 * spread[0]


def test_synthetic_follows_seed_and_refuses_invalid_counts():
    prints = [load("synthetic(clients=3)", seed=seed).fingerprint for seed in (0, np.int64(0), 1)]
    assert prints[0] == prints[1] != prints[2]
    for spec in (
        "linear_clusters(clusters=0)",
        "linear_clusters(seed=-1)",
        "logistic_clusters(seed=-1)",
    ):
        with pytest.raises(UnalikeError, match="expected a whole number of"):
            load(spec)
    for spec in ("linear_clusters(noise=-1)", "synthetic(alpha=-1)", "synthetic(beta=-1)"):
        with pytest.raises(UnalikeError, match="=-1, expected a finite number of 0 or more"):
            load(spec)
