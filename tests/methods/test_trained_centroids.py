"""FedTGP: the server's training of centroids with a torch module, its margin by hand, and who has a centroid."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp, same
from torch import nn

from unalike.methods.parts.trained_centroids import widest_gap

SIZES = (7, 3, 5)
WORK = {"epochs": 1, "batch_size": 4, "lr": 0.1}


def test_widest_gap_is_largest_distance_to_nearest_other_class():
    """Centers 0, 3 and 7 on a line: the nearest others are 3, 3 and 4 away."""
    means = torch.tensor([[-1.0], [1.0], [3.0], [7.0]])
    assert widest_gap(means, torch.tensor([0, 0, 1, 2])).item() == 4
    assert widest_gap(means, torch.tensor([1, 1, 1, 1])).item() == float("inf")


@pytest.mark.parametrize("margin", [0.3, 100.0])
def test_fedtgp_two_rounds_equal_torch_sgd_on_embeddings(margin):
    """One batch holds all means, so that their order does not matter; the margin is 0.3, or the widest gap."""
    clients = Clients.random(SIZES, dtype=torch.float64)
    spec = f"fedtgp(lr=0.5, epochs=3, margin={margin})"
    sim = Simulation(spec, mlp().double(), clients, **WORK)
    start = sim.state.part_states["trained_centroids"]
    vectors = nn.Embedding(3, 5).double()
    hidden = nn.Linear(5, 5).double()
    out = nn.Linear(5, 5).double()
    network = nn.Sequential(vectors, hidden, nn.ReLU(), out)
    values = [start["network.vectors"]]
    values += [start[f"network.{layer}"] for layer in ("hidden.weight", "hidden.bias")]
    values += [start[f"network.{layer}"] for layer in ("out.weight", "out.bias")]
    for parameter, value in zip(network.parameters(), values):
        parameter.data.copy_(value)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(2):
        message = sim.round().stacked.messages["trained_centroids"]
        means, y = [], []
        for k in range(3):
            for c in np.unique(clients.y[clients.train[k]]):
                means.append(message["class.means"][k, c])
                y.append(int(c))
        means, y = torch.stack(means), torch.tensor(y)
        centers = {c: means[y == c].mean(0) for c in y.unique().tolist()}
        gaps = []
        for c, center in centers.items():
            gaps.append(min((center - other).norm() for j, other in centers.items() if j != c))
        m = min(margin, float(max(gaps)))
        for _ in range(3):
            made = network(torch.arange(3))
            distances = (means[:, None] - made[None]).norm(dim=2)
            scores = -distances - m * nn.functional.one_hot(y, 3)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, y).backward()
            optimizer.step()
        found = sim.state.part_states["trained_centroids"]
        torch.testing.assert_close(found["class.centroids"], network(torch.arange(3)).detach())
        assert found["class.known"].tolist() == [float(c in centers) for c in range(3)]


def test_fedtgp_without_term_is_local_only():
    sims = []
    for method in ("fedtgp(lam=0, epochs=1)", "local_only"):
        sim = Simulation(method, mlp(), Clients.random(SIZES), **WORK)
        sim.round(), sim.round()
        sims.append(sim)
    for k in range(3):
        assert same(sims[0].memory(k)["private"], sims[1].memory(k)["private"])
