"""Every model at every site: shared and personal models of runs, and fitted references, on the test rows of each client."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from unalike.comparison.fitted_references import Predictions, fitted_models, references, scored
from unalike.core.inputs import is_one_tensor, take_rows
from unalike.data.population import Population
from unalike.metrics.metrics import RunMetrics, per_client, positives
from unalike.metrics.scoring import Predict, Scores, score
from unalike.runtime.setup.run_config import RunConfig
from unalike.statistics.fitted_scores import ALONE

if TYPE_CHECKING:
    import pandas as pd

ScoreRows = Callable[[np.ndarray, np.ndarray], Scores]
"""Rows of the data [n] and the client of each [n] -> their scores."""


@dataclass(frozen=True)
class SiteModel:
    """A model of a method or reference; `site` is the client that it was made for, empty for a model of all clients."""

    method: str
    site: str
    score: ScoreRows


def trained_model(population: Population, method: str, site: str, predict: Predict) -> SiteModel:
    """A model of a run, by its predictions."""

    def score_rows(rows: np.ndarray, owners: np.ndarray) -> Scores:
        index = torch.from_numpy(rows)
        x = take_rows(population.x, index.to(population.y.device))
        y = population.y[index]
        return score(population.task, predict, x, y, owners, logits=True)

    return SiteModel(method, site, score_rows)


def reference_models(run_config: RunConfig) -> Iterator[SiteModel]:
    """The models of all fitted references: one for each client, or one of the pooled rows."""
    population = run_config.population
    if not is_one_tensor(population.x):
        return
    x = population.x.numpy(force=True).astype(np.float64)
    for reference in references(population.task):
        for clients, predictions in fitted_models(reference, run_config):
            site = population.names[int(clients[0])] if reference.scope == ALONE else ""
            score_rows = partial(_score_reference, population, x, predictions)
            yield SiteModel(reference.label, site, score_rows)


def _score_reference(
    population: Population,
    x: np.ndarray,
    predictions: Predictions,
    rows: np.ndarray,
    owners: np.ndarray,
) -> Scores:
    labels = population.y[torch.from_numpy(rows)].cpu()
    return scored(population.task, predictions(x[rows]), labels, owners)


def cross_site_scores(
    population: Population, models: Sequence[SiteModel], metrics: RunMetrics
) -> "pd.DataFrame":
    """One row per model and tested client: `method site client n_test [n_positive]` and the metrics.

    `site` is the client that the model was made for, empty for a model of all; `client` the one whose test rows score it.
    """
    import pandas as pd

    tested = np.flatnonzero(population.test.sizes)
    test_rows = np.concatenate([population.test[int(k)] for k in tested])
    owners = np.repeat(tested, population.test.sizes[tested])
    rows = []
    for model in models:
        scores = model.score(test_rows, owners)
        by_client = per_client(population.task, scores, len(population), metrics)
        positive_counts = positives(scores, len(population), population.classes)
        for k in tested:
            row = {
                "method": model.method,
                "site": model.site,
                "client": population.names[int(k)],
                "n_test": int(population.test.sizes[k]),
            }
            if positive_counts is not None:
                row["n_positive"] = int(positive_counts[k])
            rows.append(row | by_client[int(k)])
    return pd.DataFrame(rows)
