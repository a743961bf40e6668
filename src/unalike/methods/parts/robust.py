"""Robust aggregation: a minority of clients cannot steer the result, whatever they send."""

from functools import partial
from typing import ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unalike._utils.errors import UnalikeError, warn
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, PartLookup, ServerView
from unalike.core.work import Work
from unalike.methods.part import Setup, part
from unalike.methods.roles import Aggregator, Weighting


class CoordinateWise(Aggregator):
    """One rule for every entry, over the K clients alone: their weights do not matter. Float buffers follow it too."""

    def rule(self, values: Tensor) -> Tensor:
        """[K, M] -> [M]."""
        raise NotImplementedError

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.map(partial(tree.over_clients, self.rule), cohort.update)

    def combine_buffers(self, buffers: Tree, weights: Tensor) -> Tree:
        return tree.map(partial(tree.over_clients, self.rule), buffers)

    def check(self, method: PartLookup, work: Work) -> None:
        _warn_of_weights(self.name, method)


@part
class Median(CoordinateWise):
    """The median of every entry (Yin et al. 2018); the mean of the two middle values where K is even."""

    published: ClassVar[bool] = True

    def rule(self, values: Tensor) -> Tensor:
        ordered, k = values.sort(0).values, len(values)
        return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2

    def shortfall(self, setup: Setup) -> str:
        return "the median of two clients is their mean" if setup.participants == 2 else ""


@part
class TrimmedMean(CoordinateWise):
    """The mean of every entry without its floor(beta K) least and greatest values (Yin et al. 2018).

    beta = 0 is the mean of `uniform`.
    """

    published: ClassVar[bool] = True

    beta: float = Field(default=0.2, ge=0, le=0.5)

    def rule(self, values: Tensor) -> Tensor:
        k = len(values)
        cut = self._cut(k)
        if 2 * cut >= k:
            raise UnalikeError(
                f"trimmed_mean(beta={self.beta}) drops {cut} of {k} clients at each end and keeps none; "
                "lower beta or let more clients take part"
            )
        return values.sort(0).values[cut : k - cut].mean(0)

    def shortfall(self, setup: Setup) -> str:
        k = setup.participants
        return (
            ""
            if self._cut(k) or not self.beta
            else f"it trims less than one of {k} clients, so it is the mean of `uniform`"
        )

    def _cut(self, k: int) -> int:
        return int(self.beta * k + 1e-9)  # 0.29 * 100 is a little less than 29


class Chosen(Aggregator):
    """An aggregator whose final weights come from the clients' updates as points in space; float buffers follow them."""

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.weighted_sum(cohort.update, weights)


@part
class Krum(Chosen):
    """The one client whose update lies closest to its neighbours (Blanchard et al. 2017); weights do not matter.

    The score of a client is the sum of its max(1, K - byzantine - 2) least squared distances to the others, over all
    parameters; the least score wins, the first among equals. The paper's guarantee asks for K >= 2 byzantine + 3.
    """

    published: ClassVar[bool] = True

    byzantine: NonNegativeInt = 1

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        best = _ranking(cohort, self.byzantine)[0]
        return torch.zeros_like(weights).index_fill(0, best, 1.0)

    def shortfall(self, setup: Setup) -> str:
        return _unguaranteed(self.byzantine, setup)

    def check(self, method: PartLookup, work: Work) -> None:
        _warn_of_weights(self.name, method)


@part
class Multikrum(Chosen):
    """The weighted mean of the `keep` clients of least Krum score (Blanchard et al. 2017); keep = None: K - byzantine.

    With all clients kept it is the base method.
    """

    published: ClassVar[bool] = True

    byzantine: NonNegativeInt = 1
    keep: PositiveInt | None = None

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        count = self.keep or max(1, len(weights) - self.byzantine)
        chosen = torch.zeros_like(weights).index_fill(0, _ranking(cohort, self.byzantine)[:count], 1.0)
        shares = chosen * weights if (chosen * weights).sum() > 0 else chosen
        return shares / shares.sum()

    def shortfall(self, setup: Setup) -> str:
        kept = f"it keeps all {setup.participants} clients of a round, so it is the base method"
        return kept if (self.keep or 0) >= setup.participants else _unguaranteed(self.byzantine, setup)


