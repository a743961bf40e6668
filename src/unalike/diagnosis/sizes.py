"""Quantity skew: how unequal the numbers of samples are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unalike._utils.seeds import generator
from unalike.data.heterogeneity import gini
from unalike.diagnosis.measure import RESAMPLES, Measure, t_interval
from unalike.diagnosis.references import SIZE_SPECS, scale_of
from unalike.diagnosis.samples import ClientCounts

KIND = "quantity skew"


def inequality(sizes: np.ndarray) -> dict[str, float]:
    """The Gini coefficient of the sizes, and the largest divided by the smallest."""
    held = sizes[sizes > 0]
    return {"size_gini": gini(held), "size_ratio": float(held.max() / held.min())}


def quantity_skew(samples: ClientCounts, seed: int) -> list[Measure]:
    """Measure the quantity skew. The sizes are known exactly; the intervals are about other clients of the same kind."""
    rng, sizes, clients = generator(seed, "quantity skew"), samples.sizes, samples.clients
    value = inequality(sizes)
    resampled = [inequality(sizes[rng.integers(clients, size=clients)]) for _ in range(RESAMPLES)]
    scale = scale_of(lambda counts: inequality(counts.sum(1)), SIZE_SPECS, replace(samples, noise=0.0), seed)
    most = (clients - 1) / clients
    gini_ends = t_interval(
        value["size_gini"], np.array([found["size_gini"] for found in resampled]), clients, (0, most)
    )
    logs = np.log([found["size_ratio"] for found in resampled])
    low, high = t_interval(
        float(np.log(value["size_ratio"])), logs, clients
    )  # of the logarithm, which extremes skew less
    ratio_ends = float(np.exp(low)), float(np.exp(high))
    gini_scale, ratio_scale = scale.get("size_gini", {}), scale.get("size_ratio", {})
    most_unequal = (1.0, float("inf"))
    gini_title, ratio_title = "Gini coefficient of the sizes", "largest client divided by the smallest"
    return [
        Measure(KIND, "size_gini", gini_title, value["size_gini"], *gini_ends, gini_scale, None, (0, most)),
        Measure(KIND, "size_ratio", ratio_title, value["size_ratio"], *ratio_ends, ratio_scale, None, most_unequal),
    ]
