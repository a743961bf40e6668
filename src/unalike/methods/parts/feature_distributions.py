"""pFedFDA: heads that follow from Gaussian distributions of the features, each client's between its own and all clients'."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Tree
from unalike.core.views import ClientView, ServerView, StageSettings
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.parts.class_means import SUMS_OF_CLASSES, membership
from unalike.methods.parts.personalizers import OwnParameters
from unalike.methods.roles import Phase
from unalike.methods.search_space import LogRange

MEANS = "features.means"
COVARIANCE = "features.covariance"
IMPORTANCE = "importance"
"""Names in the server state and in messages: M [C, D], S [D, D]; and the sum of the clients' importance in sums."""
LEAST_PRIOR = 1e-4
"""Added to the share of each class before shares are divided by their sum."""
GRID = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Values among which a client chooses beta."""
FOLDS = 2


class Gaussians(NamedTuple):
    """Normal distributions of features, one a class: their means [..., C, D], and the covariance of all [..., D, D]."""

    means: Tensor
    covariance: Tensor

    def head(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Weight [..., C, D] and bias [..., C] of the logits log p_c N(z; m_c, S), p the shares of the classes [C]."""
        weight = torch.linalg.solve(self.covariance, self.means.mT).mT
        smoothed = shares + LEAST_PRIOR
        log_priors = (smoothed / smoothed.sum()).log()
        return weight, log_priors - (self.means * weight).sum(-1) / 2

    def towards(self, others: "Gaussians", beta: Tensor, beta_covariance: Tensor) -> "Gaussians":
        """beta times these and 1 - beta times the others."""
        return Gaussians(
            means=torch.lerp(others.means, self.means, beta),
            covariance=torch.lerp(others.covariance, self.covariance, beta_covariance),
        )


class Features(NamedTuple):
    """Features of a batch z [B, D], and member [B, 2, C]: 1 for the fold and the class of a row, all 0 for padding."""

    z: Tensor
    member: Tensor


@alias(
    "pfedfda",
    "Heads of Gaussian features, between the client's own and the shared ones (McLaughlin and Su 2024).",
)
@part
class FeatureDistributions(OwnParameters):
    """Bodies are averaged under heads u_c = m_c^T S^-1 z - m_c^T S^-1 m_c / 2 + log p_kc (pFedFDA, McLaughlin and Su 2024).

    p_kc is the share of class c at client k, M = (m_c) [C, D] and S [D, D] are the means and the common covariance of the features.
    Clients receive M and S, and train their bodies under that head, which stays. Then they find mu_k and Sigma_k =
    sum (z - mu)(z - mu)^T / (n_k - 1) + ridge I of their own features, and send beta mu_k + (1 - beta) M and beta' Sigma_k +
    (1 - beta') S. Their weighted means are the next M and S; with the head of their own mixture they are evaluated. A client
    chooses beta and beta' among 0, 0.2, ..., 1: the pair with the least cross-entropy over two folds, each scored by the head of
    the other one. A class without samples has the mean in M. Classes with one sample do not count in the choice.

    With `beta` both have this value: with 1 clients share bodies alone (FedPer with heads in closed form), with 0 all keep the
    first head but for the shares, as in FedBABU. At first M is the weight of the initial head, and S = I; the authors draw M.

    The authors minimize over beta by L-BFGS, and gather features while the body moves; here they are those of the trained body, in
    evaluation mode. Their code adds 1e-4 to every entry of Sigma_k beside I (the default of ridge), and mixes 1e-4 tr(S) / D I into
    S. Where it tests that a class has more than two samples it counts those of all classes, which is not done here.
    """

    needs_of_task: ClassVar[str] = CLASS_LOGITS
    needs_data = True
    special_group = "head"
    sums_show_clients = SUMS_OF_CLASSES

    ridge: Annotated[PositiveFloat, LogRange(1e-3, 1)] = 1.0
    beta: float | None = Field(default=None, ge=0, le=1)

    def server_open(self, settings: StageSettings) -> Tree:
        model = settings.model
        width, _ = model.head_size
        weight, bias = _names(model)
        if bias not in model.params:
            raise UnalikeError(
                f"{self.name} found a head without biases, in which it writes how frequent classes are; expected nn.Linear with "
                "bias=True"
            )
        means = model.params[weight]
        return {MEANS: means, COVARIANCE: torch.eye(width).to(means)}

    def broadcast(self, server: ServerView) -> Tree:
        return server.state

    def keeps(self, name: str, model: Model) -> bool:
        return model.in_head(name)

    def shared(self, name: str, model: Model) -> bool:
        return not model.in_head(name)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("body"),)

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        received = Gaussians(client.message[MEANS], client.message[COVARIANCE])
        classes = len(received.means)
        counts = received.means.new_zeros(classes)
        for batch in client.data.whole:
            counts = counts + membership(batch, classes).sum(0)
        head = _head(client.model, received, counts)
        return client.params | tree.only(head, client.state), client.state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        received = Gaussians(client.message[MEANS], client.message[COVARIANCE])
        samples = _features(client, len(received.means))
        counts, own = estimated(samples, [*range(FOLDS)], received.means, self.ridge)

        if self.beta is None:
            beta, beta_covariance = best_pair(samples, received, self.ridge)
        else:
            beta = beta_covariance = torch.full_like(own.means[0, 0], self.beta)
        mixed = own.towards(received, beta, beta_covariance)
        head = _head(client.model, mixed, counts)
        message = {MEANS: mixed.means, COVARIANCE: mixed.covariance}
        return tree.only(head, client.state), message

    def fold(self, update: Tree, message: Tree, importance: Tensor) -> Tree:
        return tree.scale(message, importance) | {IMPORTANCE: importance}

    def absorb(self, server: ServerView, folded: Tree) -> Tree:
        sums = tree.only(folded, (MEANS, COVARIANCE))
        return tree.scale(sums, 1 / folded[IMPORTANCE])


