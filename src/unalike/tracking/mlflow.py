"""MLflow: a run of an experiment in a tracking store, which may be a local file or a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unalike._utils.errors import require_extra
from unalike.tracking.tracker import Row, TrackedRun, registry

MOST_PARAMETERS = 100
"""Parameters that MLflow takes in one request."""
LONGEST = 6000
"""Characters that MLflow keeps of a parameter."""


@dataclass
class MLflow:
    """Each run's rows as metrics, its config as parameters, its model and report as artifacts.

    `uri` is a tracking store such as "sqlite:///mlflow.db" or "http://host:5000", MLflow's own default unless given.
    """

    uri: str | None = None
    experiment: str = "unalike"
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)
    _last: int = field(default=-1, init=False, repr=False)

    def begin(self, run: TrackedRun) -> str:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client, self._last = MlflowClient(tracking_uri=self.uri), -1
        if run.known_as is not None:
            self._id = run.known_as
            self._client.update_run(self._id, status="RUNNING")
            for name in self._client.get_run(self._id).data.metrics:
                self._last = max(self._last, *(m.step for m in self._client.get_metric_history(self._id, name)))
            return self._id
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        tags = {"mlflow.runName": run.name} | ({"comparison": run.group} if run.group else {})
        self._id = self._client.create_run(experiment, tags=tags).info.run_id
        parameters = [Param(name, str(value)[:LONGEST]) for name, value in run.config.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + MOST_PARAMETERS])
        return self._id

    def log(self, row: Row) -> None:
        from mlflow.entities import Metric

        step, now = int(row["round"]), int(time.time() * 1000)
        if step > self._last:  # a resumed run logs all its rounds again
            metrics = [Metric(name, value, now, step) for name, value in row.items() if name != "round"]
            self._client.log_batch(self._id, metrics=metrics)

    def end(self, files: Sequence[Path], finished: bool) -> None:
        for file in files:
            self._client.log_artifact(self._id, str(file))
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


@registry.register("mlflow")
def mlflow(*, uri: str | None = None, experiment: str = "unalike") -> MLflow:
    """Runs in an MLflow store: uri='sqlite:///mlflow.db', 'http://host:5000', or MLflow's default."""
    require_extra("mlflow", "mlflow", what="track='mlflow'")
    return MLflow(uri, experiment)
