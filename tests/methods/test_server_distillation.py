"""FedBE: the models that are drawn, the probabilities of the ensemble and the mean of the students, written with torch modules."""

import numpy as np
import pytest
import torch
from simulation import Clients, Simulation, mlp

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.types import Batch

SIZES = (6, 4, 9)
SHARES = torch.tensor(SIZES) / 19


def drawn_models(spec, models, rng):
    """Two models between those of the clients: independent normal entries, or weights of a Dirichlet distribution."""
    draws = []
    for _ in range(2):
        if spec == "dirichlet":
            a = torch.tensor(rng.dirichlet(3 * SHARES.numpy()), dtype=torch.float32)
            draws.append({n: torch.tensordot(a, w, 1) for n, w in models.items()})
            continue
        draw = {}
        for n, w in models.items():
            mean = torch.tensordot(SHARES, w, 1)
            variance = torch.tensordot(SHARES, (w - mean) ** 2, 1)
            noise = torch.tensor(rng.standard_normal(tuple(mean.shape), dtype=np.float32))
            draw[n] = mean + variance.sqrt() * noise
        draws.append(draw)
    return draws


@pytest.mark.parametrize("drawn", ["gaussian", "dirichlet"])
def test_fedbe_three_steps_equal_torch_adam_on_drawn_ensemble(drawn):
    """Steps on all samples; the mean of the second and the third student is the result."""
    rng = np.random.default_rng(5)
    proxy = Batch(torch.tensor(rng.normal(size=(12, 4)), dtype=torch.float32), torch.arange(12) % 3)
    spec = f"fedbe(steps=3, lr=0.01, samples=2, drawn={drawn!r}, temperature=2)"
    sim = Simulation(spec, mlp(), Clients.random(SIZES), proxy=proxy)
    start, model = sim.params, sim.settings.model
    models = tree.map(lambda u, w: w + u, sim.run().update, start)
    mean = {n: torch.tensordot(SHARES, w, 1) for n, w in models.items()}

    rng = np.random.default_rng(seeds.number(3, "server.bayesian_ensemble", 0))
    members = [tree.row(models, k) for k in range(3)] + [mean, *drawn_models(drawn, models, rng)]
    with torch.no_grad():
        logits = torch.stack([model.module(member, {})(proxy.x) for member in members])
        p = (logits / 2).softmax(2).mean(0)

    student = model.module(mean, {})
    optimizer = torch.optim.Adam(student.parameters(), 0.01)
    students = []
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + np.cos(np.pi * step / 3)) / 2
        q = (student(proxy.x) / 2).softmax(1)
        optimizer.zero_grad()
        (p * (p.log() - q.log())).sum(1).mean().backward()
        optimizer.step()
        students.append({n: w.detach().clone() for n, w in student.named_parameters()})
    sim.round()
    for n, w in sim.params.items():
        torch.testing.assert_close(w, (students[1][n] + students[2][n]) / 2, rtol=1e-4, atol=1e-5)
