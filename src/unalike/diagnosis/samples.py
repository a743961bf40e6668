"""The clients' training samples as a diagnosis reads them: labels, owners and features."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import generator, number
from unalike.core.inputs import one_tensor
from unalike.data.population import Population
from unalike.data.ragged import Ragged

Features = Callable[[Tensor], Any]
"""A function from inputs [n, ...] to their features [n, D], such as the body of a trained network."""

MAX_CLIENTS = 100
"""Most clients that are looked at; of more, as many are drawn by chance."""
MAX_COMPARED_CLIENTS = 30
"""Most clients whose features are compared with each other."""
MAX_COMPARED_SAMPLES = 3000
"""Most samples whose features are compared, over all clients."""
MAX_COMPONENTS = 32
"""Most principal components that stand for the features."""
MAX_WORDS = 500
"""Most words of a text that are counted."""
FEW_CLIENTS = 6
"""With fewer clients, intervals over clients are wide, and a note says so."""
LABEL_RANGES = 10
"""Number of classes into which the labels of a regression are cut, with equal numbers of samples."""


@dataclass(frozen=True, eq=False)
class ClientCounts:
    """The numbers of training samples by client and class, from which label and quantity skew follow.

    `counts` [K, C] by class, `sizes` [K]; `noise` is the standard deviation of what clients added to their counts before they
    sent them.
    """

    names: list[str]
    classes: list[str]
    counts: np.ndarray
    sizes: np.ndarray
    noise: float = 0.0

    @property
    def clients(self) -> int:
        """The number of clients K."""
        return len(self.names)

    @cached_property
    def labels(self) -> np.ndarray:
        """The class of each sample, in the order of the classes."""
        return np.repeat(np.arange(len(self.classes)), self.counts.sum(0))

    def with_noise(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Other counts with the noise that these counts have, so that the two can be compared; none is below 0."""
        if not self.noise:
            return counts
        noise = np.rint(rng.normal(0, self.noise, counts.shape)).astype(np.int64)
        return np.maximum(counts + noise, 0)


