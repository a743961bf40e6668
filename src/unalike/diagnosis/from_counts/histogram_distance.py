"""Feature skew from histograms: the sliced Wasserstein distance, from the samples of each class in the ranges of each direction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unalike._utils.seeds import generator
from unalike.diagnosis.features import KIND, OFFSETS, REFERENCE_DRAWS
from unalike.diagnosis.measure import NO_SKEW, SHUFFLES, Measure, mean_interval, p_value

CLEAR = 4.0
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
        middles, weights = (ends[:, 1:] + ends[:, :-1]) / 2, self.pool().sum(1)
        total = np.maximum(weights.sum(1), 1)
        mean = (weights * middles).sum(1) / total
        spread = np.sqrt((weights * (middles - mean[:, None]) ** 2).sum(1) / total)
        return ends / np.where(spread > 0, spread, 1)[:, None]

    def merged(self) -> ClientHistograms:
        """The same without classes: all samples are compared."""
        sizes, noise = self.sizes.sum(1, keepdims=True), self.noise * self.counts.shape[2] ** 0.5
        return replace(self, counts=self.counts.sum(2, keepdims=True), sizes=sizes, noise=noise)

    def reliable(self) -> ClientHistograms:
        """The same without the classes of clients whose samples the noise drowns."""
        kept = self.sizes >= CLEAR * self.noise * self.counts.shape[-1] ** 0.5
        counts = np.where(kept[:, None, :, None], self.counts, 0)
        return replace(self, counts=counts, sizes=np.where(kept, self.sizes, 0))

    def with_noise(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Other counts as the clients would send them, with their noise."""
        if not self.noise:
            return counts
        drawn = np.rint(rng.normal(0, self.noise, counts.shape)).astype(np.int64)
        return counts + np.where(self.sizes[:, None, :, None] > 0, drawn, 0)

    def pool(self) -> np.ndarray:
        """The samples of all clients, [R, C, B]; with noise scaled, so that as many are dealt as the clients have."""
        total = np.maximum(self.counts.sum(0), 0)
        if not self.noise:
            return total
        wanted = self.sizes.sum(0)[None, :, None]
        below = np.rint(
            total.cumsum(-1) * wanted / np.maximum(total.sum(-1, keepdims=True), 1)
        ).astype(np.int64)
        below[..., -1] = wanted[..., 0]  # also of a class whose counts were all drowned
        return np.diff(below, axis=-1, prepend=0)


def histogram_skew(found: ClientHistograms, seed: int) -> list[Measure]:
    """Measure the feature skew over all samples and within classes."""
    measures = [
        _measure(
            "feature_distance", "features of all samples (sd)", found.merged().reliable(), seed
        ),
        _measure("feature_distance_within", "features within a class (sd)", found.reliable(), seed),
    ]
    return [measure for measure in measures if measure is not None]


def distances(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The Wasserstein distance between each client's samples and those of the others of the same class, by direction.

    As in `SlicedDistance`: with the client's share s of a class, the area between its distribution function and that of the
    others is the area between its own and that of all clients, divided by 1 - s. The functions are linear within a range.

    From `counts` [K, R, C, B] with the ends of ranges `edges` [R, B + 1], [K, R]; NaN for a client without a class that another
    one has, too.
    """
    below, sizes, pool = _below(counts), counts.sum(-1), counts.sum((0, -1))
    own, together = (
        below / np.maximum(sizes, 1)[..., None],
        below.sum(0) / np.maximum(pool, 1)[..., None],
    )
    gaps = np.abs(own - together)
    area = ((gaps[..., 1:] + gaps[..., :-1]) / 2 * np.diff(edges)[:, None]).sum(-1)
    comparable = (sizes > 0) & (sizes < pool)
    weight = np.where(comparable, sizes, 0)
    total = (weight * area / np.where(comparable, 1 - sizes / np.maximum(pool, 1), 1)).sum(-1)
    return np.where(weight.sum(-1) > 0, total / np.maximum(weight.sum(-1), 1), np.nan)


def dealt(pool: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Histograms [K, R, C, B] of the pool [R, C, B] where every client is dealt `sizes` [K, C] samples of each class by chance."""
    left, found = pool.copy(), np.empty((len(sizes), *pool.shape), np.int64)
    for k, r, c in np.ndindex(*found.shape[:3]):
        found[k, r, c] = rng.multivariate_hypergeometric(
            left[r, c], int(sizes[k, c]), method="marginals"
        )
        left[r, c] -= found[k, r, c]
    return found


def moved(
    counts: np.ndarray, edges: np.ndarray, moves: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Histograms after every client's samples were moved along each direction, and the ends of as many ranges that hold them.

    From `counts` [K, R, C, B], with `edges` [R, B + 1] and `moves` [K, R] in standard deviations of all samples; the new ends
    are in standard deviations of all moved samples.
    """
    shares = counts.sum((2, 3)) / counts.sum((0, 2, 3))
    spread = np.sqrt(1 + (shares * moves**2).sum(0) - (shares * moves).sum(0) ** 2)
    reach, below = np.abs(moves).max(), _below(counts)
    grid = np.linspace(edges[:, 0] - reach, edges[:, -1] + reach, edges.shape[1], axis=1)
    shifted = np.empty_like(below, np.float64)
    for k, r, c in np.ndindex(*counts.shape[:3]):
        shifted[k, r, c] = np.interp(grid[r] - moves[k, r], edges[r], below[k, r, c])
    return np.diff(np.rint(shifted).astype(np.int64)), grid / spread[:, None]


def _measure(name: str, title: str, found: ClientHistograms, seed: int) -> Measure | None:
    rng, edges, pool = generator(seed, name), found.edges, found.pool()
    own = distances(found.counts, edges).mean(1)
    testable = ~np.isnan(own)
    if testable.sum() < 2:
        return None
    by_chance, scale = [], {f"moved by {offset:g} sd": 0.0 for offset in OFFSETS}
    for draw in range(SHUFFLES):
        table = dealt(pool, found.sizes, rng)
        by_chance.append(np.nanmean(distances(found.with_noise(table, rng), edges), 0))
        for offset, reference in zip(OFFSETS, scale) if draw < REFERENCE_DRAWS else ():
            counts, ends = moved(table, edges, offset * rng.standard_normal(table.shape[:2]))
            scale[reference] += (
                float(np.nanmean(distances(found.with_noise(counts, rng), ends))) / REFERENCE_DRAWS
            )
    # Histograms do not tell how directions depend on each other. They are taken to be as dependent as possible, which spreads the
    # mean over them most, so that the p value is never too small.
    chance = np.sort(by_chance, axis=0).mean(1)
    mean, low, high = mean_interval(own[testable])
    return Measure(
        KIND,
        name,
        title,
        mean,
        low,
        high,
        {NO_SKEW: float(chance.mean())} | scale,
        p_value(mean, chance),
    )


def _below(counts: np.ndarray) -> np.ndarray:
    """The samples below the ends of the ranges, [..., B + 1]."""
    return np.concatenate([np.zeros_like(counts[..., :1]), counts.cumsum(-1)], -1)
