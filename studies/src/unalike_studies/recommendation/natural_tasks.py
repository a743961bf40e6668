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
        clients = partition(load(data), options["partition"], seed=TUNING_SEED)
        conditions = Conditions(1.0, Work(**options["work"]), COMMON["model"])
        task = StoredTask(
            data,
            NATURAL,
            options["partition"],
            len(clients),
            1.0,
            1,
            COMMON["model"],
            metric=COLUMNS[data],
        )
        own = features(clients, diagnose_population(clients, data, seed=TUNING_SEED), conditions)
        scored = next(iter(results.of(BASELINE, data).values())).clients
        metrics = [metric for metric in read_metrics(METRICS) if metric.name in scored]
        yield pd.DataFrame(
            [
                task.fields
                | own
                | {"method": name, "spec": METHODS[name], "seed": seed}
                | _scores(cell, data, metrics)
                for name in METHODS
                for seed, cell in results.of(name, data).items()
            ]
        )


def _scores(cell: CellResult, data: str, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The scores of a run in these metrics, that of the worst clients in the metric of the data set, bytes and seconds."""
    import pandas as pd

    [own] = read_metrics([COLUMNS[data]])
    worst = worst_decile(
        pd.Series([value for value, _ in client_scores(cell, own.name)], dtype=float), own
    )
    traffic = [sum(both) for both in zip(cell.column("bytes_down"), cell.column("bytes_up"))]
    return {
        "rate": TASKS[data].lr,
        "validation": math.nan,
        **{metric.name: _finite(score_of(cell, metric.name), metric) for metric in metrics},
        "worst_decile": _finite(worst, own),
        "bytes": sum(traffic) / len(traffic) if traffic else math.nan,
        "seconds": sum(cell.column("seconds")) if traffic else math.nan,
    }


def _finite(score: float, metric: Metric) -> float:
    """The score; of a run that diverged 0, or an infinite error."""
    return score if math.isfinite(score) else math.inf if metric.sign < 0 else 0.0
