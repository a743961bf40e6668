"""Quantity skew: how unequal the numbers of samples are."""

from dataclasses import replace

import numpy as np

from unalike._utils.seeds import generator
from unalike.data.heterogeneity import gini
from unalike.diagnosis.measure import RESAMPLES, Measure, t_interval
from unalike.diagnosis.reference_divisions import SIZE_SPECS, reference_scale
from unalike.diagnosis.samples import ClientCounts

KIND = "quantity skew"
TITLES = {
    "size_gini": "Gini coefficient of the sizes",
    "size_ratio": "largest client divided by the smallest",
}


def inequality(sizes: np.ndarray) -> dict[str, float]:
    """The Gini coefficient of the sizes, and the largest divided by the smallest."""
    held = sizes[sizes > 0]
    return {"size_gini": gini(held), "size_ratio": float(held.max() / held.min())}


def quantity_skew(samples: ClientCounts, seed: int) -> list[Measure]:
    """Measure the quantity skew. The sizes are known exactly; the intervals are about other clients of the same kind."""
    rng, sizes, clients = generator(seed, "quantity skew"), samples.sizes, samples.clients
    gini_coefficient, ratio = inequality(sizes).values()
    resampled = [inequality(sizes[rng.integers(clients, size=clients)]) for _ in range(RESAMPLES)]
    ginis, ratios = (np.array([found[name] for found in resampled]) for name in TITLES)
    scale = reference_scale(
        lambda counts: inequality(counts.sum(1)), SIZE_SPECS, replace(samples, noise=0.0), seed
    )
    limits = {"size_gini": (0.0, (clients - 1) / clients), "size_ratio": (1.0, float("inf"))}
    low, high = t_interval(
        float(np.log(ratio)), np.log(ratios), clients
    )  # extremes skew the logarithm less
    found = {
        "size_gini": (
            gini_coefficient,
            *t_interval(gini_coefficient, ginis, clients, limits["size_gini"]),
        ),
        "size_ratio": (ratio, float(np.exp(low)), float(np.exp(high))),
    }
    return [
        Measure(KIND, name, title, *found[name], scale=scale.get(name, {}), range=limits[name])
        for name, title in TITLES.items()
    ]
