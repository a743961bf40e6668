"""Floco: heads anywhere on a simplex of endpoints are trained, and each client gets a region of it."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.roles import Personalizer, ServerStep, TaskObjective
from unalike.methods.search_space import LinearRange

ENDPOINTS = "head.endpoints"
MIXTURE = "head.mixture"
"""Names of the endpoints [M, C, D] and of the frozen weights [M] with which the model mixes them to its head."""
CENTER = "center"
HAS_REGION = "has_region"
"""Names in a message: the center of the client's region [M], and 1 if it has one, else 0."""
SIZES = torch.linspace(1e-4, 1, 1000, dtype=torch.float64)
"""Sizes of the simplex on which clients are projected; the one that spreads them best is taken."""
TINY = 1e-4
"""Least distance of two centers."""


@part
class ConnectedModes(TaskObjective, Personalizer, ServerStep):
    """The task's loss under the head sum_m a_m theta_m, a [M] drawn anew in each step (Floco, Grinwald et al. 2024).

    In the first `after` rounds a is uniform on the simplex. Then client k draws it around its center c_k: c_k + r u, cut at 0 and
    divided by its sum, u [M] of L1 length 1, r uniform in [0, radius]. The centers come from the updates of the endpoints in round
    `after`: their first M principal components, projected on the simplex of that size (divided by it) for which the mean of
    1 / ||c_j - c_k||^2 is least. A client that was not in this round keeps the whole simplex, whose center is its c_k.

    The shared model has equal a_m, and a client is evaluated at c_k. All clients draw the same u and r in a step. It is for the
    model of `floco`; with one endpoint, or another model, it is FedAvg. The authors' code lets a leave the simplex, and asks all
    clients in round `after`.
    """

    takes_loss: ClassVar[bool] = True
    needs = "updates"
    rank: ClassVar[int] = ServerStep.DYNAMIC
    special_group = ENDPOINTS
    predicts_as_received = True

    after: PositiveInt = 10
    radius: Annotated[float, LinearRange(0, 0.5)] = Field(default=0.3, ge=0, lt=1)

    def address(self, server: ServerView, client: int) -> Tree:
        whole = server.settings.model.params.get(MIXTURE)
        if whole is None:
            return {}
        center = server.state.get(str(client))
        if center is None:
            return {CENTER: whole, HAS_REGION: whole.new_zeros(())}
        return {CENTER: center, HAS_REGION: whole.new_ones(())}

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        output = client.out(batch)
        if not client.message:
            return client.task_loss(output, batch)
        if output.features is None:
            raise UnalikeError(
                f"{self.name} found a model that shows no features; expected Output(logits, features)"
            )
        head = client.params | {MIXTURE: self._drawn(client)}
        logits = client.model.head(head, output.features)
        return client.task_loss(output._replace(logits=logits), batch)

    def _drawn(self, client: ClientView) -> Tensor:
        """The weights a [M] of a step."""
        center = client.message[CENTER]
        rng = seeds.generator(client.settings.seed, self.name, client.round, client.step)
        anywhere = rng.dirichlet([1.0] * len(center))
        direction = rng.uniform(-1, 1, len(center))
        offset = rng.uniform(0, self.radius) * direction / abs(direction).sum()

        near = F.relu(center + torch.from_numpy(offset).to(center))
        has_region = client.message[HAS_REGION]
        return torch.where(has_region > 0, near / near.sum(), torch.from_numpy(anywhere).to(near))

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        if server.round + 1 != self.after or not cohort.ids or ENDPOINTS not in cohort.update:
            return update, server.state
        moved = cohort.update[ENDPOINTS]
        found = centers(-moved.flatten(1), endpoints=moved.shape[1]).to(moved)
        return update, server.state | dict(zip(map(str, cohort.ids), found, strict=True))

    def personal(self, model: Model, params: Tree, state: Tree) -> Tree:
        return params | {MIXTURE: state[CENTER]} if CENTER in state else params


def centers(gradients: Tensor, endpoints: int) -> Tensor:
    """Points c [K, M] of the simplex, spread as the first M principal components of gradients [K, P] allow.

    The largest entry of each component is positive. Components that K clients do not have are 0.
    """
    # a device may have no float64
    gradients = gradients.cpu().double()
    u, lengths, _ = torch.linalg.svd(gradients - gradients.mean(0), full_matrices=False)
    signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()
    components = (signs * u * lengths)[:, :endpoints]
    components = F.pad(components, (0, endpoints - components.shape[1]))

    found = on_simplex(components, SIZES) / SIZES[:, None, None]
    # one size at a time: the gaps of all sizes would not fit into memory
    energies = [F.pdist(points).clamp_min(TINY).pow(-2).sum() for points in found]
    return found[torch.stack(energies).argmin()]


def on_simplex(points: Tensor, sizes: Tensor) -> Tensor:
    """The nearest points [Z, K, M] that are not negative and have the sums `sizes` [Z], to points [K, M]."""
    descending = points.sort(dim=1, descending=True).values
    count = torch.arange(1, points.shape[1] + 1)
    excess = (descending.cumsum(1) - sizes[:, None, None]) / count
    positive = (descending > excess).sum(2, keepdim=True).clamp_min(1)
    return F.relu(points - excess.gather(2, positive - 1))
