"""The alignment of features: three rounds against numpy, centroids by hand, reductions, what it is for."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, same

from unalike._utils.errors import UnalikeError
from unalike.training.wire import wire

SIZES = (7, 3, 1, 5)
WORK = {"epochs": 2, "batch_size": 4, "lr": 0.1}
C, D = "class.centroids", 5


def softmax(v):
    e = np.exp(v - v.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_feature_alignment_loss_equals_formula():
    """Three rounds of one full-batch step of a tanh network in float64; client 1 sits out the second. Class 2 is client 1's."""
    lam, lr, rng = 0.7, 0.1, np.random.default_rng(0)
    labels = [np.array([0, 1, 0, 0]), np.array([2, 2, 1, 2, 0, 2]), np.array([1, 1, 0, 1, 1])]
    data = [(rng.normal(size=(len(y), 4)), y) for y in labels]
    sim = Simulation(
        f"feature_alignment(lam={lam})",
        mlp().double(),
        Clients.of(*data, dtype=torch.float64),
        epochs=1,
        batch_size=None,
        lr=lr,
    )
    names = ("body.weight", "body.bias", "head.weight", "head.bias")
    w = [sim.params[n].numpy().copy() for n in names]
    centroids, known = np.zeros((3, D)), np.zeros(3)
    for ids in ([0, 1, 2], [0, 2], [0, 1, 2]):
        sim.round(ids)
        moved, sums, counts = [], np.zeros((3, D)), np.zeros(3)
        for k in ids:
            x, y = data[k]
            a, b, u, v = w
            z = np.tanh(x @ a.T + b)
            d = (softmax(z @ u.T + v) - np.eye(3)[y]) / len(x)
            dz = d @ u + lam * 2 * known[y][:, None] * (z - centroids[y]) / D / len(x)
            dh = dz * (1 - z**2)
            mine = [a - lr * dh.T @ x, b - lr * dh.sum(0), u - lr * d.T @ z, v - lr * d.sum(0)]
            moved.append(mine)
            z = np.tanh(x @ mine[0].T + mine[1])
            for c in range(3):
                sums[c] += z[y == c].sum(0)
                counts[c] += (y == c).sum()
        p = np.array([len(data[k][1]) for k in ids], float)
        w = [np.tensordot(p / p.sum(), np.stack(t), 1) for t in zip(*moved)]
        some = counts > 0
        centroids[some], known[some] = sums[some] / counts[some][:, None], 1
        for n, t in zip(names, w):
            np.testing.assert_allclose(sim.params[n].numpy(), t, rtol=1e-9)
        np.testing.assert_allclose(
            sim.state.part_states["feature_alignment"][C].numpy(), centroids, rtol=1e-9
        )


def test_feature_alignment_lam_zero_or_first_round_equals_fedavg():
    plain, off, on = (
        Simulation(m, mlp(), Clients.random(SIZES), **WORK)
        for m in ("fedavg", "feature_alignment(lam=0)", "feature_alignment(lam=5)")
    )
    for number in range(3):
        for sim in (plain, off, on):
            sim.round()
        torch.testing.assert_close(off.params, plain.params, rtol=0, atol=0)
        gaps = [float((on.params[n] - w).abs().max()) for n, w in plain.params.items()]
        assert (max(gaps) == 0) == (number == 0)


def test_feature_alignment_with_fedrep_leaves_heads_unchanged():
    """In the head's phase features do not move: the term changes nothing. lam = 0 is FedRep throughout."""
    start = Simulation("fedrep(epochs=2)", mlp(), Clients.random(SIZES), **WORK)
    off = Simulation(
        "fedrep(epochs=2) + feature_alignment(lam=0)", mlp(), Clients.random(SIZES), **WORK
    )
    on = Simulation(
        "fedrep(epochs=2) + feature_alignment(lam=3)", mlp(), Clients.random(SIZES), **WORK
    )
    for sim in (start, off, on):
        sim.round()
        assert same(
            sim.memory(0)["private"], start.memory(0)["private"]
        )  # up to here no centroid is known
    on.state = on.state._replace(params=start.params)
    for sim in (start, off, on):
        sim.round()
    for k in range(len(SIZES)):
        torch.testing.assert_close(
            on.memory(k)["private"], start.memory(k)["private"], rtol=1e-6, atol=1e-7
        )
    torch.testing.assert_close(off.params, start.params, rtol=0, atol=0)
    assert not torch.equal(on.params["body.weight"], start.params["body.weight"])


def test_feature_alignment_moves_features_to_centroids():
    def spread(lam):
        sim = Simulation(
            f"feature_alignment(lam={lam})", mlp(), Clients.random((30, 20, 25), seed=1), **WORK
        )
        for _ in range(8):
            sim.round()
        z = torch.tanh(sim.clients.x @ sim.params["body.weight"].T + sim.params["body.bias"])
        y = sim.clients.y
        return sum(((z[y == c] - z[y == c].mean(0)) ** 2).sum() for c in range(3)).item()

    assert spread(20) < 0.7 * spread(0)


def test_feature_alignment_round_sends_class_counts_and_centroids():
    sim = Simulation("feature_alignment", mlp(), Clients.random(SIZES), **WORK)
    letter = sim.round().stacked.messages["feature_alignment"]
    for k, rows in enumerate(sim.clients.train):
        assert (
            letter["class.counts"][k].tolist()
            == np.bincount(sim.clients.y[rows], minlength=3).tolist()
        )
    items = {(i.direction, i.what): i.bytes for i in wire(sim.method, sim.settings.model)}
    both = 4 * (3 * D + 3)
    assert (
        items["down", "message of feature_alignment"]
        == both
        == items["up", "message of feature_alignment"]
    )


def test_feature_alignment_missing_requirements_are_refused():
    rng = np.random.default_rng(0)
    clients = Clients.of((rng.normal(size=(4, 4)), rng.normal(size=4).astype(np.float32)))
    with pytest.raises(UnalikeError, match="needs classes"):
        Simulation("feature_alignment", mlp(classes=1), clients, task="regression", **WORK).round()

    class Projected(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.projection, self.head = (
                torch.nn.Linear(4, 5),
                torch.nn.Linear(5, 2),
                torch.nn.Linear(5, 3),
            )

        def forward(self, x):
            z = self.body(x)
            self.projection(z)
            return self.head(z)

    with pytest.raises(UnalikeError, match="no `projection`"):
        Simulation("feature_alignment", Projected(), Clients.random(SIZES), **WORK).round()