@part
class GeometricMedian(Chosen):
    """The point v of least sum_k p_k ||v - w_k|| (RFA, Pillutla et al. 2022), by the smoothed Weiszfeld algorithm.

    v <- sum_k b_k w_k / sum_k b_k with b_k = p_k / max(eps, ||v - w_k||), eps = 1e-6, until the gradient of the sum is shorter
    than 1e-7 (p sums to 1), or 10,000 times. It begins with the updates' own norms for the distances and their median for eps, so
    that it never comes near a client that is far away. The authors make a few steps, which need not come near the median. Only
    the inner products of the updates enter a step, which so costs K^2 operations.
    """

    published: ClassVar[bool] = True

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        exact = tree.exact(weights)  # a client may send values with squares beyond the range of float32
        norms = _gram(cohort.update, torch.zeros_like(exact)).diagonal().sqrt()
        current = _nearness(exact, norms, float(norms.median()))
        current = current / current.sum()
        gram = _gram(cohort.update, current)
        for _ in range(10_000):
            nearness = _nearness(
                exact, (gram.diagonal() + current @ gram @ current - 2 * gram @ current).clamp_min(0).sqrt()
            )
            moved = nearness / nearness.sum() - current
            current = current + moved
            if nearness.sum() * (moved @ gram @ moved).clamp_min(0).sqrt() <= 1e-7:
                break
        return current.to(weights)

    def shortfall(self, setup: Setup) -> str:
        return "between two clients it is the one of larger weight" if setup.participants == 2 else ""


def _nearness(weights: Tensor, distance: Tensor, least: float = 0.0) -> Tensor:
    """b_k, [K]: the nearer, the more."""
    return weights / distance.clamp_min(max(1e-6, least))


def _gram(update: Tree, weights: Tensor) -> Tensor:
    """The inner products of w_k - sum_j b_j w_j, [K, K], in float64."""
    blocks = (tree.exact(block) for block in tree.columns(update))
    centred = (block - weights.to(block) @ block for block in blocks)
    return torch.stack([block @ block.T for block in centred]).sum(0)


def _ranking(cohort: Cohort, byzantine: int) -> Tensor:
    """The clients' places by Krum score, the least first; equal scores by place."""
    count = len(cohort.ids)
    exact = "donot_use_mm_for_euclid_dist"  # a - b and b - a alike, unlike by products
    apart = [torch.cdist(block, block, compute_mode=exact) for block in tree.columns(cohort.update)]
    squares = torch.stack(apart).square().sum(0)
    others = squares.fill_diagonal_(torch.inf).sort(1).values[:, : count - 1]
    return others[:, : max(1, count - byzantine - 2)].sum(1).argsort(stable=True)


def _unguaranteed(byzantine: int, setup: Setup) -> str:
    needed = 2 * byzantine + 3
    if setup.participants >= needed:
        return ""
    return (
        f"{needed} clients or more in a round are needed for its guarantee (2 byzantine + 3) and {setup.participants} take part; "
        "more of them, or a smaller byzantine, would give it"
    )


def _warn_of_weights(name: str, method: PartLookup) -> None:
    for w in method.role(Weighting):
        warn(f"{name} ignores the clients' weights, so {w.name} has no effect")


@part
class ShiftedMean(CoordinateWise):
    """mean - shift * m3 / (6 m2) of every entry, with its central moments m2 and m3 over the clients.

    The second term is shift * skewness * sd / 6.

    It asks in which direction the mean misses the best centre of a skewed distribution. For small skewness, shift = 1 is the median
    and shift = 3 the mode (Cornish and Fisher 1938); shift < 0 moves towards the long tail, to the few clients that
    differ from the others. It ignores the clients' weights. Limit: shift = 0 is the mean of `uniform`.

    Source: none; a question of our own to FedSA and FedPake.
    """

    shift: float = 1.0

    def rule(self, values: Tensor) -> Tensor:
        mean = values.mean(0)
        apart = values - mean
        widest = apart.abs().amax(0)
        scaled = apart / widest.clamp_min(torch.finfo(values.dtype).tiny)  # cubes of small numbers would be 0
        ratio = scaled.pow(3).mean(0) / scaled.square().mean(0)
        return mean - self.shift / 6 * torch.where(widest > 0, ratio * widest, 0.0)

    def shortfall(self, setup: Setup) -> str:
        return "two clients have no skewness, so it is the mean of `uniform`" if setup.participants == 2 else ""
