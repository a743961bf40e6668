"""Concept shift: whether equal inputs have other labels at other clients.

A model of one client is tested on the samples of another one, and compared with the other's own model on the same samples. Only
classes that both have are told apart, and only samples that lie where the first client has samples, too: elsewhere its model
cannot be blamed. The models are the simplest that exist in closed form, so that hundreds of random divisions can be tested:
nearest class means, and ridge regression.
"""

from dataclasses import dataclass
from typing import Protocol

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

CONCEPT_SHIFT = "concept shift"
MIN_OF_CLASS = 3
"""Fewest samples of a class that its mean is taken over."""
MIN_TESTED = 10
"""Fewest samples that one client's model is tested on for another client."""
SHARE_WITHIN_REACH = 0.95
"""The share of a client's own samples that lie where it has samples."""
REFERENCE_DRAWS = 3
GAP_LIMITS = (-1.0, float("inf"))
"""The smallest and the largest value that a gap can have."""
RIDGE_PENALTY = 1.0
"""The ridge penalty."""


class ConceptModels(Protocol):
    """One model of each client, all of the same kind, which can be tested on the samples of any client."""

    def losses(self, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The losses of samples under the models of all clients.

        `owners` is the client of each sample [N]. Returns [N, K] each: the loss of sample n under client i's model, its loss
        under its own client's model, which was made without it, and whether the two can be compared.
        """


@dataclass(frozen=True)
class ClassMeans:
    """The nearest class mean, which treats all classes alike, so that other label frequencies alone change nothing.

    The loss is 1 for a wrong class. A client's own model leaves the sample itself out of its class mean m of n samples:
    ||z - m'|| = ||z - m|| n / (n - 1).
    """

    features: np.ndarray
    labels: np.ndarray
    clients: int
    classes: int

    def losses(self, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ConceptModels.losses`."""
        rows = np.arange(len(owners))
        cell = owners * self.classes + self.labels  # the client and class of each sample

        # Distances of every sample to every class mean of every client, [N, K, C]; from the own mean without the sample itself.
        counts = np.bincount(cell, minlength=self.clients * self.classes)
        sums = np.stack([np.bincount(cell, column, len(counts)) for column in self.features.T], 1)
        means = sums / np.maximum(counts, 1)[:, None]
        products = 2 * self.features @ means.T
        squares = (self.features**2).sum(1)[:, None] + (means**2).sum(1) - products
        distances = np.sqrt(np.maximum(squares, 0))
        distances[rows, cell] *= counts[cell] / np.maximum(counts[cell] - 1, 1)
        distances = distances.reshape(-1, self.clients, self.classes)

        # The nearest mean among the classes that both clients have.
        usable = (counts >= MIN_OF_CLASS).reshape(self.clients, self.classes)
        common = usable[None] & usable[owners][:, None]  # [N, K, C]
        theirs = np.where(common, distances, np.inf).argmin(2)
        own = np.where(common, distances[rows, owners][:, None], np.inf).argmin(2)

        # Comparable: two classes in common, among them the sample's, which lies where the other client has samples, too.
        comparable = (common.sum(2) > 1) & common[rows, :, self.labels]
        nearest = np.where(usable[None], distances, np.inf).min(2)
        comparable &= nearest <= _reach(nearest[rows, owners], owners, self.clients)
        label = self.labels[:, None]
        return (theirs != label).astype(float), (own != label).astype(float), comparable


@dataclass(frozen=True)
class Ridge:
    """Ridge regression with an intercept; the loss is the squared error in variances of all labels.

    A client's own model leaves the sample itself out: its error is e / (1 - h), where h is the sample's leverage.
    """

    features: np.ndarray
    targets: np.ndarray
    clients: int

    def losses(self, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ConceptModels.losses`."""
        x = np.column_stack([np.ones(len(owners)), self.features])
        y = (self.targets - self.targets.mean()) / (self.targets.std() or 1)
        penalty = np.diag([0.0] + [RIDGE_PENALTY] * self.features.shape[1])
        theirs = np.zeros((len(y), self.clients))
        own = np.zeros((len(y), self.clients))
        distances = np.full((len(y), self.clients), np.inf)
        for k in range(self.clients):
            mine = owners == k
            if mine.sum() < MIN_TESTED:
                continue
            inverse = np.linalg.pinv(x[mine].T @ x[mine] + penalty)
            weights = inverse @ (x[mine].T @ y[mine])
            error = y - x @ weights
            leverage = np.einsum("nd,de,ne->n", x[mine], inverse, x[mine])
            error_without_sample = error[mine] / np.maximum(1 - leverage, 1e-3)
            theirs[:, k] = error**2
            own[mine] = (error_without_sample**2)[:, None]
            distances[:, k] = np.linalg.norm(self.features - self.features[mine].mean(0), axis=1)

        # Comparable: both clients have a model, and the sample lies where the other client has samples, too.
        has_model = np.isfinite(distances)
        rows = np.arange(len(y))
        comparable = has_model & has_model[rows, owners][:, None]
        comparable &= distances <= _reach(distances[rows, owners], owners, self.clients)
        return theirs, own, comparable


@dataclass(frozen=True, eq=False)
class ConceptShift:
    """The result: the measure, and the gaps of all pairs beyond chance (rows: whose model, columns: whose samples)."""

    measure: Measure
    gaps: np.ndarray
    names: list[str]


def concept_shift(
    samples: ClientSamples, features: Features | None, seed: int
) -> ConceptShift | None:
    """Measure the concept shift; None unless models can be tested on the samples of two or more clients."""
    few = samples.subset(seed)
    values = few.components(features, seed)
    if not values.shape[1]:
        return None
    variance = values.var(0)
    white = values / np.sqrt(variance + 1e-3 * variance.mean())
    clients = few.clients
    models = _models(few, white, few.owners)
    gaps = pair_gaps(models, few.owners, clients)
    is_tested = (~np.isnan(gaps)).any(0)
    if is_tested.sum() < 2:
        return None

    # What chance gives, with the same samples of each class dealt to the clients, is taken off.
    rng = generator(seed, "concept shift")
    dealt = [shuffled_within(few.labels, few.owners, rng) for _ in range(SHUFFLES)]
    by_chance = np.stack([pair_gaps(models, owners, clients) for owners in dealt])
    expected = np.nan_to_num(_mean(by_chance, 0))
    beyond = gaps - expected
    per_client = np.array([_mean(column) for column in beyond.T])
    value, low, high = mean_interval(per_client[~np.isnan(per_client)], GAP_LIMITS)

    # The reference: half of the clients have other labels for the same inputs.
    relabeled = []
    for owners in dealt[:REFERENCE_DRAWS]:
        relabeled_models = _models(few, white, owners, relabeled=clients // 2)
        relabeled.append(_mean(pair_gaps(relabeled_models, owners, clients) - expected))

    title = "errors added by another's model"
    if few.regression:
        title = "error added by another's model (variances)"
    means = np.array([_mean(table) for table in by_chance])
    measure = Measure(
        kind=CONCEPT_SHIFT,
        name="concept_gap",
        title=title,
        value=value,
        low=low,
        high=high,
        scale={NO_SKEW: 0.0, "half relabeled": float(np.mean(relabeled))},
        p=p_value(float(_mean(gaps)), means[~np.isnan(means)]),
        range=GAP_LIMITS,
    )
    return ConceptShift(measure, beyond, few.names)


def _models(
    samples: ClientSamples, features: np.ndarray, owners: np.ndarray, *, relabeled: int = 0
) -> ConceptModels:
    """The models of the clients; the first `relabeled` clients have the next class, or the opposite number, as label."""
    is_relabeled = owners < relabeled
    if samples.regression:
        targets = samples.targets
        opposite = 2 * targets.mean() - targets
        return Ridge(features, np.where(is_relabeled, opposite, targets), samples.clients)
    classes = len(samples.classes)
    labels = (samples.labels + is_relabeled) % classes
    return ClassMeans(features, labels, samples.clients, classes)


def pair_gaps(models: ConceptModels, owners: np.ndarray, clients: int) -> np.ndarray:
    """The mean loss that client i's model adds on client j's samples, compared with j's own model, [K, K]; NaN if untested."""
    theirs, own, comparable = models.losses(owners)
    comparable[np.arange(len(owners)), owners] = False
    member = (owners[:, None] == np.arange(clients)).astype(float)
    tested = comparable.astype(float).T @ member
    added = np.where(comparable, theirs - own, 0).T @ member
    return np.where(tested >= MIN_TESTED, added / np.maximum(tested, 1), np.nan)


def _reach(distances: np.ndarray, owners: np.ndarray, clients: int) -> np.ndarray:
    """The distance within which most of a client's own samples lie, [K]; nothing is in reach of a client without samples."""
    reach = np.full(clients, -np.inf)
    for k in range(clients):
        known = distances[(owners == k) & np.isfinite(distances)]
        if len(known):
            reach[k] = np.quantile(known, SHARE_WITHIN_REACH)
    return reach


def _mean(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The mean of the numbers that are known; NaN where none is."""
    known = ~np.isnan(values)
    count = known.sum(axis)
    total = np.where(known, values, 0).sum(axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
