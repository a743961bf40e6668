"""Cluster structure: whether clients fall into groups, by their label distributions or by their gradients.

Clients are joined by average linkage, and cut into the number of clusters with the highest silhouette. Any clients can be cut;
they count as clusters only if clients that differ as much, but without groups, hardly ever have such a silhouette, and if the
clusters stay the same when samples are drawn again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unalike._utils.seeds import generator
from unalike.diagnosis.labels import pairwise
from unalike.diagnosis.measure import INTERVAL_QUANTILES, SHUFFLES, Interval, Measure, p_value
from unalike.diagnosis.samples import ClientCounts

CLUSTERS = "clusters"
NO_GROUPS = "no groups"
"""The reference of a silhouette: clients that differ as much, but without groups."""
MAX_CLUSTERS = 8
REDRAWS = 50
"""Number of times that samples are drawn again."""
MIN_STABILITY = 0.8
"""The agreement (adjusted Rand index, 1 is the same) from which clusters count as stable."""
MIN_CLIENTS = 4

Redraw = Callable[[np.random.Generator], np.ndarray]
"""Draws distances [K, K] or counts [K, C] anew."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """A way to divide the clients into clusters.

    `basis` is what the clients are compared by, "label distributions" or "gradients". `members` [K] is the cluster of each
    client, `distances` [K, K], `linkage` [K - 1, 4] the joins, as SciPy's `linkage` gives them. `silhouette` is the mean
    silhouette of the clusters, with the p value against clients without groups; `stability` the mean agreement with the
    clusters of samples that were drawn again.
    """

    basis: str
    names: list[str]
    members: np.ndarray
    distances: np.ndarray
    linkage: np.ndarray
    silhouette: Measure
    stability: Measure

    @property
    def found(self) -> bool:
        """Whether these are clusters, and not only a way to cut clients apart."""
        return self.silhouette.found and self.stability.value >= MIN_STABILITY

    @property
    def count(self) -> int:
        return int(self.members.max()) + 1

    @property
    def measures(self) -> list[Measure]:
        """The measures by which these clusters are judged."""
        return [self.silhouette, self.stability]


def label_clusters(samples: ClientCounts, seed: int) -> Clusters | None:
    """Cluster the clients by their label distributions; None for fewer than four clients."""
    counts = samples.counts
    counts_without_groups = _dirichlet_like(counts)

    def redrawn(rng: np.random.Generator) -> np.ndarray:
        shares = counts / counts.sum(1, keepdims=True)
        return pairwise(rng.multinomial(counts.sum(1), shares))

    def groupless(rng: np.random.Generator) -> np.ndarray:
        return pairwise(counts_without_groups(rng))

    return clusters_of(
        pairwise(counts), samples.names, "label distributions", redrawn, groupless, seed
    )


def clusters_of(
    distances: np.ndarray,
    names: list[str],
    basis: str,
    redrawn: Redraw,
    groupless: Redraw,
    seed: int,
) -> Clusters | None:
    """Cut the clients into clusters, and test whether these are more than a way to cut clients apart.

    `distances` are [K, K], `redrawn` those after samples are drawn again, `groupless` those of clients that differ as much but
    have no groups; `basis` is what clients are compared by. None for fewer than four clients, or if all are equal.
    """
    if len(names) < MIN_CLIENTS or not distances.max() > 0:
        return None
    rng = generator(seed, f"clusters by {basis}")
    value, members, joins = best_cut(distances)
    by_chance = np.array([best_cut(groupless(rng))[0] for _ in range(SHUFFLES)])
    # What remains of the clusters when samples are drawn again.
    agreement, low, high = _agreement(members, redrawn, rng)
    ends = _silhouette_ends(value, members, redrawn, rng)

    key = basis.replace(" ", "_")
    title = f"of {int(members.max()) + 1} clusters by {basis}"
    stability = Measure(
        kind=CLUSTERS,
        name=f"stability_{key}",
        title=f"stability {title}",
        value=agreement,
        low=low,
        high=high,
        range=(-1, 1),
    )
    silhouette = Measure(
        kind=CLUSTERS,
        name=f"silhouette_{key}",
        title=f"silhouette {title}",
        value=value,
        low=ends[0],
        high=ends[1],
        scale={NO_GROUPS: float(by_chance.mean())},
        p=p_value(value, by_chance),
        range=(-1, 1),
    )
    return Clusters(
        basis=basis,
        names=names,
        members=members,
        distances=distances,
        linkage=joins,
        silhouette=silhouette,
        stability=stability,
    )


def _agreement(
    members: np.ndarray, redrawn: Redraw, rng: np.random.Generator
) -> tuple[float, float, float]:
    """The mean agreement with the clusters of samples that are drawn again, and the two ends of its interval."""
    from sklearn.metrics import adjusted_rand_score

    count = int(members.max()) + 1
    agreement = []
    for _ in range(REDRAWS):
        joins = linkage_of(redrawn(rng))
        agreement.append(adjusted_rand_score(members, cut(joins, count)))
    low, high = np.quantile(np.array(agreement), INTERVAL_QUANTILES)
    mean = float(np.array(agreement).mean())
    # A few odd draws can move the mean beyond the quantiles.
    return mean, min(mean, float(low)), max(mean, float(high))


def _silhouette_ends(
    value: float, members: np.ndarray, redrawn: Redraw, rng: np.random.Generator
) -> Interval:
    """The interval of the silhouette of these clusters: its quantiles over samples drawn again, with the mean at `value`."""
    values = [_silhouette(redrawn(rng), members) for _ in range(REDRAWS)]
    low, high = np.quantile(values, INTERVAL_QUANTILES) - np.mean(values) + value
    return float(max(-1, low)), float(min(1, high))


def best_cut(distances: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The highest silhouette, its clusters numbered by first appearance, and the joins."""
    joins = linkage_of(distances)
    most = max(2, min(MAX_CLUSTERS, len(distances) // 2))
    cuts = [cut(joins, count) for count in range(2, most + 1)]
    scores = [_silhouette(distances, members) for members in cuts]
    best = int(np.argmax(scores))
    return scores[best], cuts[best], joins


def linkage_of(distances: np.ndarray) -> np.ndarray:
    """The joins of average linkage, [K - 1, 4]."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(distances, checks=False), "average")


def cut(joins: np.ndarray, count: int) -> np.ndarray:
    """The cluster of each client after a cut into at most `count` clusters, numbered by first appearance."""
    from scipy.cluster.hierarchy import fcluster

    clusters = fcluster(joins, count, "maxclust")
    _, first, inverse = np.unique(clusters, return_index=True, return_inverse=True)
    numbers = np.argsort(np.argsort(first))  # the rank of each cluster's first client
    return numbers[inverse.reshape(-1)]


def _silhouette(distances: np.ndarray, members: np.ndarray) -> float:
    """The mean of (b - a) / max(a, b): a is a client's mean distance within its cluster, b that to the nearest other one.

    A client alone in its cluster counts 0.
    """
    count = int(members.max()) + 1
    if count < 2:
        return 0.0
    is_member = (members[:, None] == np.arange(count)).astype(float)  # [K, clusters]
    sizes = is_member.sum(0)
    rows = np.arange(len(members))
    sums = distances @ is_member
    # The client itself is at distance 0 of its own cluster, so that one less is divided by.
    within = sums[rows, members] / np.maximum(sizes[members] - 1, 1)
    means = sums / sizes
    means[rows, members] = np.inf
    nearest = means.min(1)
    score = (nearest - within) / np.maximum(np.maximum(within, nearest), 1e-12)
    return float(np.where(sizes[members] > 1, score, 0).mean())


def _dirichlet_like(counts: np.ndarray) -> Redraw:
    """Draws counts of clients that differ as much as these, each by itself: p_k ~ Dir(s q), with the pool's q.

    E sum_c (p_kc - q_c)^2 = (1 - sum_c q_c^2) (r + (1 - r) / n_k) with r = 1 / (s + 1) gives s from the observed mean.
    """
    sizes = counts.sum(1)
    q = counts.sum(0) / counts.sum()
    squares = ((counts / sizes[:, None] - q) ** 2).sum(1)
    observed = float(squares.mean()) / max(1 - float((q**2).sum()), 1e-12)
    noise = float((1 / sizes).mean())
    r = (observed - noise) / max(1 - noise, 1e-12)
    r = min(max(r, 1e-6), 1 - 1e-6)
    concentration = np.maximum(q * (1 / r - 1), 1e-9)

    def draw(rng: np.random.Generator) -> np.ndarray:
        shares = np.nan_to_num(rng.dirichlet(concentration, size=len(sizes)))
        # Tiny concentrations underflow to no share at all; such a client has one class.
        is_empty = shares.sum(1) <= 0
        only_classes = rng.choice(len(q), size=int(is_empty.sum()), p=q)
        shares[is_empty] = np.eye(len(q))[only_classes]
        shares = shares / shares.sum(1, keepdims=True)
        return rng.multinomial(sizes, shares)

    return draw
