"""The stored runs of many methods on many tasks: one Parquet file with a row per task, method and seed.

`stored_tasks.py` has the tasks, `task_runs.py` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.metrics.named_metrics import read as read_metrics
from unalike_studies.recommendation.task_features import TITLES

if TYPE_CHECKING:
    import pandas as pd

RUNS_FILE = Path(__file__).with_name("runs.parquet")
NATURAL = "natural"
"""The kind of tasks whose clients are real owners of data; their runs are those of the study `natural`."""
SHARED: Mapping[str, str] = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox(mu=0.1)",
    "SCAFFOLD": "scaffold",
    "FedNova": "fednova",
    "FedAvgM": "fedavgm",
    "FedAdagrad": "fedadagrad",
    "FedDyn": "feddyn(alpha=0.1)",
    "FedLWS": "fedlws",
    "FedPake": "fedpake",
}
"""Label -> method whose clients all get the same model."""
PERSONAL: Mapping[str, str] = {
    "local only": "local_only",
    "fine-tuning": "local_finetune",
    "Ditto": "ditto(lam=0.1)",
    "IFCA": "ifca(clusters=2)",
}
"""Label -> method whose clients get models of their own, or one for each cluster. All train every model, a linear one as well."""
METHODS: Mapping[str, str] = {**SHARED, **PERSONAL}
BASELINE = "FedAvg"
OBJECTIVES = ("accuracy", "worst_decile")
"""Scores that a method can be chosen for."""
METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "roc_auc", "rmse", "mae")
"""Metrics that runs are stored in; the tasks with real owners have all that are defined for them, the others accuracy."""
RESULTS = (
    "method",
    "spec",
    "rate",
    "validation",
    "seed",
    *METRICS,
    "worst_decile",
    "bytes",
    "seconds",
)
"""Columns that differ between the runs of a task."""
WORST_ERROR = 2.0
"""The largest error that counts, in errors of FedAvg: a run that diverged has lost as much as FedAvg's whole error."""


@dataclass(frozen=True, eq=False)
class StoredRuns:
    """Runs of all methods on some tasks. `table` has one row per task, method and seed; see `DATASHEET.md`."""

    table: pd.DataFrame

    @classmethod
    def read(cls, path: Path = RUNS_FILE) -> StoredRuns:
        """Read a file of runs. Raises `UnalikeError` if it cannot be read."""
        import pandas as pd

        try:
            return cls(pd.read_parquet(path))
        except (OSError, ValueError) as error:
            raise UnalikeError(
                f"cannot read the stored runs {path}: {error}; install unalike-studies again"
            ) from None

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """One row per task: its fields and features, with its name as the index."""
        fixed = [name for name in self.table if name not in RESULTS]
        return self.table.drop_duplicates("task")[fixed].set_index("task")

    @property
    def features(self) -> np.ndarray:
        """The features of the tasks, in the order of `TITLES`, [T, F]."""
        return self.tasks[list(TITLES)].to_numpy(float)

    def scores(self, objective: str) -> pd.DataFrame:
        """The mean of a score over the seeds: tasks (rows) by methods (columns), NaN where a task was not run with a method.

        Accuracy stands for the metric of each task. Errors count as shares of FedAvg's, with a minus sign: a gain of 0.1 is an
        error that is a tenth smaller.
        """
        table = self.table
        metrics = table["metric"]
        # Every row has its own metric's score, and 0 from the other metrics.
        if objective == "accuracy":
            own_scores = [table[name].where(metrics == name, 0) for name in metrics.unique()]
            table = table.assign(accuracy=sum(own_scores))
        wide = table.pivot_table(index="task", columns="method", values=objective)
        wide = wide.reindex(index=self.tasks.index, columns=list(METHODS))

        signs = {metric.name: metric.sign for metric in read_metrics(metrics.unique())}
        error = self.tasks["metric"].map(signs) < 0
        relative = wide[error].div(wide.loc[error, BASELINE], axis=0)
        wide[error] = -relative.clip(upper=WORST_ERROR)
        return wide

    def gains(self, objective: str) -> pd.DataFrame:
        """The scores less that of FedAvg on the same task."""
        scores = self.scores(objective)
        return scores.sub(scores[BASELINE], axis=0)

    @property
    def made(self) -> StoredRuns:
        """The runs of the tasks whose clients a partition made."""
        return StoredRuns(self.table[self.table["kind"] != NATURAL])

    @property
    def natural(self) -> StoredRuns:
        """The runs of the tasks whose clients are real owners of data."""
        return StoredRuns(self.table[self.table["kind"] == NATURAL])

    def of(self, tasks: np.ndarray) -> StoredRuns:
        """The runs of some tasks, by their positions in `tasks`."""
        names = self.tasks.index[tasks]
        return StoredRuns(self.table[self.table["task"].isin(names)])
