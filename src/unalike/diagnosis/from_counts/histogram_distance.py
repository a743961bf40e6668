"""Feature skew from histograms: the sliced Wasserstein distance, from the samples of each class in the ranges of each direction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unalike._utils.seeds import generator
from unalike.diagnosis.features import FEATURE_SKEW, REFERENCE_DRAWS, REFERENCE_OFFSETS
from unalike.diagnosis.measure import NO_SKEW, SHUFFLES, Measure, mean_interval, p_value

MIN_SIZE_DEVIATIONS = 4.0
"""A client's samples of a class are compared if they are so many times the standard deviation of a noisy histogram's total."""


@dataclass(frozen=True, eq=False)
class ClientHistograms:
    """The training samples of the clients by direction, class and range.

    `counts` [K, R, C, B] of K clients along R directions in C classes and B ranges between `low` and `high` [R], with normal
    noise of standard deviation `noise`, which may make them negative. `sizes` [K, C] are the samples of each client and class.
    """

    counts: np.ndarray
    sizes: np.ndarray
    low: np.ndarray
    high: np.ndarray
    noise: float = 0.0

    @property
    def edges(self) -> np.ndarray:
        """The ends of the ranges in standard deviations of all samples, [R, B + 1]."""
        steps = np.linspace(0, 1, self.counts.shape[-1] + 1)
        ends = self.low[:, None] + (self.high - self.low)[:, None] * steps
        # Mean and standard deviation along each direction, with every sample in the middle of its range.
        middles = (ends[:, 1:] + ends[:, :-1]) / 2
        weights = self.pool().sum(1)
        total = np.maximum(weights.sum(1), 1)
        mean = (weights * middles).sum(1) / total
        squares = (middles - mean[:, None]) ** 2
        spread = np.sqrt((weights * squares).sum(1) / total)
        return ends / np.where(spread > 0, spread, 1)[:, None]

    def merged(self) -> ClientHistograms:
        """The same without classes: all samples are compared."""
        classes = self.counts.shape[2]
        return replace(
            self,
            counts=self.counts.sum(2, keepdims=True),
            sizes=self.sizes.sum(1, keepdims=True),
            noise=self.noise * classes**0.5,
        )

    def reliable(self) -> ClientHistograms:
        """The same without the classes of clients whose samples the noise drowns."""
        noise_of_total = self.noise * self.counts.shape[-1] ** 0.5
        is_reliable = self.sizes >= MIN_SIZE_DEVIATIONS * noise_of_total
        return replace(
            self,
            counts=np.where(is_reliable[:, None, :, None], self.counts, 0),
            sizes=np.where(is_reliable, self.sizes, 0),
        )

    def with_noise(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Other counts as the clients would send them, with their noise."""
        if not self.noise:
            return counts
        noise = np.rint(rng.normal(0, self.noise, counts.shape)).astype(np.int64)
        has_samples = self.sizes[:, None, :, None] > 0
        return counts + np.where(has_samples, noise, 0)

    def pool(self) -> np.ndarray:
        """The samples of all clients, [R, C, B]; with noise scaled, so that as many are dealt as the clients have."""
        total = np.maximum(self.counts.sum(0), 0)
        if not self.noise:
            return total
        # Scaled and rounded as sums from below, so that the ranges of a class add up to the samples that the clients have of it.
        sizes = self.sizes.sum(0)[None, :, None]
        share = total.cumsum(-1) * sizes / np.maximum(total.sum(-1, keepdims=True), 1)
        below = np.rint(share).astype(np.int64)
        below[..., -1] = sizes[..., 0]  # also of a class whose counts were all drowned
        return np.diff(below, axis=-1, prepend=0)


def histogram_skew(histograms: ClientHistograms, seed: int) -> list[Measure]:
    """Measure the feature skew over all samples and within classes."""
    merged = histograms.merged().reliable()
    measures = [
        _measure("feature_distance", "features of all samples (sd)", merged, seed),
        _measure(
            "feature_distance_within",
            "features within a class (sd)",
            histograms.reliable(),
            seed,
        ),
    ]
    return [measure for measure in measures if measure is not None]


