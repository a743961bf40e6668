"""A sampler that takes its share of the cohort from each kind of clients, by the directions of their updates."""

from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from unalike.core import tree
from unalike.core.types import Tree
from unalike.methods.part import part
from unalike.methods.parts.samplers import inclusion_chances, systematic
from unalike.methods.sampler import Candidates, Choice, CohortOutcome, Sampler

DIRECTIONS = "directions"
"""State [N, S]: a sketch of the direction of a client's last update, of norm 1; 0 before its first one."""
SKETCH_NUMBERS = 32


@part
class CohortByCluster(Sampler):
    """A draw with the chances min(1, m n_k / n) that takes from each cluster its share (Fraboni et al. 2021, algorithm 2).

    The draw is that of `cohort_by_size`, on a line on which the clients of one cluster stand together: the m stretches of length 1
    are the paper's m distributions, which hold similar clients. Add `uniform`: the mean with equal weights is without bias, as
    there, and varies less from round to round, since no kind of clients is left out. Clusters gather around the `clusters` clients
    that are farthest from each other, by the Euclidean distance of update directions; those without an update yet are a cluster.
    One cluster is `cohort_by_size`.

    The paper compares whole updates by their angle and clusters by Ward's method; here the server keeps 32 numbers of each
    update, sums of its entries with random signs, whose angles are about the same.
    """

    clusters: Annotated[int, Field(ge=1)] = 5

    needs = "updates"
    decides_by: ClassVar[str] = "their numbers of samples and the directions of their updates"

    def choice_init(self, clients: int) -> Tree:
        return {DIRECTIONS: torch.zeros(clients, SKETCH_NUMBERS)}

    def choose(self, candidates: Candidates, state: Tree) -> Choice:
        ids = candidates.numbers
        rng = candidates.generator
        clusters = farthest_first(state[DIRECTIONS].numpy(force=True)[ids], self.clusters)
        # by cluster, and by chance within each
        shuffled = rng.permutation(len(ids))
        order = shuffled[np.argsort(clusters[shuffled], kind="stable")]
        chances = inclusion_chances(candidates.sizes[ids], candidates.size)
        places = systematic(chances, order, rng)
        reasons = [f"cluster {number}" for number in clusters[places].tolist()]
        clients = candidates.at(places)
        return Choice(clients, dict(zip(clients, reasons)))

    def observe(self, outcome: CohortOutcome, state: Tree) -> Tree:
        if not len(outcome.ids):
            return state
        directions = state[DIRECTIONS].clone()
        directions[torch.from_numpy(outcome.ids)] = sketched(outcome.updates)
        return {DIRECTIONS: directions}


def sketched(updates: Tree) -> torch.Tensor:
    """Sums of the entries with fixed random signs, scaled to norm 1, [K, S]."""
    rows = [tree.matrix(u).float().cpu() for u in updates.values()]
    flat = torch.cat(rows, dim=1)
    flat = F.pad(flat, (0, -flat.shape[1] % SKETCH_NUMBERS))
    coins = torch.randint(2, (flat.shape[1],), generator=torch.Generator().manual_seed(0))
    signed = flat * (2 * coins - 1)
    sums = signed.reshape(len(flat), -1, SKETCH_NUMBERS).sum(1)
    return F.normalize(sums)


def farthest_first(points: np.ndarray, count: int) -> np.ndarray:
    """The number of the nearest center of each point [K], of at most `count`.

    Each further center is the point farthest from those before (Gonzalez 1985).
    """
    nearest = np.zeros(len(points), np.int64)
    distances = np.linalg.norm(points - points[0], axis=1)
    for number in range(1, count):
        farthest = distances.argmax()
        if not distances[farthest]:
            break
        to_new = np.linalg.norm(points - points[farthest], axis=1)
        is_nearer = to_new < distances
        nearest[is_nearer] = number
        distances = np.minimum(distances, to_new)
    return nearest
