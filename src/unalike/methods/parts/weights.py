"""Weights of the clients of a round."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unalike.core.tasks.task import CLASSES
from unalike.core.types import Batch, PartTrees
from unalike.core.views import Cohort, StageSettings
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.roles import BaseWeights, Weighting
from unalike.methods.search_space import LinearRange


@part
class Uniform(BaseWeights):
    """1/K for each of the K clients, whatever their sizes."""

    has_own_name: ClassVar[bool] = True
    unlike_networks = "equal shapes"

    def weights(self, cohort: Cohort) -> Tensor:
        return torch.full_like(cohort.sizes, 1 / len(cohort.ids))


def _divergence(d: Tensor, target: Tensor) -> Tensor:
    """KL(D_k || T) in nats, as a share of the sum over the cohort."""
    kl = (torch.xlogy(d, d) - torch.xlogy(d, target)).sum(1)
    total = kl.sum()
    return torch.where(total > 0, kl / total, 0.0)


DISCREPANCIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": _divergence,
    "l1": lambda d, target: (d - target).abs().sum(1),
    "l2": lambda d, target: (d - target).norm(dim=1),
    "cosine": lambda d, target: 1 - F.cosine_similarity(d, target[None], dim=1),
}
"""From the clients' label distributions [K, C] and the target [C] to how far they are apart, [K]."""


@alias("feddisco", "Clients of unusual label distributions count less (Ye et al. 2023).")
@part
class LabelDiscrepancy(Weighting):
    """w_k ~ relu(p_k - a d_k + b), d_k how far the client's label distribution D_k is from T (FedDisco, Ye et al. 2023).

    D_k are its label counts over their sum, T is uniform over the classes or, with target "global", the distribution of all
    cohort's labels. d is by KL in nats, normalized to sum 1 over the cohort as in the authors' code, or an l2, l1 or
    cosine distance as it is. Where no weight is left (the authors' code fails), p_k stands. a = b = 0 changes nothing.
    """

    a: Annotated[float, LinearRange(0, 1)] = 0.5
    b: Annotated[float, LinearRange(0, 1)] = 0.1
    discrepancy: Literal["kl", "l2", "l1", "cosine"] = "kl"
    target: Literal["uniform", "global"] = "uniform"
    needs_of_task: ClassVar[str] = CLASSES
    shares: ClassVar[tuple[str, ...]] = ("label_histogram",)

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        return {"label_histogram": {"counts": label_counts(data, settings)}}

    def weigh(self, cohort: Cohort, weights: Tensor) -> Tensor:
        counts = cohort.shared["label_histogram"]["counts"].to(weights.dtype)
        distributions = counts / counts.sum(1, keepdim=True)
        together = counts.sum(0) if self.target == "global" else torch.ones_like(counts[0])
        target = together / together.sum()
        d = DISCREPANCIES[self.discrepancy](distributions, target)
        new = F.relu(weights - self.a * d + self.b)
        return torch.where(new.sum() > 0, new, weights)


def label_counts(data: Batch, settings: StageSettings) -> Tensor:
    """The number of samples of each class, [C]."""
    assert settings.classes is not None  # `needs_of_task`
    classes = torch.arange(settings.classes, device=data.y.device)
    return (data.y[:, None] == classes).sum(0)
