"""The distance between the samples of every two clients: the cost of optimal transport from one set to the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import torch

from unalike.data.population import Population


def transport_costs(population: Population, samples: int, seed: int) -> list[list[float]]:
    """The mean cost of moving client i's training samples onto client j's, [K][K] (POT, extra `studies`).

    A sample is an input with its label: moving (x, y) to (x', y') costs |x - x'|^2 / D, the inputs scaled to standard deviation 1
    over all clients, and 1 more where the labels differ. At most `samples` of a client count, drawn under the seed.
    """
    import ot

    costs = np.zeros((len(population), len(population)))
    drawn = list(_drawn(population, samples, seed))
    scale = float(torch.cat([x for x, _ in drawn]).std(0).square().mean())
    for i, j in combinations(range(len(drawn)), 2):
        (x, y), (others, labels) = drawn[i], drawn[j]
        inputs = torch.cdist(x, others).square() / (x.shape[1] * scale)
        cost = inputs + (y[:, None] != labels[None, :])
        costs[i, j] = costs[j, i] = ot.emd2([], [], cost.numpy())
    return costs.tolist()


def _drawn(population: Population, samples: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """At most `samples` training samples of each client, as rows, and their labels."""
    rng = np.random.default_rng(seed)
    for client in range(len(population)):
        rows = population.train[client]
        chosen = torch.as_tensor(rng.permutation(rows)[:samples])
        yield population.x[chosen].double().flatten(1), population.y[chosen]
