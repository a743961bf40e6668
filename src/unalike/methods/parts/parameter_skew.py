"""Parameter-skew aggregation: clients that agree on a parameter are grouped before it is averaged (FedSA and FedPake).

The two papers describe one method with different typographic slips; read literally they lose the scale of the model (see
`LiteralPake` and `LiteralSA`). `NormalizedSkew` is the reading that keeps it and is the default of both names.

Per tensor, with the clients' values W [K, M]: the mean mu, the squared deviations D = (W - mu)^2, sd = sqrt(mean_k D) and the
coefficient of variation cv = sd / |mu|, min-max normalized over the tensor. Parameters with cv > threshold are *high*. There,
D falls into `micro` classes, clients whose classes agree are clustered into up to `macro` clusters, and the new value is
sum_s alpha_s * (mean of cluster s); elsewhere it is mu.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from unalike._utils.validated import validated
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, PartLookup, ServerView
from unalike.core.work import Work
from unalike.methods.part import part
from unalike.methods.roles import Aggregator

CLASS = torch.int16
"""The type of micro-classes."""
TIE = 1e-12
"""Similarities closer than this are equal."""


@validated
class ParameterSkew(Aggregator):
    """The common steps; the readings differ in `variation`, `classes`, `alpha`, where clients are compared and how ties are broken.

    threshold: above it a normalized coefficient of variation is high; 1 or more gives the plain mean.
    similarity: least similarity to join a cluster once there are `macro` of them. micro, macro: numbers of classes, clusters.
    weighted: multiply alpha_s by the cluster's share of the weights. scope: by tensor, or the model as one.
    """

    threshold: NonNegativeFloat = 0.2
    similarity: float = 0.2
    micro: PositiveInt = 4
    macro: PositiveInt = 4
    weighted: bool = False
    scope: Literal["tensor", "model"] = "tensor"

    pairs_first: ClassVar[bool]
    """On a tie, two single clients form a cluster before one joins another (else the other way round)."""
    compares_all: ClassVar[bool]
    """Clients are compared at all parameters, not only at the high ones."""

    @abstractmethod
    def variation(self, sd: Tensor, mu: Tensor) -> Tensor:
        """The coefficient of variation [M]; mu holds no 0."""

    @abstractmethod
    def classes(self, d: Tensor, low: Tensor, top: Tensor) -> Tensor:
        """Micro-classes 0..micro of squared deviations [K, M]; 0 stands for none. `low`, `top`: the ends of all in the tensor."""

    @abstractmethod
    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        """alpha [S, H] from counts [S, micro + 1] of each cluster's modal classes [S, H] and the clusters' shares [S]."""

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        names = list(cohort.update)
        groups = [[n] for n in names] if self.scope == "tensor" else [names]
        moved: Tree = {}
        for group in groups:
            w, u = tree.only(server.params, group), tree.only(cohort.update, group)
            new = self._tensor(tree.flatten(w), tree.flatten(u, rows=len(cohort.ids)), weights)
            moved |= tree.unflatten(new, w)
        return tree.only(moved, names)

    def _tensor(self, w: Tensor, u: Tensor, weights: Tensor) -> Tensor:
        """The combined update [M] from the clients' updates u [K, M] of the parameters w [M]."""
        mean, sd, low, top = _moments(u, weights.to(u.dtype))
        high = self._high(sd, w + mean).nonzero().squeeze(1)
        if len(u) == 1 or not len(high):
            return mean
        chosen = u.index_select(1, high)
        classes = self.classes((chosen - mean[high]).square_(), low, top)
        compared = classes
        if self.compares_all:
            compared = torch.cat([self.classes((u[:, at] - mean[at]).square_(), low, top) for at in tree.blocks(u)], 1)
        clusters = self._clusters(self._similarity(compared, len(high)))
        if not clusters:
            return mean
        return mean.index_copy(0, high, self._grouped(w[high] + chosen, classes, clusters, weights) - w[high])

    def _high(self, sd: Tensor, mu: Tensor) -> Tensor:
        if self.threshold >= 1:
            return torch.zeros_like(mu, dtype=torch.bool)
        if (mu != 0).all():
            return self._above(self.variation(sd, mu))
        defined, high = mu != 0, sd > 0
        high[defined] = self._above(self.variation(sd[defined], mu[defined]))
        return high

    def _above(self, cv: Tensor) -> Tensor:
        """Where the coefficient of variation, min-max normalized, exceeds the threshold."""
        if not cv.numel() or not cv.max() > cv.min():
            return torch.zeros_like(cv, dtype=torch.bool)
        low = cv.min()
        return (cv - low).div_(cv.max() - low) > self.threshold

    def _similarity(self, classes: Tensor, high: int) -> Tensor:
        """1 - #{E_a != E_b} / #high, [K, K]."""
        agree = torch.zeros(len(classes), len(classes), dtype=torch.int64, device=classes.device)
        for at in tree.blocks(classes):
            for c in range(self.micro + 1):
                members = (classes[:, at] == c).float()
                agree += (members @ members.T).long()
        # float32 would make similarities differ by more than TIE
        return 1 - tree.exact(classes.shape[1] - agree) / high

    def _clusters(self, similar: Tensor) -> list[list[int]]:
        """Average linkage: the most similar pair first; a lone last client joins; full, only what is similar enough joins."""
        near = similar.tolist()
        free = list(range(len(near)))
        clusters: list[list[int]] = []
        while free:
            joins = [(sum(near[k][j] for j in c) / len(c), (k, i)) for k in free for i, c in enumerate(clusters)]
            room = len(clusters) < self.macro
            pairs = [(near[a][b], (a, b)) for a in free for b in free if a < b] if room else []
            join, pair = _best(joins), _best(pairs)
            if pair and (not join or pair[0] > join[0] + TIE or (self.pairs_first and pair[0] > join[0] - TIE)):
                clusters.append(list(pair[1]))
                free = [k for k in free if k not in pair[1]]
            elif join and (room or join[0] > self.similarity):
                k, i = join[1]
                clusters[i].append(k)
                free.remove(k)
            else:
                break
        return clusters

    def _grouped(self, values: Tensor, classes: Tensor, clusters: list[list[int]], weights: Tensor) -> Tensor:
        """sum_s alpha_s * mean of cluster s, [H], of the values and classes [K, H] at the high parameters."""
        modal = torch.stack([_mode(classes[c], self.micro) for c in clusters])
        counts = torch.stack([m.bincount(minlength=self.micro + 1) for m in modal])
        share = torch.stack([weights[c].sum() for c in clusters])
        alpha = self.alpha(
            counts, modal, values.shape[1], share.to(values.dtype) if self.weighted else torch.ones_like(share)
        )
        means = torch.stack([_shares(weights[c]).to(values.dtype) @ values[c] for c in clusters])
        return (alpha.to(values.dtype) * means).sum(0)


