"""FedTGP: centroids of the classes that the server trains to be far from each other."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView, StageSettings
from unalike.methods.part import part
from unalike.methods.parts.class_means import descended_on_means
from unalike.methods.parts.feature_alignment import (
    CENTROIDS,
    COUNTS,
    KNOWN,
    MEANS,
    AlignedFeatures,
)
from unalike.methods.roles import ServerStep
from unalike.methods.search_space import LogRange

NETWORK = "network."
"""Prefix in the server state of what makes the centroids."""


@part
class TrainedCentroids(AlignedFeatures, ServerStep):
    """lam mean_b ||z_b - c_y||^2 / D with centroids c = V relu(U e + a) + b that the server trains (FedTGP, Zhang et al. 2024).

    e_c, U, V, a and b take `epochs` passes of SGD over the clients' means mu_kc, in batches of `batch_size`, down

        CE(-(||mu_kc - c_j|| + m [j = c])_j, c), m = min(margin, max_c min_j ||mu_c - mu_j||),

    mu_c the mean of the clients' means: a class is to be nearer to its centroid than to any other one by the margin m. Clients
    keep their models in `fedtgp`, and send the means of their features in each class, as in `fedproto`. All start at random; a
    class has a centroid from its first samples on. lam = 0 is `local_only` there.

    The authors' code passes all centroids, and predicts by the nearest one, here the client's head predicts. It takes the
    features that training passes through in place of those of the trained model; its lam is 10.
    """

    needs = "updates"
    rank: ClassVar[int] = ServerStep.DYNAMIC

    lr: Annotated[PositiveFloat, LogRange(1e-3, 1)] = 0.01
    epochs: NonNegativeInt = 100
    batch_size: PositiveInt = 10
    margin: NonNegativeFloat = 100.0

    def server_open(self, settings: StageSettings) -> Tree:
        state = super().server_open(settings)
        classes, width = state[CENTROIDS].shape
        with seeds.isolated(seeds.number(settings.seed, self.name)):
            made_of = {"vectors": torch.randn(classes, width)}
            for name in ("hidden", "out"):
                layer = nn.Linear(width, width)
                made_of[f"{name}.weight"] = layer.weight.detach()
                made_of[f"{name}.bias"] = layer.bias.detach()
        made_of = tree.map(lambda t: t.to(state[CENTROIDS]), made_of)
        return state | tree.prefixed(NETWORK, made_of)

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        has_class = cohort.message[COUNTS] > 0
        client, y = has_class.nonzero().unbind(1)
        means = cohort.message[MEANS][client, y]
        network = tree.under(server.state, NETWORK)
        if len(y):
            network = self._train(server, network, means, y)
        known = torch.maximum(server.state[KNOWN], has_class.any(0).to(server.state[KNOWN]))
        learned = {CENTROIDS: centroids(network), KNOWN: known}
        return update, learned | tree.prefixed(NETWORK, network)

    def _train(self, server: ServerView, network: Tree, means: Tensor, y: Tensor) -> Tree:
        """The network after its training on means [n, D] of classes [n]."""
        margin = min(self.margin, float(widest_gap(means, y)))

        def loss(network: Tree, means: Tensor, y: Tensor) -> Tensor:
            distances = torch.cdist(means, centroids(network))
            return F.cross_entropy(-distances - margin * F.one_hot(y, distances.shape[1]), y)

        return descended_on_means(
            loss,
            network,
            means,
            y,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            generator=server.generator,
        )


def centroids(network: Tree) -> Tensor:
    """c = V relu(U e + a) + b of all classes, [C, D]."""
    hidden = F.linear(network["vectors"], network["hidden.weight"], network["hidden.bias"])
    return F.linear(F.relu(hidden), network["out.weight"], network["out.bias"])


def widest_gap(means: Tensor, y: Tensor) -> Tensor:
    """max_c min_j ||mu_c - mu_j||, mu_c the mean of the rows of class c, of means [n, D] of classes [n]; infinite for one."""
    present = y.unique()
    centers = torch.stack([means[y == c].mean(0) for c in present])
    gaps = torch.cdist(centers, centers)
    gaps.fill_diagonal_(float("inf"))
    return gaps.amin(1).amax()
