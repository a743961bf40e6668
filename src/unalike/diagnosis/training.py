"""Heterogeneity as training sees it: a few rounds of FedAvg, the clients' updates, and their gradients at one model.

Everything follows from inner products. With the inner products G_kl of the clients' updates and weights p_k, the share of their
movement that cancels in the average is

    1 - ||sum_k p_k d_k||^2 / sum_k p_k ||d_k||^2 = 1 - p'Gp / sum_k p_k G_kk,

0 if all clients move alike, near 1 if they undo each other. It is measured for updates (drift), for the updates of each layer
(parameter skew by layer), and for gradients at the same model (gradient variance).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.progress import ProgressCallback
from unalike._utils.seeds import generator
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import Task
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerState
from unalike.core.work import Work
from unalike.data.population import Population
from unalike.data.ragged import NumberedNames, Ragged
from unalike.diagnosis.clusters import Clusters, clusters_of
from unalike.diagnosis.measure import (
    NO_SKEW,
    RESAMPLES,
    Measure,
    bootstrap_interval,
    shuffled_within,
)
from unalike.diagnosis.reference_divisions import divided, reference_specs
from unalike.diagnosis.samples import ClientSamples
from unalike.methods.plans.diagnosis_plan import FOLDS, folds, gradient
from unalike.reporting.wording import plural
from unalike.runtime.round_loop import execute
from unalike.runtime.setup.given_model import ModelLike
from unalike.runtime.setup.run_config import configure_run

TRAINING = "training"
LAYER_KIND = "parameter skew"
SHARE_LIMITS = (0.0, 1.0)
COSINE_LIMITS = (-1.0, 1.0)
"""The smallest and the largest value that a share and a cosine can have."""
TRAINED_DIVISIONS = 5
"""Number of divisions that are trained: the clients, the samples dealt by chance, and three references."""


@dataclass(frozen=True)
class TrainingRequest:
    """The rounds of FedAvg to train for a diagnosis: their number, the model, the local work, and the callback for each row."""

    rounds: int
    model: ModelLike
    work: Work
    progress: ProgressCallback


@dataclass(frozen=True, eq=False)
class TrainedDivision:
    """The inner products of the updates and gradients of a division of the samples that was trained.

    Inner products: `updates` [R, L, K, K] of the clients' updates by round and layer, `start` and `end` [K, F, K, F] of the
    gradients of every part of every client at the first and at the last model. `weights` [K] are those of the average.
    """

    layers: list[str]
    updates: np.ndarray
    weights: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def cosines(self) -> np.ndarray:
        """The cosines of any two clients' updates, means over the rounds, [K, K]."""
        return np.mean([_cosines(products) for products in self.updates.sum(1)], 0)


@dataclass(frozen=True, eq=False)
class TrainingSkew:
    """The result: measures, cosines of the updates [K, K], the drift of each layer, and clusters by gradients."""

    measures: list[Measure]
    cosines: np.ndarray
    layers: list[Measure]
    clusters: Clusters | None


def training_skew(
    population: Population, samples: ClientSamples, request: TrainingRequest, seed: int
) -> TrainingSkew:
    """Train a few rounds on the clients and on reference divisions, and measure how the clients pull apart."""
    division = train(_population(population, samples, samples.owners), request, seed)
    references = {}
    for name, owners in _reference_divisions(samples, seed):
        references[name] = train(_population(population, samples, owners), request, seed)
    return skew_of(division, references, samples.names, request.rounds, seed)


def skew_of(
    division: TrainedDivision,
    references: dict[str, TrainedDivision],
    names: list[str],
    rounds: int,
    seed: int,
) -> TrainingSkew:
    """The measures of a trained division.

    `division` is the clients' own; without references the measures have no scale. `seed` is that of resampling.
    """
    measure = partial(_measure, division=division, references=references, seed=seed)
    measures = [
        measure(TRAINING, "drift", "movement that cancels (drift)", _mean_drift, SHARE_LIMITS),
        measure(
            TRAINING,
            "gradient_start",
            "gradients that cancel, first model",
            _cancelled_at_start,
            SHARE_LIMITS,
        ),
        measure(
            TRAINING,
            "gradient_end",
            f"gradients that cancel, after {plural(rounds, 'round')}",
            _cancelled_at_end,
            SHARE_LIMITS,
        ),
        measure(
            TRAINING, "cosine", "mean cosine of two clients' updates", _mean_cosine, COSINE_LIMITS
        ),
    ]
    # The drift of each layer shows which ones could stay at the clients.
    layers = []
    for layer, name in enumerate(division.layers):
        statistic = partial(_layer_drift, layer)
        layers.append(measure(LAYER_KIND, name, f"drift of {name}", statistic, SHARE_LIMITS))
    return TrainingSkew(measures, division.cosines(), layers, _clusters(division, names, seed))


