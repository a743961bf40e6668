"""Synthetic data sets that are divided already: the group `client` holds each sample's client, for the scheme `natural`.

>>> clients = partition(load("linear_clusters(clusters=3)"), "natural(cluster='cluster')")   # doctest: +SKIP

Every client has its own training and test samples, drawn from its own distribution.
"""

from collections.abc import Callable

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.option_types import check_count, check_not_negative
from unalike._utils.seeds import generator
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import registry

Labels = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""A function from scores [N] to labels [N]."""


@registry.register("linear_clusters")
def linear_clusters(
    clusters: int = 3,
    clients: int = 100,
    points: int = 100,
    features: int = 10,
    seed: int = 0,
    noise: float = 0.1,
) -> Dataset:
    """Regression y = x . theta_c + N(0, noise^2) with one theta_c ~ U[-10, 10]^features per cluster and x ~ N(0, I).

    Each cluster has `clients` clients; each client has `points` training and `points` test samples. One model for all reaches
    an rmse of sqrt(features 100/3 (1 - 1/clusters)) at best, 14.9 for 3 clusters; least squares on one client reaches about
    noise sqrt(1 + (features + 1) / points), 0.106.

    Source: conditioning on local statistics.
    """
    check_not_negative("linear_clusters", noise=noise)
    return _clustered(
        "linear_clusters",
        clusters,
        clients,
        points,
        features,
        seed,
        lambda s, rng: s + rng.normal(0, noise, len(s)),
    )


@registry.register("logistic_clusters")
def logistic_clusters(
    clusters: int = 3, clients: int = 100, points: int = 100, features: int = 10, seed: int = 0
) -> Dataset:
    """Binary labels [x . theta_c > 0] without noise; otherwise as `linear_clusters`."""
    return _clustered(
        "logistic_clusters", clusters, clients, points, features, seed, lambda s, rng: s > 0
    )


def _clustered(
    name: str, clusters: int, clients: int, points: int, features: int, seed: int, label: Labels
) -> Dataset:
    check_count(name, clusters=clusters, clients=clients, points=points, features=features)
    check_count(name, 0, seed=seed)
    theta = generator(seed, name).uniform(-10, 10, (clusters, features))
    cluster = np.repeat(np.arange(clusters), clients)
    parts = []
    for part in (0, 1):
        rng = generator(seed, name, part)
        x = rng.standard_normal((clusters * clients, points, features))
        y = label(np.einsum("kpf,kf->kp", x, theta[cluster]).reshape(-1), rng)
        parts.append((x.reshape(-1, features), y))
    owner = np.tile(np.repeat(np.arange(len(cluster)), points), 2)
    return Dataset(name, parts[0], parts[1], groups={"client": owner, "cluster": cluster[owner]})


@registry.register("synthetic")
def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    features: int = 60,
    classes: int = 10,
    seed: int = 0,
) -> Dataset:
    """Synthetic(alpha, beta) of FedProx (Li et al. 2020): y = argmax(W_k x + b_k) for client k.

    W_k, b_k ~ N(u_k, 1) with u_k ~ N(0, alpha), so alpha sets how much the clients' models differ; x ~ N(v_k, diag(j^-1.2))
    with v_k ~ N(B_k, 1), B_k ~ N(0, beta), so beta sets how much their inputs differ. alpha and beta are standard deviations,
    as in the authors' code. Client k has floor(lognormal(4, 2)) + 50 samples; the last tenth of them test.
    """
    check_count("synthetic", clients=clients, features=features, classes=classes)
    check_count("synthetic", 0, seed=seed)
    check_not_negative("synthetic", alpha=alpha, beta=beta)
    scale = np.arange(1, features + 1) ** -0.6
    splits: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    for k in range(clients):
        rng = generator(seed, "synthetic", k)
        u, mean = rng.normal(0, alpha), rng.normal(rng.normal(0, beta), 1, features)
        w, b = rng.normal(u, 1, (features, classes)), rng.normal(u, 1, classes)
        size = int(rng.lognormal(4, 2)) + 50
        x = mean + scale * rng.standard_normal((size, features))
        y, cut = (x @ w + b).argmax(1), int(0.9 * size)
        for split, rows in zip(splits, (slice(cut), slice(cut, None))):
            split.append((x[rows], y[rows]))
    train, test = (
        (np.concatenate(x), np.concatenate(y)) for x, y in (zip(*split) for split in splits)
    )
    owner = [np.repeat(np.arange(clients), [len(y) for _, y in split]) for split in splits]
    names = [str(c) for c in range(classes)]
    return Dataset("synthetic", train, test, names, {"client": np.concatenate(owner)})


@registry.register("fcube")
def fcube(points: int = 1000, test: int = 1000, seed: int = 0) -> Dataset:
    """FCUBE of NIID-Bench (Li et al. 2022): points of the cube [-1, 1]^3, labeled 0 where the first coordinate is above 0.

    The planes through the origin cut the cube into eight parts. Each of four clients has `points` training samples from two
    opposite parts, in turn of both labels: the labels are even, the inputs differ. The test points are uniform in the cube and
    belong to no client.
    """
    check_count("fcube", points=points, test=test)
    check_count("fcube", 0, seed=seed)
    rng = generator(seed, "fcube")
    side = np.where(np.arange(points) % 2, -1.0, 1.0)[:, None]
    corners = np.array([[1, a, b] for a in (1, -1) for b in (1, -1)])
    x = np.concatenate([side * corner * rng.random((points, 3)) for corner in corners])
    held_out = rng.uniform(-1, 1, (test, 3))
    parts = [(x, (x[:, 0] <= 0).astype(np.int64)) for x in (x, held_out)]
    owner = np.concatenate([np.repeat(np.arange(len(corners)), points), np.full(test, -1)])
    return Dataset("fcube", parts[0], parts[1], ["0", "1"], {"client": owner})


@registry.register("quadratic")
def quadratic(
    sizes: tuple[int, ...] = (600, *[60] * 9), optima: tuple[float, ...] = (10.0, *[0.0] * 9)
) -> Dataset:
    """One quadratic per client: (w + b - e_k)^2 of the model `linear`, where client k has `sizes[k]` equal samples of label e_k.

    The objective, the mean over all samples, is least at w + b = sum_k p_k e_k. Clients with more samples make more steps of a
    given batch size, so that FedAvg settles elsewhere: this is the objective inconsistency of Wang et al. 2020 (FedNova) in its
    smallest form. The test samples are the training samples.
    """
    check_count("quadratic", **{f"sizes[{k}]": size for k, size in enumerate(sizes)})
    if len(sizes) != len(optima):
        raise UnalikeError(
            f"quadratic: found {len(sizes)} sizes and {len(optima)} optima, expected as many of both"
        )
    y = np.repeat(np.asarray(optima, np.float32), sizes)
    pair = np.ones((len(y), 1), np.float32), y
    return Dataset(
        "quadratic",
        pair,
        pair,
        groups={"client": np.tile(np.repeat(np.arange(len(sizes)), sizes), 2)},
    )
