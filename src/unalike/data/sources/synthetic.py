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

    def noisy(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return scores + rng.normal(0, noise, len(scores))

    return _clustered("linear_clusters", clusters, clients, points, features, seed, noisy)


@registry.register("logistic_clusters")
def logistic_clusters(
    clusters: int = 3, clients: int = 100, points: int = 100, features: int = 10, seed: int = 0
) -> Dataset:
    """Binary labels [x . theta_c > 0] without noise; otherwise as `linear_clusters`."""

    def is_positive(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return scores > 0

    return _clustered("logistic_clusters", clusters, clients, points, features, seed, is_positive)


def _clustered(
    name: str, clusters: int, clients: int, points: int, features: int, seed: int, label: Labels
) -> Dataset:
    """Training and test samples of linear models that differ between clusters; `label` makes labels of their scores."""
    check_count(name, clusters=clusters, clients=clients, points=points, features=features)
    check_count(name, 0, seed=seed)
    theta = generator(seed, name).uniform(-10, 10, (clusters, features))
    cluster = np.repeat(np.arange(clusters), clients)
    splits = []
    for split in (0, 1):
        rng = generator(seed, name, split)
        x = rng.standard_normal((clusters * clients, points, features))
        scores = np.einsum("kpf,kf->kp", x, theta[cluster])
        y = label(scores.reshape(-1), rng)
        splits.append((x.reshape(-1, features), y))
    train, test = splits
    # The same clients, in the same order, have training and test samples.
    client = np.tile(np.repeat(np.arange(len(cluster)), points), 2)
    return Dataset(name, train, test, groups={"client": client, "cluster": cluster[client]})


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
    training, tests = [], []
    for k in range(clients):
        # The client's model and the mean of its inputs.
        rng = generator(seed, "synthetic", k)
        u = rng.normal(0, alpha)
        mean = rng.normal(rng.normal(0, beta), 1, features)
        w = rng.normal(u, 1, (features, classes))
        b = rng.normal(u, 1, classes)

        size = int(rng.lognormal(4, 2)) + 50
        x = mean + scale * rng.standard_normal((size, features))
        y = (x @ w + b).argmax(1)
        cut = int(0.9 * size)
        training.append((x[:cut], y[:cut]))
        tests.append((x[cut:], y[cut:]))
    sizes = [len(y) for _, y in (*training, *tests)]
    client = np.repeat(np.tile(np.arange(clients), 2), sizes)
    return Dataset(
        name="synthetic",
        train=_concatenated(training),
        test=_concatenated(tests),
        classes=[str(c) for c in range(classes)],
        groups={"client": client},
    )


def _concatenated(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The samples of several clients as one pair (x, y)."""
    x = np.concatenate([x for x, _ in pairs])
    y = np.concatenate([y for _, y in pairs])
    return x, y


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
    # A client has a corner of the cube and the opposite one, from which its points come in turn.
    side = np.where(np.arange(points) % 2, -1.0, 1.0)[:, None]
    corners = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [1, -1, -1]])
    x = np.concatenate([side * corner * rng.random((points, 3)) for corner in corners])
    y = (x[:, 0] <= 0).astype(np.int64)
    test_x = rng.uniform(-1, 1, (test, 3))
    test_y = (test_x[:, 0] <= 0).astype(np.int64)
    client = np.repeat(np.arange(len(corners)), points)
    return Dataset(
        name="fcube",
        train=(x, y),
        test=(test_x, test_y),
        classes=["0", "1"],
        groups={"client": np.concatenate([client, np.full(test, -1)])},
    )


@registry.register("quadratic")
def quadratic(
    sizes: tuple[int, ...] = (600, *[60] * 9), optima: tuple[float, ...] = (10.0, *[0.0] * 9)
) -> Dataset:
    """One quadratic per client: (w + b - e_k)^2 of the model `linear`, where client k has `sizes[k]` equal samples of label e_k.

    The objective, the mean over all samples, is least at w + b = sum_k p_k e_k. Clients with more samples make more steps of a
    given batch size, so that FedAvg settles elsewhere: this is the objective inconsistency of Wang et al. 2020 (FedNova) in its
    smallest form. The test samples are the training samples.
    """
    counts = {f"sizes[{k}]": size for k, size in enumerate(sizes)}
    check_count("quadratic", **counts)
    if len(sizes) != len(optima):
        raise UnalikeError(
            f"quadratic: found {len(sizes)} sizes and {len(optima)} optima, expected as many of "
            "both"
        )
    y = np.repeat(np.asarray(optima, np.float32), sizes)
    x = np.ones((len(y), 1), np.float32)
    client = np.repeat(np.arange(len(sizes)), sizes)
    return Dataset("quadratic", (x, y), (x, y), groups={"client": np.tile(client, 2)})
