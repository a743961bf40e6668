"""Features held near the shared centroids of their classes."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, ServerView, StageSettings
from unalike.methods.part import part
from unalike.methods.parts.class_means import SUMS_OF_CLASSES, class_features, membership
from unalike.methods.roles import Objective
from unalike.methods.search_space import LogRange

MEANS = "class.means"
COUNTS = "class.counts"
"""Names in a client's message: the means of its features, and its numbers of samples."""
CENTROIDS = "class.centroids"
KNOWN = "class.known"
"""Names in the server state: the centroids, and 1 for each class that has one."""


@validated
class AlignedFeatures(Objective):
    """lam mean_b ||z_b - c_y||^2 / D, c_y the centroid of class y [D]; clients send the means of their features in each class.

    The server finds the centroids from these. There is no term for a class without a centroid yet, so none in the first round.
    """

    lam: Annotated[NonNegativeFloat, LogRange(0.1, 10)] = 1.0
    needs_of_task: ClassVar[str] = CLASS_LOGITS
    needs_data = True
    special_group = "body"
    sums_show_clients = SUMS_OF_CLASSES

    def server_open(self, settings: StageSettings) -> Tree:
        width, classes = settings.model.head_size
        like = next(iter(settings.model.params.values()))
        return {CENTROIDS: like.new_zeros(classes, width), KNOWN: like.new_zeros(classes)}

    def broadcast(self, server: ServerView) -> Tree:
        return tree.only(server.state, (CENTROIDS, KNOWN))

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        centroids = client.message[CENTROIDS]
        z = client.out(batch).features
        if z is None or z.flatten(1).shape[1] != centroids.shape[1]:
            shown = "none" if z is None else list(z.shape[1:])
            raise UnalikeError(
                f"{self.name} needs the input of the model's head, {centroids.shape[1]} features, and the model shows "
                f"{shown}; give the module an attribute `head`, and no `projection`"
            )
        member = membership(batch, len(centroids)).to(z.dtype)
        has_centroid = member @ client.message[KNOWN]
        gap = (z.flatten(1) - member @ centroids).square().mean(1)
        return self.lam * batch.mean(has_centroid * gap)

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        features = class_features(client, client.params)
        return client.state, {MEANS: features.means, COUNTS: features.counts}


@part
class FeatureAlignment(AlignedFeatures):
    """lam mean_b ||z_b - c_y||^2 / D, c_y the centroid of the features of class y (FedPAC's regularizer, Xu et al. 2023).

    After training a client sends the mean of its features in each class [C, D], and how many samples that were [C]; the server
    takes c = sum_k n_kc mu_kc / sum_k n_kc over the cohort, and leaves a class that none of them has as it was. There
    is no term for a class without a centroid yet (the authors' code takes the client's own mean there), so none at all
    in the first round. lam = 0 is FedAvg. Its gradient is that of the features alone: with `fedrep` heads train as before.

    `fedrep(epochs=1) + feature_alignment` is FedPAC without its second half, `combined_heads`. With `counting` "clients" every
    client that has a class counts alike, c = the mean of mu_kc: the prototypes of FedProto (Tan et al. 2022, algorithm 1), if
    clients share no parameters. The paper's equation 6 weighs them by samples and divides by their number once more; its code takes
    the mean. That code and PFLlib take mu_kc from the features that training passes through, here the trained model computes
    them anew; and PFLlib predicts the class of the nearest prototype, here the client's head predicts.
    """

    has_own_name: ClassVar[bool] = True
    unlike_networks = "equal shapes"

    counting: Literal["samples", "clients"] = "samples"

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        count = message[COUNTS]
        if self.counting == "clients":
            count = count.clamp_max(1)
        return {MEANS: count[:, None] * message[MEANS], COUNTS: count}

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        count = folded[COUNTS][:, None]
        means = folded[MEANS] / count.clamp_min(1)
        centroids = torch.where(count > 0, means, server.state[CENTROIDS])
        known = torch.maximum(server.state[KNOWN], folded[COUNTS].clamp_max(1))
        return {CENTROIDS: centroids, KNOWN: known}
