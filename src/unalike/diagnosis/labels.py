"""Label skew: how far the label distributions of clients are from that of all clients together."""

from collections.abc import Iterable

import numpy as np

from unalike._utils.seeds import generator
from unalike.data.heterogeneity import js_divergence, label_distributions
from unalike.diagnosis.measure import (
    NO_SKEW,
    RESAMPLES,
    SHUFFLES,
    Measure,
    bootstrap_interval,
    p_value,
)
from unalike.diagnosis.reference_divisions import reference_scale, reference_specs
from unalike.diagnosis.samples import ClientCounts

LABEL_SKEW = "label skew"
TITLES = {
    "label_tv": "total variation to all clients",
    "label_js": "Jensen-Shannon divergence (bits)",
    "label_hellinger": "Hellinger distance to all clients",
}


def distances(counts: np.ndarray) -> dict[str, float]:
    """The means over clients of three distances between a client's label distribution p_k and the pool's q.

    Total variation sum_c |p_kc - q_c| / 2, Jensen-Shannon divergence in bits, and Hellinger distance
    sqrt(1 - sum_c sqrt(p_kc q_c)). Each is 0 for equal distributions and 1 for disjoint ones. Clients without samples do not
    count.
    """
    p = label_distributions(counts)
    q = label_distributions(counts.sum(0, keepdims=True))
    differences = np.abs(p - q).sum(1)
    overlap = np.sqrt(p * q).sum(1)
    hellinger = np.sqrt(np.maximum(0, 1 - overlap))
    return {
        "label_tv": float(differences.mean() / 2),
        "label_js": float(js_divergence(counts).mean()),
        "label_hellinger": float(hellinger.mean()),
    }


def pairwise(counts: np.ndarray) -> np.ndarray:
    """The Hellinger distances between the label distributions of any two clients, [K, K]."""
    root = np.sqrt(counts / counts.sum(1, keepdims=True))
    distances = np.sqrt(np.maximum(0, 1 - root @ root.T))
    np.fill_diagonal(distances, 0)
    return distances


def label_skew(samples: ClientCounts, seed: int) -> list[Measure]:
    """Measure the label skew, against labels dealt by chance to clients of the same sizes."""
    rng = generator(seed, "label skew")
    counts = samples.counts
    value = distances(counts)
    # The same number without skew, for other clients of the same kind, and for divisions that are known.
    by_chance = _table(samples.with_noise(dealt(counts, rng), rng) for _ in range(SHUFFLES))
    resampled = _table(resampled_counts(counts, rng) for _ in range(RESAMPLES))
    scale = reference_scale(distances, reference_specs(samples), samples, seed)
    measures = []
    for name, title in TITLES.items():
        low, high = bootstrap_interval(value[name], resampled[name], (0, 1))
        measure = Measure(
            kind=LABEL_SKEW,
            name=name,
            title=title,
            value=value[name],
            low=low,
            high=high,
            scale={NO_SKEW: float(by_chance[name].mean())} | scale.get(name, {}),
            p=p_value(value[name], by_chance[name]),
            range=(0, 1),
        )
        measures.append(measure)
    return measures


def resampled_counts(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts of clients drawn with replacement, and of each one's samples drawn with replacement."""
    resampled = counts[rng.integers(len(counts), size=len(counts))]
    sizes = resampled.sum(1)
    return rng.multinomial(sizes, resampled / resampled.sum(1, keepdims=True))


def dealt(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts where all labels are dealt by chance to clients of the same sizes."""
    left = counts.sum(0)
    rows = []
    for size in counts.sum(1):
        row = rng.multivariate_hypergeometric(left, size, method="marginals")
        left = left - row
        rows.append(row)
    return np.stack(rows)


def _table(tables: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Name of the distance -> its value for each table of counts."""
    rows = [distances(counts) for counts in tables]
    columns = {}
    for name in TITLES:
        columns[name] = np.array([row[name] for row in rows])
    return columns