def train(population: Population, request: TrainingRequest, seed: int) -> TrainedDivision:
    """Train FedAvg on all clients, and keep the inner products of their updates and gradients."""
    layers: list[list[str]] = []
    sizes: list[float] = []
    products: list[np.ndarray] = []

    def keep(
        number: int,
        cohorts: dict[str, Cohort],
        before: dict[str, ServerState],
        after: dict[str, ServerState],
    ) -> list[dict[str, Any]]:
        (cohort,) = cohorts.values()
        if len(cohort.ids) < len(population):
            raise UnalikeError(
                f"round {number}: {len(population) - len(cohort.ids)} of "
                f"{len(population)} clients sent no usable update, so that the "
                "rounds of a diagnosis cannot be compared; lower the learning rate"
            )
        layers[:] = tree.layers(cohort.update)
        sizes[:] = cohort.sizes.tolist()
        # Inner products layer by layer: of the updates themselves nothing is kept.
        of_layers = []
        for names in layers:
            rows = tree.flatten(tree.only(cohort.update, names), len(cohort.ids))
            of_layers.append(inner_products(rows))
        products.append(np.stack(of_layers))
        return []

    run_config = configure_run(
        "fedavg",
        population,
        model=request.model,
        work=request.work,
        record=keep,
        rounds=request.rounds,
        seed=seed,
        evaluate_every=request.rounds,
    )
    run = execute(run_config, progress=request.progress)

    # The gradients at the model with which the rounds began, and at the one with which they ended.
    model = run_config.model
    gradients = partial(
        gradient_products, model, population=population, task=population.task, seed=seed
    )
    last_params = tree.only(run.params, model.params)
    last_buffers = tree.only(run.params, model.buffers)
    return TrainedDivision(
        layers=[names[0] for names in layers],
        updates=np.stack(products),
        weights=np.array(sizes) / sum(sizes),
        start=gradients(model.params, model.buffers),
        end=gradients(last_params, last_buffers),
    )


def gradient_products(
    model: Model, params: Tree, buffers: Tree, *, population: Population, task: Task, seed: int
) -> np.ndarray:
    """The inner products of the gradients of every part of every client's samples at one model, [K, F, K, F].

    A client with fewer samples than parts has some samples in several parts.
    """
    clients = len(population)
    rows = []
    for k in range(clients):
        order = generator(seed, "gradient parts", k).permutation(population.train[k])
        for index in folds(order):
            x, y = population.x[index], population.y[index]
            rows.append(gradient(model, params, buffers, task, x, y))
    products = inner_products(torch.stack(rows))
    return products.reshape(clients, FOLDS, clients, FOLDS)


def cancelled(products: np.ndarray, weights: np.ndarray) -> float:
    """1 - ||sum_k p_k d_k||^2 / sum_k p_k ||d_k||^2 from inner products [K, K] and weights [K]; 0 if nothing moves."""
    total = float(weights @ products.diagonal())
    if not total > 0:
        return 0.0
    common = float(weights @ products @ weights)
    return 1 - common / total


def cancelled_gradients(parts: np.ndarray, weights: np.ndarray) -> float:
    """The same for gradients, without the noise of finite samples, from inner products [K, F, K, F] of parts.

    The mean of F parts has a squared error of sum_f ||g_kf - g_k||^2 / (F (F - 1)), which is taken off both sums.
    """
    products = parts.mean((1, 3))
    folds = parts.shape[1]
    single = np.einsum("kfkf->k", parts) / folds
    noise = (single - products.diagonal()) / (folds - 1)
    total = float(weights @ (products.diagonal() - noise))
    if not total > 0:
        return 0.0
    common = float(weights @ products @ weights - (weights**2) @ noise)
    return float(np.clip(1 - common / total, 0, 1))


def _drift(rounds: np.ndarray, weights: np.ndarray) -> float:
    """The mean over rounds [R, K, K] of the movement that cancels."""
    return float(np.mean([cancelled(products, weights) for products in rounds]))


def _mean_drift(trained: TrainedDivision, weights: np.ndarray) -> float:
    return _drift(trained.updates.sum(1), weights)


def _cancelled_at_start(trained: TrainedDivision, weights: np.ndarray) -> float:
    return cancelled_gradients(trained.start, weights)


def _cancelled_at_end(trained: TrainedDivision, weights: np.ndarray) -> float:
    return cancelled_gradients(trained.end, weights)


def _layer_drift(layer: int, trained: TrainedDivision, weights: np.ndarray) -> float:
    return _drift(trained.updates[:, layer], weights)


