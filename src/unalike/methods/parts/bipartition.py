"""Clustered federated learning: the test whether a group of clients splits, and the split."""

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerState, ServerView
from unalike.methods.part import Setup, part
from unalike.methods.roles import ServerStep


@part
class Bipartition(ServerStep):
    """Finds the two halves of a cohort once ||mean_k d_k|| < eps1 and max_k ||d_k|| > eps2 (CFL, Sattler et al. 2021, eqs. 6, 7).

    d_k are the updates, their mean weighted as the method weighs them. Nothing else changes: the plan `clustered` reads the
    halves in the server state (`halves`) and splits the group. eps1 = 0 never finds any.
    """

    needs = "updates"

    eps1: NonNegativeFloat = 0.4
    eps2: PositiveFloat = 1.6
    warmup: NonNegativeInt = 20

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        if server.round < self.warmup or len(cohort.ids) < 2 or not update:
            return update, server.state
        d = tree.flatten(cohort.update, len(cohort.ids))
        group_is_stationary = tree.norm(update) < self.eps1
        if not (group_is_stationary and d.norm(dim=1).max() > self.eps2):
            return update, server.state
        unit = d / d.norm(dim=1, keepdim=True).clamp_min(1e-12)
        cosines = unit @ unit.T
        return update, {"clients": torch.tensor(cohort.ids), "half": bipartition(cosines)}

    def shortfall(self, setup: Setup) -> str:
        if not self.eps1 or setup.rounds > self.warmup:
            return ""
        return f"no group splits before round {self.warmup + 1} (warmup), and the run has {setup.rounds}"


def bipartition(similarity: Tensor) -> Tensor:
    """The two halves [K] (bool, row 0 is False) that minimize the largest `similarity` [K, K] between them.

    Single linkage finds them: clusters are merged by their most similar members until two are left (Sattler et al.
    2019, algorithm 2).
    """
    s = similarity.clone().double().cpu()
    cluster = torch.arange(len(s))
    while len(cluster.unique()) > 2:
        across = s.masked_fill(cluster[:, None] == cluster[None, :], -torch.inf)
        i, j = divmod(int(across.argmax()), len(s))
        cluster = torch.where(cluster == cluster[j], cluster[i], cluster)
    return cluster != cluster[0]


def halves(state: ServerState) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The clients of the two halves; None if the group does not split."""
    split = state.part_states.get(Bipartition.name)
    if not split:
        return None
    clients = split["clients"]
    half = split["half"]
    return tuple(clients[~half].tolist()), tuple(clients[half].tolist())
