"""References as a statistician fits them: models of scikit-learn, of each client alone and of all data pooled, to convergence.

They say what a table holds, whatever rounds of training make of it. Each has the training rows of a seed's division and predicts
its test rows, so that its scores and those of the methods form pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from unalike._utils.functions import source_hashes
from unalike._utils.tensor_files import write_bytes
from unalike._utils.version import __version__
from unalike.core.inputs import is_one_tensor
from unalike.core.tasks.task import CLASSES, SQUARED_ERROR, Task
from unalike.metrics.metrics import measure, per_client
from unalike.metrics.scoring import Scores
from unalike.runtime.records.run_directory import digest
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.evaluation import resampled_metrics
from unalike.statistics.client_scores import POOLED
from unalike.statistics.fitted_scores import ALONE, TEST_ROWS, TOGETHER

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "references"
"""The folder of finished fits in that of a comparison, beside its cells."""
MAX_CLIENTS = 100
"""With more clients their fits would take longer than the comparison."""
MAX_NUMBERS = 2**22
"""Most rows times columns of a table that is fitted, for the same reason."""
MAX_ITERATIONS = 1000
"""Most iterations of a linear model, which converges in fewer on scaled columns."""
LEAST_PROBABILITY = 1e-6
"""Smaller probabilities count as this, so that a loss is finite."""

Estimator: TypeAlias = Any
"""A model of scikit-learn, with `fit` and `predict` or `predict_proba`."""
Predictions: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Inputs [n, D] -> probabilities of the classes [n, C], or numbers [n, 1]."""


def linear(seed: int, classes: int) -> Estimator:
    """Logistic regression with an L2 penalty (C = 1), or ridge regression (alpha = 1), on columns scaled on the rows of the fit."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(max_iter=MAX_ITERATIONS) if classes else Ridge()
    return make_pipeline(StandardScaler(), model)


def forest(seed: int, classes: int) -> Estimator:
    """A random forest of 100 trees with at least five rows a leaf."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kind = RandomForestClassifier if classes else RandomForestRegressor
    return kind(n_estimators=100, min_samples_leaf=5, random_state=seed)


def boosting(seed: int, classes: int) -> Estimator:
    """Gradient boosting of 60 trees with at most eight leaves."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return kind(max_iter=60, max_leaf_nodes=8, random_state=seed)


@dataclass(frozen=True)
class FittedModel:
    """A kind of model: `make` takes a seed and the number of classes (0: numbers) and returns one that is not fitted yet.

    `trees`: it is made of trees, which no method of rounds trains.
    """

    name: str
    make: Callable[[int, int], Estimator]
    trees: bool


LOGISTIC = FittedModel("logistic", linear, trees=False)
LINEAR = FittedModel("linear", linear, trees=False)
FOREST = FittedModel("forest", forest, trees=True)
BOOSTING = FittedModel("boosting", boosting, trees=True)


@dataclass(frozen=True)
class FittedReference:
    """A model that is fitted on each client's rows (`ALONE`) or once on all rows (`TOGETHER`)."""

    scope: str
    model: FittedModel

    @property
    def label(self) -> str:
        """Its name in every table: `alone(forest)`."""
        return f"{self.scope}({self.model.name})"


def references(task: Task) -> tuple[FittedReference, ...]:
    """A linear model for both, and the trees that suit the number of rows: a forest for one client's, boosting for all."""
    plain = LOGISTIC if task.offers(CLASSES) else LINEAR
    return (
        FittedReference(ALONE, plain),
        FittedReference(ALONE, FOREST),
        FittedReference(TOGETHER, plain),
        FittedReference(TOGETHER, BOOSTING),
    )


def why_not_fitted(run_config: RunConfig) -> str:
    """The reason why a table has no fitted references, for the notes of a comparison; empty if it has, or is no table."""
    population = run_config.population
    if not _is_table(run_config):
        return ""
    width = int(np.prod(population.input_shape))
    numbers = len(population.train.values) * width
    if len(population) > MAX_CLIENTS or numbers > MAX_NUMBERS:
        return (
            f"No model of scikit-learn was fitted to say whether training together pays: found {len(population)} clients and "
            f"{len(population.train.values)} training rows of {width} columns, expected at most {MAX_CLIENTS} clients and "
            f"{MAX_NUMBERS:,} numbers."
        )
    if (population.sizes[population.test.sizes > 0] == 0).any():
        return (
            "No model of scikit-learn was fitted to say whether training together pays: some clients have test rows and no "
            "training row, so nothing can be fitted for them alone."
        )
    return ""


def can_be_fitted(run_config: RunConfig) -> bool:
    """Whether the run is on a table whose clients are tested, and the fits take a reasonable time."""
    return _is_table(run_config) and not why_not_fitted(run_config)


def _is_table(run_config: RunConfig) -> bool:
    """Whether the inputs are the encoded columns of a table, and methods are scored on the clients' test rows."""
    population = run_config.population
    encoding = population.encoding
    if encoding is None or encoding.words is not None:
        return False
    is_scored = run_config.columns.unprefixed_protocol == "clients" and len(population.test.values)
    return bool(is_scored and is_one_tensor(population.x) and _can_predict(population.task))


def _can_predict(task: Task) -> bool:
    """Whether predictions of scikit-learn can be scored: classes, or numbers with the squared error as the loss."""
    even = torch.full((1, 2), 0.5)
    return task.logits_of(even) is not None or task.offers(SQUARED_ERROR)