def _mean_cosine(trained: TrainedDivision, weights: np.ndarray) -> float:
    """The mean cosine over pairs of different clients with a weight above 0; NaN without such a pair."""
    takes_part = (weights > 0).astype(float)
    pairs = np.outer(takes_part, takes_part)
    np.fill_diagonal(pairs, 0)
    if not pairs.sum():
        return float("nan")
    return float((pairs * trained.cosines()).sum() / pairs.sum())


def _measure(
    kind: str,
    name: str,
    title: str,
    statistic: Callable[[TrainedDivision, np.ndarray], float],
    limits: tuple[float, float],
    division: TrainedDivision,
    references: dict[str, TrainedDivision],
    seed: int,
) -> Measure:
    """The measure of a statistic of a division and weights [K], with its interval over resampled clients."""
    value = statistic(division, division.weights)
    resampled = np.array(
        [statistic(division, weights) for weights in _resampled_weights(division.weights, seed)]
    )
    low, high = bootstrap_interval(value, resampled[~np.isnan(resampled)], limits)
    scale = {
        reference: statistic(trained, trained.weights) for reference, trained in references.items()
    }
    return Measure(
        kind=kind,
        name=name,
        title=title,
        value=value,
        low=low,
        high=high,
        scale=scale,
        range=limits,
    )


def _resampled_weights(weights: np.ndarray, seed: int) -> list[np.ndarray]:
    """The weights of clients drawn with replacement, `RESAMPLES` times."""
    rng = generator(seed, "resampled clients")
    clients = len(weights)
    equal = np.full(clients, 1 / clients)
    resampled = rng.multinomial(clients, equal, size=RESAMPLES) * weights
    return list(resampled / resampled.sum(1, keepdims=True))


def _clusters(trained: TrainedDivision, names: list[str], seed: int) -> Clusters | None:
    """Clusters by the gradients at the last model. Clients without groups: normal vectors of the same covariance."""
    parts = trained.end
    clients, folds = parts.shape[:2]
    products = parts.mean((1, 3))
    # The spectrum of the clients' gradients about their mean: as many normal vectors with it differ as much, without groups.
    middle = np.eye(clients) - 1 / clients
    spectrum = np.maximum(np.linalg.eigvalsh(middle @ products @ middle), 0)
    equal = np.full(folds, 1 / folds)

    def redrawn(rng: np.random.Generator) -> np.ndarray:
        shares = rng.multinomial(folds, equal, size=clients) / folds
        return _distances(np.einsum("kf,kflg,lg->kl", shares, parts, shares))

    def groupless(rng: np.random.Generator) -> np.ndarray:
        scale = np.sqrt(spectrum / max(clients - 1, 1))
        vectors = rng.standard_normal((clients, clients)) * scale
        return _distances(vectors @ vectors.T)

    return clusters_of(_distances(products), names, "gradients", redrawn, groupless, seed)


def _distances(products: np.ndarray) -> np.ndarray:
    """The distances between vectors with these inner products, [K, K]."""
    lengths = products.diagonal()
    squares = lengths[:, None] + lengths - 2 * products
    np.fill_diagonal(squares, 0)
    return np.sqrt(np.maximum(squares, 0))


def _cosines(products: np.ndarray) -> np.ndarray:
    norms = np.sqrt(np.maximum(products.diagonal(), 0))
    return products / np.maximum(np.outer(norms, norms), np.finfo(float).tiny)


def inner_products(rows: torch.Tensor) -> np.ndarray:
    """The inner products of K tensors, [K, K]."""
    flat = rows.flatten(1).cpu()
    return (flat @ flat.T).double().numpy()


def _reference_divisions(samples: ClientSamples, seed: int) -> list[tuple[str, np.ndarray]]:
    """The reference divisions to train on: name, owners [N]."""
    rng = generator(seed, "trained references")
    one_stratum = np.zeros_like(samples.labels)
    divisions = [(NO_SKEW, shuffled_within(one_stratum, samples.owners, rng))]
    for name, spec in reference_specs(samples.client_counts).items():
        owners = divided(spec, samples.labels, samples.clients, seed)
        if owners is not None:
            divisions.append((name, owners))
    return divisions


def _population(population: Population, samples: ClientSamples, owners: np.ndarray) -> Population:
    """The clients of a division of the diagnosed samples that have any, without test samples."""
    train = Ragged.of(samples.rows[owners == k] for k in np.unique(owners))
    none = Ragged.empty(len(train))
    return replace(
        population,
        train=train,
        test=none,
        val=none,
        names=NumberedNames(len(train)),
        plan=None,
        clusters=None,
    )
