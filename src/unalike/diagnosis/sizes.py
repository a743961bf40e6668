"""Quantity skew: how unequal the numbers of samples are."""

from dataclasses import replace

import numpy as np

from unalike._utils.seeds import generator
from unalike.data.heterogeneity import gini
from unalike.diagnosis.measure import RESAMPLES, Measure, t_interval
from unalike.diagnosis.reference_divisions import SIZE_SPECS, reference_scale
from unalike.diagnosis.samples import ClientCounts

QUANTITY_SKEW = "quantity skew"
TITLES = {
    "size_gini": "Gini coefficient of the sizes",
    "size_ratio": "largest client divided by the smallest",
}


def inequality(sizes: np.ndarray) -> dict[str, float]:
    """The Gini coefficient of the sizes, and the largest divided by the smallest."""
    positive = sizes[sizes > 0]
    ratio = float(positive.max() / positive.min())
    return {"size_gini": gini(positive), "size_ratio": ratio}


def quantity_skew(samples: ClientCounts, seed: int) -> list[Measure]:
    """Measure the quantity skew. The sizes are known exactly; the intervals are about other clients of the same kind."""
    rng = generator(seed, "quantity skew")
    sizes = samples.sizes
    clients = samples.clients
    value = inequality(sizes)
    resampled = [inequality(sizes[rng.integers(clients, size=clients)]) for _ in range(RESAMPLES)]
    ginis = np.array([row["size_gini"] for row in resampled])
    ratios = np.array([row["size_ratio"] for row in resampled])

    gini_limits = (0.0, (clients - 1) / clients)
    gini_ends = t_interval(value["size_gini"], ginis, clients, gini_limits)
    # Extremes skew the logarithm of the ratio less than the ratio.
    low, high = t_interval(float(np.log(value["size_ratio"])), np.log(ratios), clients)
    ratio_ends = (float(np.exp(low)), float(np.exp(high)))
    ends = {"size_gini": gini_ends, "size_ratio": ratio_ends}
    limits = {"size_gini": gini_limits, "size_ratio": (1.0, float("inf"))}

    def inequality_of_counts(counts: np.ndarray) -> dict[str, float]:
        return inequality(counts.sum(1))

    without_noise = replace(samples, noise=0.0)
    scale = reference_scale(inequality_of_counts, SIZE_SPECS, without_noise, seed)
    return [
        Measure(
            kind=QUANTITY_SKEW,
            name=name,
            title=title,
            value=value[name],
            low=ends[name][0],
            high=ends[name][1],
            scale=scale.get(name, {}),
            range=limits[name],
        )
        for name, title in TITLES.items()
    ]