def _features(client: ClientView, classes: int) -> list[Features]:
    """The features of all samples at the trained body; the samples of each class go to the two folds by turns."""
    found = []
    seen = next(iter(client.params.values())).new_zeros(classes)
    for batch in client.data.whole:
        z = client.model.features(
            client.params, batch.x, buffers=client.buffers, context=client.context
        )
        of_class = membership(batch, classes).to(z.dtype)
        place = seen + of_class.cumsum(0)
        second = of_class * (place % FOLDS == 0)
        found.append(Features(z, torch.stack([of_class - second, second], 1)))
        seen = seen + of_class.sum(0)
    return found


def estimated(
    samples: Sequence[Features], folds: list[int], absent: Tensor, ridge: float
) -> tuple[Tensor, Gaussians]:
    """The numbers of samples in these folds by class [C], and their distributions, with the means `absent` [C, D] of no samples."""
    counts = torch.zeros_like(absent[:, 0])
    sums = torch.zeros_like(absent)
    members = [features.member[:, folds].sum(1) for features in samples]
    for features, member in zip(samples, members, strict=True):
        counts = counts + member.sum(0)
        sums = sums + member.T @ features.z
    means = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], absent)

    # differences from the means, as products of features themselves would cancel but for rounding
    scatter = absent.new_zeros(absent.shape[1], absent.shape[1])
    for features, member in zip(samples, members, strict=True):
        gaps = member.sum(1, keepdim=True) * features.z - member @ means
        scatter = scatter + gaps.T @ gaps
    degrees = (counts.sum() - 1).clamp_min(1)
    return counts, Gaussians(means, scatter / degrees + ridge * torch.eye(len(scatter)).to(scatter))


def best_pair(
    samples: Sequence[Features], received: Gaussians, ridge: float
) -> tuple[Tensor, Tensor]:
    """beta and beta' [] of the grid with the least cross-entropy over two folds, the sum of the means of each fold."""
    folds = [estimated(samples, [fold], received.means, ridge) for fold in range(FOLDS)]
    counts = folds[0][0] + folds[1][0]
    is_divided = (counts > 1).to(counts)
    grid = torch.tensor(GRID).to(received.means)
    losses = grid.new_zeros(len(grid), len(grid))
    for number, (tested, _) in enumerate(folds):
        _, of_other = folds[1 - number]
        mixed = of_other.towards(received, grid[:, None, None, None], grid[:, None, None])
        weight, bias = mixed.head(counts)
        for features in samples:
            logits = torch.einsum("bd,ijcd->ijbc", features.z, weight) + bias[..., None, :]
            counted = features.member[:, number] * is_divided
            total = (counted * logits.log_softmax(-1)).sum((-1, -2))
            losses = losses - total / (tested * is_divided).sum().clamp_min(1)
    places = torch.arange(losses.numel(), device=losses.device).view_as(losses)
    is_best = (places == losses.argmin()).to(grid)
    return (is_best.sum(1) * grid).sum(), (is_best.sum(0) * grid).sum()


def _names(model: Model) -> tuple[str, str]:
    """The names of the head's weight and bias."""
    return f"{model.head_path}.weight", f"{model.head_path}.bias"


def _head(model: Model, gaussians: Gaussians, counts: Tensor) -> Tree:
    weight, bias = gaussians.head(counts / counts.sum().clamp_min(1))
    return dict(zip(_names(model), (weight, bias), strict=True))
