"""Robust aggregation: a minority of clients cannot steer the result, whatever they send."""

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from unalike._utils.errors import warn
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, PartLookup, ServerView
from unalike.core.work import Work
from unalike.methods.method import alias
from unalike.methods.part import Setup, part
from unalike.methods.roles import Aggregator, LinearAggregator, ServerStep, Weighting
from unalike.methods.screening import Screening


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

    has_own_name: ClassVar[bool] = True

    def rule(self, values: Tensor) -> Tensor:
        k = len(values)
        ordered = values.sort(0).values
        return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2

    def shortfall(self, setup: Setup) -> str:
        return "the median of two clients is their mean" if setup.participants == 2 else ""


@part
class TrimmedMean(CoordinateWise):
    """The mean of every entry without its floor(beta K) least and greatest values (Yin et al. 2018).

    beta = 0 is the mean of `uniform`, beta = 0.5 the `median`.
    """

    has_own_name: ClassVar[bool] = True

    beta: float = Field(default=0.2, ge=0, le=0.5)

    def rule(self, values: Tensor) -> Tensor:
        k = len(values)
        cut = self._cut(k)
        return values.sort(0).values[cut : k - cut].mean(0)

    def shortfall(self, setup: Setup) -> str:
        k = setup.participants
        if self._cut(k) or not self.beta:
            return ""
        return f"it trims less than one of {k} clients, so it is the mean of `uniform`"

    def _cut(self, k: int) -> int:
        """floor(beta K), the number of values to leave out at each end, of which one or two stay."""
        wanted = int(self.beta * k + 1e-9)  # 0.29 * 100 is a little less than 29
        return min(wanted, (k - 1) // 2)


class WeightsFromDistances(Aggregator):
    """Weights follow from the distances between updates; buffers are averaged with the same weights."""

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.weighted_sum(cohort.update, weights)


@alias(
    "krum",
    "The one client whose update lies closest to its neighbours (Blanchard et al. 2017).",
    keep=1,
)
@part
class Multikrum(WeightsFromDistances):
    """The weighted mean of the `keep` clients of least Krum score (Blanchard et al. 2017); keep = None: K - byzantine.

    The score of a client is the sum of its max(1, K - byzantine - 2) least squared distances to the others, over all
    parameters; the least scores win, the first among equals. The paper's guarantee asks for K >= 2 byzantine + 3. Of one client
    the weight does not matter (`krum`). With all clients kept it is the base method.
    """

    has_own_name: ClassVar[bool] = True

    byzantine: NonNegativeInt = 1
    keep: PositiveInt | None = None

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        count = self.keep or max(1, len(weights) - self.byzantine)
        nearest = _ranking(_squared_distances(cohort), self.byzantine)[:count]
        chosen = torch.zeros_like(weights).index_fill(0, nearest, 1.0)
        shares = chosen * weights
        if not shares.sum() > 0:  # none of them has a weight
            shares = chosen
        return shares / shares.sum()

    def shortfall(self, setup: Setup) -> str:
        if self.keep is not None and self.keep >= setup.participants:
            return f"it keeps all {setup.participants} clients of a round, so it is the base method"
        return _unguaranteed(2, self.byzantine, setup)

    def check(self, method: PartLookup, work: Work) -> None:
        if self.keep == 1:
            _warn_of_weights("krum", method)


@part
class Bulyan(CoordinateWise):
    """Krum chooses K - 2 byzantine clients one by one, and every entry is the mean of those next to their median.

    Of the theta chosen, theta - 2 byzantine values of every entry count, those nearest to their median, and at least the
    median itself (El Mhamdi et al. 2018). Weights do not matter; float buffers follow the same rule. The paper's guarantee asks
    for K >= 4 byzantine + 3.
    byzantine = 0 is the mean of `uniform`.
    """

    has_own_name: ClassVar[bool] = True

    byzantine: NonNegativeInt = 1

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        squares = _squared_distances(cohort)
        theta = max(1, len(weights) - 2 * self.byzantine)
        candidates = list(range(len(weights)))
        chosen: list[int] = []
        while len(chosen) < theta:
            # Krum among those that are not chosen yet
            among_candidates = squares[candidates][:, candidates]
            place = int(_ranking(among_candidates, self.byzantine)[0])
            chosen.append(candidates.pop(place))
        places = torch.tensor(chosen, device=weights.device)
        return torch.zeros_like(weights).index_fill(0, places, 1 / theta)

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        chosen = weights.nonzero()[:, 0]
        return super().combine(server, cohort.rows(chosen), weights)

    def combine_buffers(self, buffers: Tree, weights: Tensor) -> Tree:
        chosen = weights.nonzero()[:, 0]
        return super().combine_buffers(tree.row(buffers, chosen), weights)

    def rule(self, values: Tensor) -> Tensor:
        theta = len(values)
        middle = 1 if theta % 2 else 2  # the values that the median is made of
        count = max(middle, theta - 2 * self.byzantine)
        gaps = (values - Median().rule(values)).abs()
        nearest = gaps.argsort(dim=0, stable=True)[:count]
        return values.gather(0, nearest).mean(0)

    def shortfall(self, setup: Setup) -> str:
        return _unguaranteed(4, self.byzantine, setup)


@part
class CenteredClipping(Aggregator, ServerStep):
    """v + sum_k p_k (u_k - v) min(1, norm / ||u_k - v||), v the combined update of the round before (Karimireddy et al. 2021).

    `iterations` repeats it from its result. A malicious client of weight p moves the update by p norm at most; the paper proves
    convergence for shares of up to 1/10 of such clients, with momentum on the clients. The first v is 0. norm = inf is the base
    method.
    """

    has_own_name: ClassVar[bool] = True

    norm: PositiveFloat = 10.0
    iterations: PositiveInt = 1
    needs: ClassVar[Literal["sums", "spread", "updates"]] = "updates"
    rank: ClassVar[int] = ServerStep.NOISE - 1

    def server_init(self, params: Tree) -> Tree:
        return tree.zeros(params)

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        v = tree.only(server.state, cohort.update)
        for _ in range(self.iterations):
            gaps = tree.sub(cohort.update, v)  # u_k - v
            shortened = tree.weighted_sum(gaps, weights * _shortening(gaps, self.norm))
            v = tree.add(v, shortened)
        return v

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return update, server.state | update


@part
class NormBound(Screening):
    """The server shortens every update to the norm `norm`: u <- u min(1, norm / ||u||) (Sun et al. 2019); None: their median norm.

    Malicious clients cannot leave it out, unlike `clip`. It bounds how far they move the mean, not in which direction. The
    median norm is theirs where they are half of a round or more. norm = inf is the base method.
    """

    norm: PositiveFloat | None = None
    rank: ClassVar[int] = 0

    def screen(self, server: ServerView, cohort: Cohort, weights: Tensor) -> tuple[Cohort, Tensor]:
        factors = _shortening(cohort.update, self.norm)
        update = torch.vmap(tree.scale)(cohort.update, factors)
        return cohort.with_update(update), weights


@part
class Bucketing(Screening):
    """The aggregator sees the means of buckets of `size` clients, drawn anew in every round (Karimireddy et al. 2022).

    The ceil(K / size) buckets are more alike than skewed clients; one malicious client spoils its bucket, so that a rule that bears
    a share d of the buckets bears d / size of the clients. Within a bucket clients count by their weights. It needs a rule that is
    not linear: the mean of the means is the mean. size = 1 is the base method.
    """

    size: PositiveInt = 2
    rank: ClassVar[int] = 1

    def rows(self, clients: int) -> int:
        return math.ceil(clients / self.size)

    def screen(self, server: ServerView, cohort: Cohort, weights: Tensor) -> tuple[Cohort, Tensor]:
        if self.size == 1 or server.method.role(LinearAggregator):
            return cohort, weights
        buckets = torch.randperm(len(weights), generator=server.generator).split(self.size)

        def mean(stacked: Tensor, bucket: Tensor) -> Tensor:
            """The mean of one tensor over the clients of a bucket; the maximum of an integer buffer."""
            if not stacked.is_floating_point():
                return stacked[bucket].amax(0)
            w = weights[bucket] + 1e-12  # a bucket without weight has a mean, too
            return tree.combined(stacked[bucket], (w / w.sum()).to(stacked))

        def means(stacked: Tensor) -> Tensor:
            return torch.stack([mean(stacked, bucket) for bucket in buckets])

        update = tree.map(means, cohort.update)
        buffers = tree.map(means, cohort.stacked.buffers)
        # the other numbers of a bucket are those of its first client
        first = cohort.rows(torch.stack([bucket[0] for bucket in buckets]))
        means_of_buckets = first.stacked._replace(update=update, buffers=buffers)
        weights_of_buckets = torch.stack([weights[bucket].sum() for bucket in buckets])
        return replace(first, stacked=means_of_buckets), weights_of_buckets

    def check(self, method: PartLookup, work: Work) -> None:
        for rule in method.role(LinearAggregator):
            warn(f"{self.name} has no effect with {rule.name}: the mean of means is the mean")

    def shortfall(self, setup: Setup) -> str:
        if 1 < setup.participants <= self.size:
            return f"one bucket of {self.size} holds all {setup.participants} clients of a round"
        return ""


def _shortening(stacked: Tree, norm: float | None) -> Tensor:
    """min(1, norm / ||u_k||), [K], for updates u_k; norm = None: their median norm."""
    norms = torch.vmap(tree.norm)(stacked)
    return tree.shortening(norms, norms.median() if norm is None else norm)


@part
class GeometricMedian(WeightsFromDistances):
    """The point v of least sum_k p_k ||v - w_k|| (RFA, Pillutla et al. 2022), by the smoothed Weiszfeld algorithm.

    v <- sum_k b_k w_k / sum_k b_k with b_k = p_k / max(eps, ||v - w_k||), eps = 1e-6, until the gradient of the sum is shorter
    than 1e-7 (p sums to 1), or 10,000 times. It begins with the updates' own norms for the distances and their median for eps. The
    authors make a few steps, which need not come near the median.
    """

    has_own_name: ClassVar[bool] = True

    def final_weights(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
        # in float64: a client may send values with squares beyond the range of float32
        p = tree.exact(weights)

        # the first v, from the norms of the updates
        norms = _gram(cohort.update, torch.zeros_like(p)).diagonal().sqrt()
        b = _nearness(p, norms, least=float(norms.median()))
        shares = b / b.sum()

        # inner products of the updates around the first v: all that the steps need, since v = sum_k shares_k w_k
        gram = _gram(cohort.update, shares)
        for _ in range(MAX_STEPS):
            squared = gram.diagonal() + shares @ gram @ shares - 2 * gram @ shares
            b = _nearness(p, squared.clamp_min(0).sqrt())
            change = b / b.sum() - shares
            shares = shares + change
            gradient_norm = b.sum() * (change @ gram @ change).clamp_min(0).sqrt()
            if gradient_norm <= MIN_GRADIENT:
                break
        return shares.to(weights)

    def shortfall(self, setup: Setup) -> str:
        if setup.participants == 2:
            return "between two clients it is the one of larger weight"
        return ""


EPS = 1e-6
"""Least distance of a client from v in the smoothed algorithm."""
MAX_STEPS = 10_000
"""Largest number of steps of the algorithm."""
MIN_GRADIENT = 1e-7
"""Norm of the gradient at which it ends."""


def _nearness(p: Tensor, distance: Tensor, least: float = 0.0) -> Tensor:
    """b_k = p_k / max(eps, distance_k), [K]: the nearer, the more."""
    return p / distance.clamp_min(max(EPS, least))


def _gram(update: Tree, weights: Tensor) -> Tensor:
    """The inner products of w_k - sum_j b_j w_j, [K, K], in float64."""
    products = []
    for columns in tree.columns(update):
        block = tree.exact(columns)
        centred = block - weights.to(block) @ block
        products.append(centred @ centred.T)
    return torch.stack(products).sum(0)


def _squared_distances(cohort: Cohort) -> Tensor:
    """Squared distances of the updates from each other, [K, K]; infinite on the diagonal."""
    exact = "donot_use_mm_for_euclid_dist"  # a - b and b - a alike, unlike by products
    blocks = [
        torch.cdist(block, block, compute_mode=exact) for block in tree.columns(cohort.update)
    ]
    return torch.stack(blocks).square().sum(0).fill_diagonal_(torch.inf)


def _ranking(squares: Tensor, byzantine: int) -> Tensor:
    """The clients' places by Krum score, the least first; equal scores by place."""
    count = len(squares)
    others = squares.sort(1).values[:, : count - 1]
    nearest = others[:, : max(1, count - byzantine - 2)]
    scores = nearest.sum(1)
    return scores.argsort(stable=True)


def _unguaranteed(times: int, byzantine: int, setup: Setup) -> str:
    """The reason why the guarantee of K >= times byzantine + 3 does not hold; empty if it does."""
    needed = times * byzantine + 3
    if setup.participants >= needed:
        return ""
    return (
        f"{needed} clients or more in a round are needed for its guarantee ({times} byzantine + 3) and {setup.participants} take "
        "part; more of them, or a smaller byzantine, would give it"
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
        deviations = values - mean
        widest = deviations.abs().amax(0)
        # in units of the widest one, as cubes of small numbers would be 0
        scaled = deviations / widest.clamp_min(torch.finfo(values.dtype).tiny)
        ratio = scaled.pow(3).mean(0) / scaled.square().mean(0)
        return mean - self.shift / 6 * torch.where(widest > 0, ratio * widest, 0.0)

    def shortfall(self, setup: Setup) -> str:
        if setup.participants == 2:
            return "two clients have no skewness, so it is the mean of `uniform`"
        return ""
