"""Synthetic tasks that come divided: each sample's client is in the column `client`, for the scheme `natural`.

>>> clients = partition(load("linear_clusters(clusters=3)"), "natural(cluster='cluster')")   # doctest: +SKIP

Every client has training and test samples of its own, drawn from its own law.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unalike._utils.seeds import generator
from unalike.data import array_checks
from unalike.data.dataset import Dataset
from unalike.data.partitioning.scheme import check_count, check_not_negative
from unalike.data.sources.registry import registry

Labels = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""From scores [N] to labels [N]."""


@registry.register("linear_clusters")
def linear_clusters(
    clusters: int = 3, clients: int = 100, points: int = 100, features: int = 10, seed: int = 0, noise: float = 0.1
) -> Dataset:
    """Regression y = x . theta_c + N(0, noise^2), x ~ N(0, I), theta_c ~ U[-10, 10]^features of the client's cluster.

    `clients` are those of each cluster; each has `points` training and `points` test samples (Local Statistics).
    One model for all reaches rmse sqrt(features 100/3 (1 - 1/clusters)) at best, 14.9 for 3 clusters; least squares on
    one client reach noise sqrt(1 + (features + 1) / points) or so, 0.106.
    """
    check_not_negative("linear_clusters", noise=noise)
    return _clustered(
        "linear_clusters", clusters, clients, points, features, seed, lambda s, rng: s + rng.normal(0, noise, len(s))
    )


@registry.register("logistic_clusters")
def logistic_clusters(
    clusters: int = 3, clients: int = 100, points: int = 100, features: int = 10, seed: int = 0
) -> Dataset:
    """Binary labels [x . theta_c > 0], otherwise as `linear_clusters` and without noise."""
    return _clustered("logistic_clusters", clusters, clients, points, features, seed, lambda s, rng: s > 0)


def _clustered(name: str, clusters: int, clients: int, points: int, features: int, seed: int, label: Labels) -> Dataset:
    check_count(name, clusters=clusters, clients=clients, points=points, features=features)
    check_count(name, 0, seed=seed)
    theta = generator(seed, name).uniform(-10, 10, (clusters, features))
    cluster = np.repeat(np.arange(clusters), clients)
    parts = []
    for part in (0, 1):
        rng = generator(seed, name, part)
        x = rng.standard_normal((clusters * clients, points, features))
        y = label(np.einsum("kpf,kf->kp", x, theta[cluster]).reshape(-1), rng)
        parts.append(array_checks.pair((x.reshape(-1, features), y), name))
    owner = np.tile(np.repeat(np.arange(len(cluster)), points), 2)
    return Dataset(name, parts[0], parts[1], groups={"client": owner, "cluster": cluster[owner]})


@registry.register("synthetic")
def synthetic(
    alpha: float = 1.0, beta: float = 1.0, clients: int = 30, features: int = 60, classes: int = 10, seed: int = 0
) -> Dataset:
    """Synthetic(alpha, beta) of FedProx (Li et al. 2020): y = argmax(W_k x + b_k) for client k.

    W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha): how far the clients' models differ; x ~ N(v_k, diag(j^-1.2)),
    v_k ~ N(B_k, 1), B_k ~ N(0, beta): how far their inputs do. alpha and beta are standard deviations, as in the
    authors' code. Client k has floor(lognormal(4, 2)) + 50 samples, of which the last tenth tests.
    """
    check_count("synthetic", clients=clients, features=features, classes=classes)
    check_count("synthetic", 0, seed=seed)
    check_not_negative("synthetic", alpha=alpha, beta=beta)
    scale = np.arange(1, features + 1) ** -0.6
    parts: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    for k in range(clients):
        rng = generator(seed, "synthetic", k)
        u, mean = rng.normal(0, alpha), rng.normal(rng.normal(0, beta), 1, features)
        w, b = rng.normal(u, 1, (features, classes)), rng.normal(u, 1, classes)
        size = int(rng.lognormal(4, 2)) + 50
        x = mean + scale * rng.standard_normal((size, features))
        y, cut = (x @ w + b).argmax(1), int(0.9 * size)
        for part, rows in zip(parts, (slice(cut), slice(cut, None))):
            part.append((x[rows], y[rows]))
    train, test = (
        array_checks.pair([np.concatenate(columns) for columns in zip(*part)], "synthetic") for part in parts
    )
    owner = [np.repeat(np.arange(clients), [len(y) for _, y in part]) for part in parts]
    names = [str(c) for c in range(classes)]
    return Dataset("synthetic", train, test, names, {"client": np.concatenate(owner)})