@part
class NormalizedSkew(ParameterSkew):
    """cv = sd / |mu|; classes of D min-max normalized over the tensor; alpha normalized to sum 1 over the clusters.

    Keeps the scale of the model, and is the plain mean where all clients agree. threshold >= 1 is uniform FedAvg.
    """

    pairs_first: ClassVar[bool] = False
    compares_all: ClassVar[bool] = False

    def variation(self, sd: Tensor, mu: Tensor) -> Tensor:
        return sd / mu.abs()

    def classes(self, d: Tensor, low: Tensor, top: Tensor) -> Tensor:
        scaled = (d - low) / (top - low) if top > low else torch.zeros_like(d)
        return (self.micro * scaled).ceil().clamp(1, self.micro).to(CLASS)

    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        alpha = counts.gather(1, modal) * share[:, None]
        total = alpha.sum(0)
        return torch.where(total > 0, alpha / total, 1 / len(alpha))


class LiteralSkew(ParameterSkew):
    """The printed classes: class i of raw D with (i-1)/C < D <= i/C, none (weight 0) for D = 0 and D > 1."""

    pairs_first: ClassVar[bool] = True

    def check(self, method: PartLookup, work: Work) -> None:
        warnings.warn(
            f"{self.name} is the rule as printed, which loses the scale of the model; variant='normalized' keeps it",
            stacklevel=2,
        )

    def classes(self, d: Tensor, low: Tensor, top: Tensor) -> Tensor:
        raw = (self.micro * d).ceil()
        return torch.where(raw <= self.micro, raw, 0).to(CLASS)

    def _printed(self, counts: Tensor, modal: Tensor, share: Tensor, divisor: float) -> Tensor:
        return torch.where(modal > 0, counts.gather(1, modal) * share[:, None] / divisor, 0.0)


@part
class LiteralPake(LiteralSkew):
    """FedPake as printed: cv = sd / mu without absolute value, clients compared at all positions, alpha = count / (S #high).

    The sum of the alphas is at most 1 and mostly below: the high parameters shrink in every round and training collapses.
    """

    compares_all: ClassVar[bool] = True

    def variation(self, sd: Tensor, mu: Tensor) -> Tensor:
        return sd / mu

    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        return self._printed(counts, modal, share, self.macro * high)


@part
class LiteralSA(LiteralSkew):
    """FedSA as printed: cv = sd / |mu|, clients compared at high positions, alpha = count / (S C), which grows with the tensor."""

    name = "literal_sa"
    compares_all: ClassVar[bool] = False

    def variation(self, sd: Tensor, mu: Tensor) -> Tensor:
        return sd / mu.abs()

    def alpha(self, counts: Tensor, modal: Tensor, high: int, share: Tensor) -> Tensor:
        return self._printed(counts, modal, share, self.macro * self.micro)


def _shares(weights: Tensor) -> Tensor:
    """Weights that sum to 1: equal ones where all are 0, as of clients that FedDisco leaves out."""
    total = weights.sum()
    return weights / total if total else torch.full_like(weights, 1 / len(weights))


def _moments(u: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and standard deviation [M] of the columns of u [K, M], and the least and the largest squared deviation of all."""
    mean, sd, nearest, furthest = torch.empty_like(u[0]), torch.empty_like(u[0]), [], []
    for at in tree.blocks(u):  # all at once, every operation would read the stack from memory again
        block = u[:, at]
        least, most = block.amin(0), block.amax(0)
        # equal values are their mean: the normalizations would blow up what rounding makes of it
        mean[at] = torch.where(least == most, least, weights @ block)
        d = (block - mean[at]).square_()
        sd[at] = d.mean(0).sqrt()
        nearest.append(d.amin())
        furthest.append(torch.maximum(most - mean[at], mean[at] - least).amax())
    return mean, sd, torch.stack(nearest).amin(), torch.stack(furthest).amax().square()


def _best(found: list[tuple[float, tuple[int, int]]]) -> tuple[float, tuple[int, int]] | None:
    """The highest similarity, the lowest indices among equals."""
    if not found:
        return None
    top = max(value for value, _ in found)
    return min((entry for entry in found if entry[0] > top - TIE), key=lambda entry: entry[1])


def _mode(classes: Tensor, micro: int) -> Tensor:
    """The most frequent class of each column of [k, H]; the smallest among equals."""
    return torch.stack([(classes == c).sum(0) for c in range(micro + 1)]).argmax(0)