def distances(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The Wasserstein distance between each client's samples and those of the others of the same class, by direction.

    As in `SlicedDistance`: with the client's share s of a class, the area between its distribution function and that of the
    others is the area between its own and that of all clients, divided by 1 - s. The functions are linear within a range.

    From `counts` [K, R, C, B] with the ends of ranges `edges` [R, B + 1], [K, R]; NaN for a client without a class that another
    one has, too.
    """
    sizes = counts.sum(-1)
    pool = counts.sum((0, -1))
    pool_or_one = np.maximum(pool, 1)
    # The distribution functions of each client and of all clients at the ends of the ranges, and the area between them.
    below = _below(counts)
    of_client = below / np.maximum(sizes, 1)[..., None]
    of_all = below.sum(0) / pool_or_one[..., None]
    gaps = np.abs(of_client - of_all)
    area = ((gaps[..., 1:] + gaps[..., :-1]) / 2 * np.diff(edges)[:, None]).sum(-1)

    comparable = (sizes > 0) & (sizes < pool)
    weight = np.where(comparable, sizes, 0)
    share_of_others = np.where(comparable, 1 - sizes / pool_or_one, 1)
    total = (weight * area / share_of_others).sum(-1)
    weights = weight.sum(-1)
    return np.where(weights > 0, total / np.maximum(weights, 1), np.nan)


def dealt(pool: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Histograms [K, R, C, B] of the pool [R, C, B] where every client is dealt `sizes` [K, C] samples of each class by chance."""
    left = pool.copy()
    histograms = np.empty((len(sizes), *pool.shape), np.int64)
    for k, r, c in np.ndindex(*histograms.shape[:3]):
        size = int(sizes[k, c])
        histograms[k, r, c] = rng.multivariate_hypergeometric(left[r, c], size, method="marginals")
        left[r, c] -= histograms[k, r, c]
    return histograms


def moved(
    counts: np.ndarray, edges: np.ndarray, moves: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Histograms after every client's samples were moved along each direction, and the ends of as many ranges that hold them.

    From `counts` [K, R, C, B], with `edges` [R, B + 1] and `moves` [K, R] in standard deviations of all samples; the new ends
    are in standard deviations of all moved samples.
    """
    # The moves add the spread of their own to that of the samples, which is 1.
    shares = counts.sum((2, 3)) / counts.sum((0, 2, 3))
    mean_move = (shares * moves).sum(0)
    mean_square = (shares * moves**2).sum(0)
    spread = np.sqrt(1 + mean_square - mean_move**2)

    # As many ranges, wide enough for the samples that are moved farthest.
    reach = np.abs(moves).max()
    lowest = edges[:, 0] - reach
    highest = edges[:, -1] + reach
    grid = np.linspace(lowest, highest, edges.shape[1], axis=1)

    # A moved sample is below an end if it was below the end less the move.
    below = _below(counts)
    shifted = np.empty_like(below, np.float64)
    for client, direction, label in np.ndindex(*counts.shape[:3]):
        ends = grid[direction] - moves[client, direction]
        before = below[client, direction, label]
        shifted[client, direction, label] = np.interp(ends, edges[direction], before)
    new_counts = np.diff(np.rint(shifted).astype(np.int64))
    return new_counts, grid / spread[:, None]


def _measure(name: str, title: str, histograms: ClientHistograms, seed: int) -> Measure | None:
    """The mean distance of the clients, with its place among dealt and moved samples; None unless two clients have one."""
    rng = generator(seed, name)
    edges = histograms.edges
    pool = histograms.pool()
    of_clients = distances(histograms.counts, edges).mean(1)
    testable = ~np.isnan(of_clients)
    if testable.sum() < 2:
        return None

    # The same samples dealt by chance, with the clients' noise; some of these are moved apart, as references.
    by_chance = []
    references: dict[str, list[float]] = {
        f"moved by {offset:g} sd": [] for offset in REFERENCE_OFFSETS
    }
    for draw in range(SHUFFLES):
        table = dealt(pool, histograms.sizes, rng)
        noisy = histograms.with_noise(table, rng)
        by_chance.append(np.nanmean(distances(noisy, edges), 0))
        if draw >= REFERENCE_DRAWS:
            continue
        for offset, values in zip(REFERENCE_OFFSETS, references.values()):
            moves = offset * rng.standard_normal(table.shape[:2])
            counts, ends = moved(table, edges, moves)
            noisy = histograms.with_noise(counts, rng)
            values.append(float(np.nanmean(distances(noisy, ends))))

    # Histograms do not tell how directions depend on each other. They are taken to be as dependent as possible, which spreads the
    # mean over them most, so that the p value is never too small.
    chance = np.sort(by_chance, axis=0).mean(1)
    scale = {NO_SKEW: float(chance.mean())}
    for reference, values in references.items():
        scale[reference] = sum(value / REFERENCE_DRAWS for value in values)
    mean, low, high = mean_interval(of_clients[testable])
    return Measure(
        kind=FEATURE_SKEW,
        name=name,
        title=title,
        value=mean,
        low=low,
        high=high,
        scale=scale,
        p=p_value(mean, chance),
    )


def _below(counts: np.ndarray) -> np.ndarray:
    """The samples below the ends of the ranges, [..., B + 1]."""
    sums = counts.cumsum(-1)
    return np.concatenate([np.zeros_like(counts[..., :1]), sums], -1)