def fitted_scores(run_config: RunConfig, store: Path | None, with_draws: bool) -> pd.DataFrame:
    """The scores of all references on the division of a run, as `statistics.fitted_scores` describes them.

    They are fitted, or read from `store`, the folder of a comparison, where an earlier call with the same data put them.
    `with_draws`: also on resampled test rows, for comparisons whose seeds all test the same rows.
    """
    import pandas as pd

    if store is None:
        return _fit_all(run_config, with_draws)
    file = store / FOLDER / f"seed{run_config.options.seed}-{_key(run_config, with_draws)}.parquet"
    # a damaged file is written anew
    with suppress(OSError, ValueError):
        return pd.read_parquet(file)
    table = _fit_all(run_config, with_draws)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, table.to_parquet(index=False))
    return table


def _key(run_config: RunConfig, with_draws: bool) -> str:
    """The hash of everything that decides the scores."""
    import sklearn

    population = run_config.population
    return digest(
        {
            "unalike": __version__,
            "scikit-learn": sklearn.__version__,
            "references": [reference.label for reference in references(population.task)],
            "data": population.fingerprint,
            "task": population.task.spec,
            "metrics": list(run_config.metrics),
            "code": source_hashes(metric.formula for metric in run_config.metrics.values()),
            "seed": run_config.options.seed,
            "draws": with_draws,
        }
    )


def _fit_all(run_config: RunConfig, with_draws: bool) -> pd.DataFrame:
    """Fit and score all references on the division of a run."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for reference in references(run_config.population.task):
        named = {
            "method": reference.label,
            "seed": run_config.options.seed,
            "scope": reference.scope,
            "model": reference.model.name,
            "trees": reference.model.trees,
        }
        scores = _scores(reference, run_config)
        for row in _score_rows(run_config, scores):
            rows.append({**named, "draw": TEST_ROWS, **row})
        if with_draws:
            resampled = resampled_metrics(run_config.population.task, scores, run_config.metrics)
            for draw, metrics in enumerate(resampled):
                rows.append({**named, "draw": draw, "client": POOLED, **metrics})
    return pd.DataFrame(rows)


def _scores(reference: FittedReference, run_config: RunConfig) -> Scores:
    """The test rows of all clients as a reference predicts them."""
    population = run_config.population
    x = population.x.numpy(force=True).astype(np.float64)
    y = population.y.numpy(force=True)
    parts = []
    for clients, predictions in fitted_models(reference, run_config):
        rows = np.concatenate([population.test[k] for k in clients])
        owners = np.repeat(clients, population.test.sizes[clients])
        labels = torch.from_numpy(y[rows])
        parts.append(scored(population.task, predictions(x[rows]), labels, owners))
    return Scores.join(parts)


def fitted_models(
    reference: FittedReference, run_config: RunConfig
) -> Iterator[tuple[np.ndarray, Predictions]]:
    """Each model of a reference: the tested clients that it is for, int64 [K], and its predictions."""
    population = run_config.population
    x = population.x.numpy(force=True).astype(np.float64)
    y = population.y.numpy(force=True)
    classes = population.class_count or 0
    for clients, train in _training_rows(reference.scope, run_config):
        yield clients, _fit(reference, x[train], y[train], run_config.options.seed, classes)


def _training_rows(scope: str, run_config: RunConfig) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The clients that one fit predicts, and the rows that it trains on; a row that several clients have counts once."""
    population = run_config.population
    tested = np.flatnonzero(population.test.sizes)
    if scope == TOGETHER:
        yield tested, np.unique(population.train.values)
        return
    for k in tested:
        yield np.array([k]), population.train[int(k)]


def _fit(
    reference: FittedReference, x: np.ndarray, y: np.ndarray, seed: int, classes: int
) -> Predictions:
    """Fit a model on rows x [n, D], y [n]; where all rows are of one class, their share predicts."""
    from sklearn.dummy import DummyClassifier

    has_one_class = classes > 0 and len(np.unique(y)) == 1
    model = DummyClassifier() if has_one_class else reference.model.make(seed, classes)
    model.fit(x, y)
    if not classes:
        return lambda rows: model.predict(rows)[:, None]

    def probabilities(rows: np.ndarray) -> np.ndarray:
        # Each row once: a matrix product may round equal rows differently, and a tie of risks would be none.
        distinct, place = np.unique(rows, axis=0, return_inverse=True)
        p = np.zeros((len(distinct), classes))
        p[:, model.classes_.astype(int)] = model.predict_proba(distinct)
        return p[place]

    return probabilities


def scored(task: Task, predictions: np.ndarray, y: torch.Tensor, owners: np.ndarray) -> Scores:
    """Predictions [n, C] or [n, 1] of labels y [n], as an evaluation of a method gives them."""
    outputs = torch.from_numpy(predictions)
    logits = task.logits_of(outputs.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))
    if logits is None:
        logits = outputs
    labels, predicted = task.scored(logits, y)
    return Scores(
        client=owners,
        loss=task.losses(logits, y).numpy(),
        y=labels.numpy(),
        predicted=predicted.numpy(),
        logits=task.scored_logits(logits, wanted=True).numpy(),
    )


def _score_rows(run_config: RunConfig, scores: Scores) -> Iterator[Mapping[str, Any]]:
    """One row per tested client, and one for all test rows together."""
    population = run_config.population
    task = population.task
    counts = {"n_train": population.sizes, "n_test": population.test.sizes}
    if population.positives is not None:
        counts["n_positive"] = population.positives
    by_client = per_client(task, scores, len(population), run_config.metrics)
    for k in np.flatnonzero(population.test.sizes):
        sizes = {name: int(numbers[k]) for name, numbers in counts.items()}
        yield {"client": population.names[int(k)]} | sizes | by_client[int(k)]
    of_all = {name: int(numbers.sum()) for name, numbers in counts.items()}
    yield {"client": POOLED} | of_all | measure(task, scores, run_config.metrics)
