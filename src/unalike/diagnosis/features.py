"""Feature skew: how far the features of clients lie apart, over all samples and among samples of the same class."""

from functools import partial

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

FEATURE_SKEW = "feature skew"
DIRECTIONS = 16
"""Number of random directions that the features are projected on."""
REFERENCE_OFFSETS = (0.3, 1.0)
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
        # For each class its samples, their order along each direction, and the gaps between neighbors: the same for any owners.
        self._classes = []
        for label in np.unique(strata):
            rows = np.flatnonzero(strata == label)
            order = np.argsort(projected[rows], axis=0)
            values = np.take_along_axis(projected[rows], order, 0)
            self._classes.append((rows, order, np.diff(values, axis=0)))

    def of_clients(self, owners: np.ndarray, clients: int) -> np.ndarray:
        """The distance of each client, [K]; NaN for a client without a class that another one has, too."""
        total = np.zeros(clients)
        weight = np.zeros(clients)
        for rows, order, widths in self._classes:
            owners_of_class = owners[rows]
            sizes = np.bincount(owners_of_class, minlength=clients)
            # The distribution function of all clients at each sample, and then that of each client that has some, not all, samples.
            pool = np.arange(1, len(rows))[:, None] / len(rows)
            sorted_owners = owners_of_class[order][:-1]
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
    measure_within = partial(_measure, samples=few, values=values, directions=directions, rng=rng)
    one_stratum = np.zeros_like(few.labels)
    measures = [
        measure_within("feature_distance", "features of all samples (sd)", strata=one_stratum),
        measure_within(
            "feature_distance_within", "features within a class (sd)", strata=few.labels
        ),
    ]
    return [measure for measure in measures if measure is not None]


def _measure(
    name: str,
    title: str,
    samples: ClientSamples,
    values: np.ndarray,
    strata: np.ndarray,
    directions: np.ndarray,
    rng: np.random.Generator,
) -> Measure | None:
    """The mean distance of the clients, with its place among dealt and moved samples; None unless two clients have one."""
    clients = samples.clients
    sliced = SlicedDistance(values, strata, directions)
    of_clients = sliced.of_clients(samples.owners, clients)
    testable = ~np.isnan(of_clients)
    if testable.sum() < 2:
        return None

    # What chance gives: the samples of each stratum dealt to clients of the same sizes.
    dealt = [shuffled_within(strata, samples.owners, rng) for _ in range(SHUFFLES)]
    by_chance = np.array([_mean(sliced.of_clients(owners, clients)) for owners in dealt])
    scale = {NO_SKEW: float(by_chance.mean())}
    for offset in REFERENCE_OFFSETS:
        distances = []
        for owners in dealt[:REFERENCE_DRAWS]:
            moved = SlicedDistance(_moved(values, owners, clients, offset, rng), strata, directions)
            distances.append(_mean(moved.of_clients(owners, clients)))
        scale[f"moved by {offset:g} sd"] = float(np.mean(distances))
    mean, low, high = mean_interval(of_clients[testable])
    return Measure(
        kind=FEATURE_SKEW,
        name=name,
        title=title,
        value=mean,
        low=low,
        high=high,
        scale=scale,
        p=p_value(mean, by_chance),
    )


def _moved(
    values: np.ndarray, owners: np.ndarray, clients: int, offset: float, rng: np.random.Generator
) -> np.ndarray:
    """The features where each client's are moved by a normal vector of `offset` standard deviations of every component."""
    directions = rng.standard_normal((clients, values.shape[1]))
    moves = offset * values.std(0) * directions
    return values + moves[owners]


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values))
