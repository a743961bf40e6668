"""Methods that remember clients between rounds end at the minimum of the objective that their weights name."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, plane

SIZES = (6, 60, 24)
UNIFORM = (1, 1, 1)


def _clients():
    """y = w x with a w of its own for every client, so that the minimum depends on the clients' weights."""
    rng = np.random.default_rng(0)
    data = []
    for n in SIZES:
        x = rng.normal(size=(n, 2))
        data.append((x, x @ rng.normal(size=2)))
    return data


def _minimum(data, weights):
    """The minimum of sum_k p_k F_k, p_k ~ `weights`, by the normal equations."""
    left = sum(p * x.T @ x / len(x) for p, (x, _) in zip(weights, data, strict=True))
    right = sum(p * x.T @ y / len(x) for p, (x, y) in zip(weights, data, strict=True))
    return np.linalg.solve(left, right)


@pytest.mark.parametrize("participation", ["full", "partial"])
@pytest.mark.parametrize(
    "spec",
    ["scaffold(weighted={})", "feddyn(alpha=0.5, weighted={})", "feddc(alpha=0.5, weighted={})"],
)
@pytest.mark.parametrize(("weighted", "weights"), [(True, SIZES), (False, UNIFORM)])
def test_memories_end_at_the_minimum_of_the_weighted_objective(
    spec, weighted, weights, participation
):
    data = _clients()
    sim = Simulation(
        spec.format(weighted),
        plane(0.0, 0.0).double(),
        Clients.of(*data, dtype=torch.float64),
        task="regression",
        epochs=3,
        batch_size=None,
        lr=0.3,
    )
    cohorts = [[0, 1, 2]] if participation == "full" else [[0, 1], [1, 2], [0, 2]]
    for number in range(240):
        sim.round(cohorts[number % len(cohorts)])
    found, other = (
        sim.params["head.weight"].numpy()[0],
        _minimum(data, UNIFORM if weighted else SIZES),
    )
    np.testing.assert_allclose(found, _minimum(data, weights), atol=1e-6)
    assert np.abs(found - other).max() > 0.1


@pytest.mark.parametrize(
    "upload",
    [
        "clip(norm=0.1)",
        "random_mask(fraction=0.5, error_feedback=False)",
        "fedlama(phi=2) + topk(fraction=0.5, error_feedback=True)",
    ],
)
@pytest.mark.parametrize("base", ["scaffold", "feddyn(alpha=0.5)", "feddc(alpha=0.5)"])
def test_memories_count_what_uploads_send(base, upload):
    """An update that is shortened, sent in part or withheld moves the memories on both sides alike, or they part for good."""
    data = _clients()
    own = Clients.of(*data, dtype=torch.float64)
    sim = Simulation(
        f"{base} + {upload}",
        plane(0.0, 0.0).double(),
        own,
        task="regression",
        epochs=3,
        batch_size=None,
        lr=0.3,
    )
    for number in range(400):
        sim.round([[0, 1], [1, 2], [0, 2]][number % 3])
    found = sim.params["head.weight"].numpy()[0]
    np.testing.assert_allclose(
        found, _minimum(data, SIZES if base == "feddc(alpha=0.5)" else UNIFORM), atol=1e-4
    )
