"""The data sets of the study `natural` as stored tasks, from its stored results: recommendations are learned from them as well."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike.core.work import Work
from unalike.data.partitioning.partition import partition
from unalike.data.sources.load import load
from unalike.diagnosis.diagnose import diagnose_population
from unalike.metrics.named_metrics import Metric
from unalike.metrics.named_metrics import read as read_metrics
from unalike.statistics.scores import worst_decile
from unalike_studies.catalogue import study
from unalike_studies.layouts.gains import client_scores, score_of
from unalike_studies.papers.natural import COLUMNS, COMMON, SETTINGS, TASKS
from unalike_studies.recommendation.stored_runs import BASELINE, METHODS, METRICS, NATURAL
from unalike_studies.recommendation.stored_tasks import StoredTask
from unalike_studies.recommendation.task_features import Conditions, features
from unalike_studies.recommendation.task_runs import TUNING_SEED
from unalike_studies.result_files import FOLDER, read
from unalike_studies.results import CellResult

if TYPE_CHECKING:
    import pandas as pd


def natural_runs(root: Path = FOLDER) -> Iterator[pd.DataFrame]:
    """The runs of one data set at a time, of the methods that other stored tasks have too, with the columns of `run_task`."""
    import pandas as pd

    results = read(root / "natural" / "small", study("natural").scale("small").cells)
    for data, options in SETTINGS.items():
        # The columns that all runs of the data set share: the task, and its features.
        clients = partition(load(data), options["partition"], seed=TUNING_SEED)
        task = StoredTask(
            data,
            kind=NATURAL,
            partition=options["partition"],
            clients=len(clients),
            participation=1.0,
            epochs=1,
            model=COMMON["model"],
            metric=COLUMNS[data],
        )
        conditions = Conditions(1.0, Work(**options["work"]), COMMON["model"])
        diagnosis = diagnose_population(clients, data, seed=TUNING_SEED)
        task_columns = task.fields | features(clients, diagnosis, conditions)

        # The metrics that are defined for these data are those that the clients have.
        first_cell = next(iter(results.of(BASELINE, data).values()))
        metrics = [metric for metric in read_metrics(METRICS) if metric.name in first_cell.clients]
        rows = []
        for name, spec in METHODS.items():
            for seed, cell in results.of(name, data).items():
                run_columns = {"method": name, "spec": spec, "seed": seed}
                rows.append(task_columns | run_columns | _scores(cell, data, metrics))
        yield pd.DataFrame(rows)


def _scores(cell: CellResult, data: str, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The scores of a run in these metrics, that of the worst clients in the metric of the data set, bytes and seconds."""
    import pandas as pd

    [metric_of_data] = read_metrics([COLUMNS[data]])
    by_client = [value for value, _ in client_scores(cell, metric_of_data.name)]
    worst = worst_decile(pd.Series(by_client, dtype=float), metric_of_data)
    scores = {metric.name: _finite(score_of(cell, metric.name), metric) for metric in metrics}

    # A run that diverged has no history, and thus no costs.
    bytes_a_round = seconds = math.nan
    traffic = [sum(both) for both in zip(cell.column("bytes_down"), cell.column("bytes_up"))]
    if traffic:
        bytes_a_round = sum(traffic) / len(traffic)
        seconds = sum(cell.column("seconds"))
    return {
        "rate": TASKS[data].lr,
        "validation": math.nan,
        **scores,
        "worst_decile": _finite(worst, metric_of_data),
        "bytes": bytes_a_round,
        "seconds": seconds,
    }


def _finite(score: float, metric: Metric) -> float:
    """The score; of a run that diverged 0, or an infinite error."""
    if math.isfinite(score):
        return score
    return math.inf if metric.sign < 0 else 0.0