@dataclass(frozen=True, eq=False)
class ClientSamples:
    """The training samples of the clients that have any, one row per sample and client.

    `rows` [N] is the place of each sample in the population, `owners` [N] its client, `labels` [N] its class, or for regression
    the tenth of all labels that it belongs to; `inputs` [N, ...] and `targets` [N], the labels as numbers.
    """

    names: list[str]
    rows: np.ndarray
    owners: np.ndarray
    inputs: Tensor
    labels: np.ndarray
    targets: np.ndarray
    classes: list[str]
    regression: bool

    @classmethod
    def of(cls, population: Population, seed: int) -> Self:
        """Read the training samples of a population, of at most `MAX_CLIENTS` clients.

        Raises:
            UnalikeError: Fewer than two clients have a training sample.
        """
        clients = np.flatnonzero(population.sizes)
        if len(clients) < 2:
            raise UnalikeError(
                f"found training samples at {len(clients)} of {len(population)} "
                "clients, expected two or more: a diagnosis compares clients with "
                "each other"
            )
        if len(clients) > MAX_CLIENTS:
            rng = generator(seed, "diagnosed clients")
            clients = np.sort(rng.choice(clients, MAX_CLIENTS, replace=False))
        # A row for each sample of each client: a sample of two clients counts twice.
        rows = Ragged.of(population.train[int(k)] for k in clients)
        places = rows.values.astype(np.int64)
        index = torch.from_numpy(places)
        y = population.task.outcome(population.y).cpu()[index].numpy()
        if population.classes is None:
            labels, classes = _label_ranges(y)
        else:
            labels = y.astype(np.int64)
            classes = list(population.classes)
        return cls(
            names=[str(population.names[int(k)]) for k in clients],
            rows=places,
            owners=rows.owners,
            inputs=one_tensor(population.x, "a diagnosis")[index.to(population.y.device)].cpu(),
            labels=labels,
            targets=y.astype(np.float64),
            classes=classes,
            regression=population.classes is None,
        )

    @property
    def clients(self) -> int:
        """The number of clients K."""
        return len(self.names)

    @cached_property
    def counts(self) -> np.ndarray:
        """The samples of each client by class, [K, C]."""
        return counts_of(self.owners, self.labels, self.clients, len(self.classes))

    @cached_property
    def client_counts(self) -> ClientCounts:
        """The counts with the names of the clients and classes."""
        return ClientCounts(self.names, self.classes, self.counts, self.counts.sum(1))

    def subset(self, seed: int) -> Self:
        """Some of the clients and samples, drawn by chance.

        These are at most `MAX_COMPARED_CLIENTS`, each with at most its share of `MAX_COMPARED_SAMPLES` samples.
        """
        rng = generator(seed, "compared samples")
        clients = np.arange(self.clients)
        if self.clients > MAX_COMPARED_CLIENTS:
            clients = np.sort(rng.choice(clients, MAX_COMPARED_CLIENTS, replace=False))
        # Equal shares, so that no client outweighs the others.
        most = max(10, MAX_COMPARED_SAMPLES // len(clients))
        rows_of_clients = []
        for k in clients:
            mine = np.flatnonzero(self.owners == k)
            if len(mine) > most:
                mine = np.sort(rng.choice(mine, most, replace=False))
            rows_of_clients.append(mine)
        rows = Ragged.of(rows_of_clients)
        index = rows.values.astype(np.int64)
        return replace(
            self,
            names=[self.names[k] for k in clients],
            rows=self.rows[index],
            owners=rows.owners,
            inputs=self.inputs[torch.from_numpy(index)],
            labels=self.labels[index],
            targets=self.targets[index],
        )

    def components(self, features: Features | None, seed: int) -> np.ndarray:
        """The leading principal components of the features, with mean 0, [N, d]; d is 0 if no feature varies."""
        from sklearn.decomposition import PCA

        values = self._features(features)
        spread = values.std(0)
        if not (spread > 0).any():
            return np.zeros((len(values), 0))
        if features is None and self.inputs.dim() == 2 and self.inputs.is_floating_point():
            # Columns of a table have units of their own.
            values = (values - values.mean(0)) / np.where(spread > 0, spread, 1)
        most = min(MAX_COMPONENTS, *values.shape)
        pca = PCA(most, random_state=number(seed, "components") % 2**32)
        components = pca.fit_transform(values)

        # The sign of a component is arbitrary: its largest loading shall be positive. Complementary columns have loadings of one
        # size: the last of them counts, whatever rounding makes the largest.
        loadings = pca.components_
        later_counts_more = np.linspace(1, 1 + 1e-6, values.shape[1])
        largest = (np.abs(loadings) * later_counts_more).argmax(1)
        components = components * np.sign(loadings[np.arange(most), largest])
        spread = components.std(0)
        return components[:, spread > 1e-6 * spread.max()]

    def _features(self, features: Features | None) -> np.ndarray:
        if features is not None:
            return _computed(features, self.inputs)
        if not self.inputs.is_floating_point():
            return _word_counts(self.inputs)
        return self.inputs.flatten(1).double().numpy()


def notes_on_few(clients: int) -> list[str]:
    """The note on wide intervals, where there are fewer than `FEW_CLIENTS` clients."""
    if clients >= FEW_CLIENTS:
        return []
    return [f"With {clients} clients, intervals over other clients of the same kind are wide."]


def counts_of(owners: np.ndarray, labels: np.ndarray, clients: int, classes: int) -> np.ndarray:
    """Count the samples by client and class, [K, C]."""
    cells = owners * classes + labels
    counts = np.bincount(cells, minlength=clients * classes)
    return counts.reshape(clients, classes)


def _label_ranges(y: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The labels of a regression as classes: at most `LABEL_RANGES` ranges with about as many samples each."""
    levels = np.linspace(0, 1, LABEL_RANGES + 1)[1:-1]
    edges = np.unique(np.quantile(y, levels))
    edges = edges[edges > y.min()]
    return np.searchsorted(edges, y, side="right"), range_names(edges)


def range_names(edges: np.ndarray) -> list[str]:
    """The names of the ranges between edges, and of those below and above."""
    if not len(edges):
        return ["all"]
    ends = [f"{value:.3g}" for value in edges]
    between = [f"{low} to {high}" for low, high in pairwise(ends)]
    return [f"below {ends[0]}", *between, f"from {ends[-1]}"]


def _computed(features: Features, inputs: Tensor) -> np.ndarray:
    """The features that the user's function returns. Raises `UnalikeError` unless they are one row of numbers per sample."""
    try:
        with torch.no_grad():
            values = np.asarray(features(inputs), np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnalikeError(
            f"features={features!r} failed: {error}; expected a function of inputs "
            f"{list(inputs.shape)} that returns one row of numbers per sample"
        ) from error
    if values.ndim < 2 or len(values) != len(inputs) or not np.isfinite(values).all():
        raise UnalikeError(
            f"features={features!r} returned numbers of shape {list(values.shape)} for "
            f"{len(inputs)} samples; expected one row of finite numbers per sample"
        )
    return values.reshape(len(values), -1)


def _word_counts(tokens: Tensor) -> np.ndarray:
    """The shares of the most frequent words in each text, [N, words]. Word 0 is padding."""
    flat = tokens.flatten(1).numpy()
    is_word = flat > 0
    words, counts = np.unique(flat[is_word], return_counts=True)
    most_frequent = words[np.argsort(-counts, kind="stable")[:MAX_WORDS]]
    columns = [(flat == word).sum(1) for word in np.sort(most_frequent)]
    table = np.array(columns).reshape(len(columns), len(flat)).T
    return table / np.maximum(is_word.sum(1, keepdims=True), 1)
