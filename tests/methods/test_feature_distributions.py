"""pFedFDA: heads of Gaussian features, computed by NumPy from the samples of three clients."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp

from unalike._utils.errors import UnalikeError
from unalike.methods.parts.feature_distributions import Features, Gaussians, best_pair

CLASSES, WIDTH = 3, 5
GRID = np.linspace(0, 1, 6)
LABELS = [[0, 0, 1, 1, 1, 0, 2], [2, 2, 2, 2], [0, 1, 0, 1, 0, 1]]
"""A class with one sample, clients without some of the classes, and one with a single class."""


def clients():
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(CLASSES, 4))
    samples = []
    for labels in LABELS:
        y = np.array(labels)
        x = (means[y] + rng.normal(size=(len(y), 4))).astype(np.float32)
        samples.append((torch.from_numpy(x), torch.from_numpy(y)))
    return samples


def features_of(params, x):
    weight, bias = (params[f"body.{n}"].double().numpy() for n in ("weight", "bias"))
    return np.tanh(x.double().numpy() @ weight.T + bias)


def estimate(z, y, absent):
    """Means by class and the common covariance, one sample after the other."""
    means = absent.copy()
    for c in set(y.tolist()):
        means[c] = z[y == c].mean(0)
    scatter = sum(np.outer(a - means[c], a - means[c]) for a, c in zip(z, y, strict=True))
    return means, scatter / max(len(y) - 1, 1) + np.eye(WIDTH)


def logits(z, means, covariance, counts):
    """log p_c N(z; m_c, S) but for what all classes have in common."""
    shares = counts / counts.sum() + 1e-4
    log_p = np.log(shares / shares.sum())
    gaps = z[:, None] - means
    distances = np.einsum("bci,ij,bcj->bc", gaps, np.linalg.inv(covariance), gaps)
    return log_p - distances / 2


def log_softmax(u):
    top = u.max(1, keepdims=True)
    return u - top - np.log(np.exp(u - top).sum(1, keepdims=True))


def mixture(own, others, beta, beta_covariance):
    return (
        beta * own[0] + (1 - beta) * others[0],
        beta_covariance * own[1] + (1 - beta_covariance) * others[1],
    )


def one_round(method, executor="loop"):
    """The simulation after a round that leaves bodies as they are."""
    sim = Simulation(method, mlp(), Clients.of(*clients()), executor=executor, lr=1e-12)
    sim.round()
    return sim


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_pfedfda_mixes_the_distributions_and_predicts_by_their_densities(executor, beta):
    sim = one_round(f"pfedfda(beta={beta})", executor)
    start = mlp()
    first = (start.get_parameter("head.weight").detach().double().numpy(), np.eye(WIDTH))
    shared = [np.zeros((CLASSES, WIDTH)), np.zeros((WIDTH, WIDTH))]
    for number, (x, y) in enumerate(clients()):
        z = features_of(sim.params, x)
        mixed = mixture(estimate(z, y.numpy(), first[0]), first, beta, beta)
        share = len(y) / sum(map(len, LABELS))
        shared = [a + share * b for a, b in zip(shared, mixed, strict=True)]
        # logits may differ by what is the same for all classes
        head = {
            n: t.double().numpy() for n, t in sim.memory(number)["feature_distributions"].items()
        }
        found = z @ head["head.weight"].T + head["head.bias"]
        wanted = logits(z, *mixed, np.bincount(y, minlength=CLASSES))
        np.testing.assert_allclose(log_softmax(found), log_softmax(wanted), atol=2e-4)
    state = sim.state.part_states["feature_distributions"]
    np.testing.assert_allclose(state["features.means"].double().numpy(), shared[0], atol=1e-5)
    np.testing.assert_allclose(state["features.covariance"].double().numpy(), shared[1], atol=1e-5)


def test_pfedfda_chooses_the_mixture_whose_heads_predict_the_other_fold_best():
    rng = np.random.default_rng(2)
    y = np.array([0] * 7 + [1] * 6 + [2])
    fold = np.arange(len(y)) % 2
    centers = 0.7 * rng.normal(size=(CLASSES, WIDTH))
    z = centers[y] + rng.normal(size=(len(y), WIDTH))
    received = (centers + 0.7 * rng.normal(size=centers.shape), 2 * np.eye(WIDTH))
    counts = np.bincount(y, minlength=CLASSES)
    losses = np.zeros((len(GRID), len(GRID)))
    for f in (0, 1):
        of_other = estimate(z[fold != f], y[fold != f], received[0])
        # the only sample of a class has no other fold
        tested = (fold == f) & (counts[y] > 1)
        for i, j in np.ndindex(losses.shape):
            mixed = mixture(of_other, received, GRID[i], GRID[j])
            u = log_softmax(logits(z[tested], *mixed, counts))
            losses[i, j] -= u[np.arange(len(u)), y[tested]].mean()
    best = np.unravel_index(losses.argmin(), losses.shape)
    assert best[0] not in (0, 5)

    member = torch.zeros(len(y), 2, CLASSES)
    member[torch.arange(len(y)), torch.from_numpy(fold), torch.from_numpy(y)] = 1
    samples = [
        Features(torch.from_numpy(z).float()[rows], member[rows])
        for rows in (slice(9), slice(9, 14))
    ]
    means, covariance = (torch.from_numpy(t).float() for t in received)
    found = best_pair(samples, Gaussians(means, covariance), ridge=1.0)
    assert [round(5 * float(beta)) for beta in found] == [*best]


def test_pfedfda_keeps_a_constant_head_in_a_round_and_its_executors_agree():
    looped = Simulation("pfedfda", mlp(), Clients.of(*clients()), lr=0.2)
    stacked = Simulation("pfedfda", mlp(), Clients.of(*clients()), lr=0.2, executor="batched")
    for sim in (looped, stacked):
        sim.round()
        sim.round()
    torch.testing.assert_close(looped.params, stacked.params, atol=1e-5, rtol=1e-4)
    for client in range(len(LABELS)):
        torch.testing.assert_close(
            looped.memory(client), stacked.memory(client), atol=1e-4, rtol=1e-3
        )


def test_pfedfda_refuses_a_head_without_biases():
    net = torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, 3, bias=False))
    with pytest.raises(UnalikeError, match="found a head without biases"):
        Simulation("pfedfda", net, Clients.of(*clients()), lr=0.2)
