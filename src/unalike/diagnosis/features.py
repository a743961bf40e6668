"""Feature skew: how far the features of clients lie apart, over all samples and among samples of the same class."""

import numpy as np

from unalike._utils.seeds import generator
from unalike.diagnosis.measure import (
    NO_SKEW,
    SHUFFLES,
    Measure,
    mean_interval,
    p_value,
    shuffled_within,
)
from unalike.diagnosis.samples import ClientSamples, Features

KIND = "feature skew"
DIRECTIONS = 16
"""Number of random directions that the features are projected on."""
OFFSETS = (0.3, 1.0)
"""The reference skews: each client's features are moved at random by so many standard deviations."""
REFERENCE_DRAWS = 3


class SlicedDistance:
    """The sliced Wasserstein distance between each client's features and those of the other clients with the same labels.

    The features are projected on random directions. In one direction the Wasserstein distance of two sets of numbers is the
    area between their distribution functions, in standard deviations of all numbers; the sliced distance is its mean over the
    directions. Samples are compared within a class, and a client's classes are weighed by its samples.

    The distribution of all clients of a class is F = s F_k + (1 - s) F_others, where s is client k's share. Therefore the area
    between F_k and F_others is that between F_k and F divided by 1 - s, and one sorted pool serves all clients.

    Of features [N, d] with classes `strata` [N] (equal numbers compare all samples) along `directions` [d, R], of length 1.
    """

    def __init__(self, features: np.ndarray, strata: np.ndarray, directions: np.ndarray):
        projected = features @ directions
        spread = projected.std(0)
        projected = projected / np.where(spread > 0, spread, 1)
        self._classes = []
        for label in np.unique(strata):
            rows = np.flatnonzero(strata == label)
            order = np.argsort(projected[rows], axis=0)
            widths = np.diff(np.take_along_axis(projected[rows], order, 0), axis=0)
            self._classes.append((rows, order, widths))

    def of_clients(self, owners: np.ndarray, clients: int) -> np.ndarray:
        """The distance of each client, [K]; NaN for a client without a class that another one has, too."""
        total, weight = np.zeros(clients), np.zeros(clients)
        for rows, order, widths in self._classes:
            own = owners[rows]
            sizes = np.bincount(own, minlength=clients)
            pool = np.arange(1, len(rows))[:, None] / len(rows)
            sorted_owners = own[order][:-1]
            for k in np.flatnonzero((sizes > 0) & (sizes < len(rows))):
                below = np.cumsum(sorted_owners == k, axis=0) / sizes[k]
                area = float((np.abs(below - pool) * widths).sum(0).mean())
                total[k] += sizes[k] * area / (1 - sizes[k] / len(rows))
                weight[k] += sizes[k]
        return np.where(weight > 0, total / np.maximum(weight, 1), np.nan)


def feature_skew(samples: ClientSamples, features: Features | None, seed: int) -> list[Measure]:
    """Measure the feature skew over all samples and within classes; empty if no feature varies."""
    few = samples.subset(seed)
    values = few.components(features, seed)
    if not values.shape[1]:
        return []
    rng = generator(seed, "feature skew")
    directions = rng.standard_normal((values.shape[1], DIRECTIONS))
    directions /= np.linalg.norm(directions, axis=0)
    everything = np.zeros_like(few.labels)
    found = [
        _measure(
            "feature_distance",
            "features of all samples (sd)",
            few,
            values,
            everything,
            directions,
            rng,
        ),
        _measure(
            "feature_distance_within",
            "features within a class (sd)",
            few,
            values,
            few.labels,
            directions,
            rng,
        ),
    ]
    return [measure for measure in found if measure is not None]


def _measure(
    name: str,
    title: str,
    samples: ClientSamples,
    values: np.ndarray,
    strata: np.ndarray,
    directions: np.ndarray,
    rng: np.random.Generator,
) -> Measure | None:
    clients, sliced = samples.clients, SlicedDistance(values, strata, directions)
    own = sliced.of_clients(samples.owners, clients)
    testable = ~np.isnan(own)
    if testable.sum() < 2:
        return None
    dealt = [shuffled_within(strata, samples.owners, rng) for _ in range(SHUFFLES)]
    by_chance = np.array([_mean(sliced.of_clients(owners, clients)) for owners in dealt])
    scale = {NO_SKEW: float(by_chance.mean())}
    for offset in OFFSETS:
        moved = (_moved(values, owners, clients, offset, rng) for owners in dealt[:REFERENCE_DRAWS])
        distances = [
            _mean(SlicedDistance(new, strata, directions).of_clients(owners, clients))
            for new, owners in zip(moved, dealt)
        ]
        scale[f"moved by {offset:g} sd"] = float(np.mean(distances))
    mean, low, high = mean_interval(own[testable])
    return Measure(KIND, name, title, mean, low, high, scale, p_value(mean, by_chance))


def _moved(
    values: np.ndarray, owners: np.ndarray, clients: int, offset: float, rng: np.random.Generator
) -> np.ndarray:
    """The features where each client's are moved by a normal vector of `offset` standard deviations of every component."""
    return (
        values + (offset * values.std(0) * rng.standard_normal((clients, values.shape[1])))[owners]
    )


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values))
