"""The services that `track=` can name: MLflow, TensorBoard, and Weights & Biases."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args
from uuid import uuid4

from unalike._utils.errors import UnalikeError, require_extra
from unalike._utils.spec import slug
from unalike.tracking.tracker import Row, TrackedRun, registry

MAX_PARAMETERS = 100
"""Parameters that MLflow takes in one request."""
MAX_PARAMETER_LETTERS = 6000
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

        self._client = MlflowClient(tracking_uri=self.uri)
        self._last = -1

        # a resumed run goes on after the last round that the store has
        if run.known_as is not None:
            self._id = run.known_as
            self._client.update_run(self._id, status="RUNNING")
            for name in self._client.get_run(self._id).data.metrics:
                history = self._client.get_metric_history(self._id, name)
                for metric in history:
                    self._last = max(self._last, metric.step)
            return self._id

        experiment = self._client.get_experiment_by_name(self.experiment)
        experiment_id = None if experiment is None else experiment.experiment_id
        if experiment_id is None:
            experiment_id = self._client.create_experiment(self.experiment)
        tags = {"mlflow.runName": run.name}
        if run.group:
            tags["comparison"] = run.group
        self._id = self._client.create_run(experiment_id, tags=tags).info.run_id
        parameters = [
            Param(name, str(value)[:MAX_PARAMETER_LETTERS]) for name, value in run.config.items()
        ]
        for start in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + MAX_PARAMETERS])
        return self._id

    def log(self, row: Row) -> None:
        from mlflow.entities import Metric

        step = int(row["round"])
        # a resumed run logs all its rounds again
        if step <= self._last:
            return
        milliseconds = int(time.time() * 1000)
        metrics = [
            Metric(name, value, milliseconds, step)
            for name, value in row.items()
            if name != "round"
        ]
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


FLUSH_SECONDS = 10


@dataclass
class TensorBoard:
    """Each run's rows as scalars, and its config as text and hyperparameters.

    `folder` gets one folder per run. Without it the events are in the folder that keeps the run (`tensorboard/`), or without one
    in `runs/`, each run with the time in its name.
    """

    folder: str | None = None
    _writer: Any = field(default=None, init=False, repr=False)

    def begin(self, run: TrackedRun) -> str:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        name = slug(f"{run.group} {run.name}")
        if run.known_as is not None:
            home = Path(run.known_as)
        elif self.folder is not None:
            home = Path(self.folder) / name
        elif run.folder is not None:
            home = run.folder / "tensorboard"
        else:
            home = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        # a resumed run logs all its rounds again: readers drop the older events
        self._writer = SummaryWriter(
            str(home), purge_step=None if run.known_as is None else 0, flush_secs=FLUSH_SECONDS
        )
        lines = ["| | |", "| :-- | :-- |"]
        lines += [f"| {name} | {value} |" for name, value in run.config.items()]
        self._writer.add_text("config", "\n".join(lines), 0)
        for summary in hparams(run.config, {}):
            self._writer.file_writer.add_summary(summary)
        return str(home.resolve())

    def log(self, row: Row) -> None:
        for name, value in row.items():
            if name != "round":
                self._writer.add_scalar(name, value, int(row["round"]))

    def end(self, files: Sequence[Path], finished: bool) -> None:
        self._writer.close()


@registry.register("tensorboard")
def tensorboard(*, folder: str | None = None) -> TensorBoard:
    """Event files for TensorBoard, in the folder of the run unless `folder` is given."""
    require_extra("tensorboard", "tensorboard", what="track='tensorboard'")
    return TensorBoard(folder)


Mode = Literal["online", "offline", "disabled"]


@dataclass
class WeightsAndBiases:
    """Each run's rows as its history, its config, its model and report as an artifact.

    Runs of a comparison have a group. With mode="offline" the files are in the run's folder, or without one in the current folder
    (`wandb/`), until `wandb sync` sends them. The mode is that of `wandb` itself unless given.
    """

    project: str = "unalike"
    mode: Mode | None = None
    entity: str | None = None
    _run: Any = field(default=None, init=False, repr=False)

    def begin(self, run: TrackedRun) -> str:
        import wandb

        name = run.known_as or uuid4().hex[:8]
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            name=run.name,
            group=run.group or None,
            id=name,
            resume="allow",
            config=run.config,
            dir=None if run.folder is None else str(run.folder),
            settings=wandb.Settings(console="off", silent=True),
        )
        return name

    def log(self, row: Row) -> None:
        step = int(row["round"])
        # a resumed run logs all its rounds again; the server has the first ones
        if step < self._run.step:
            return
        numbers = {name: value for name, value in row.items() if name != "round"}
        self._run.log(numbers, step=step)

    def end(self, files: Sequence[Path], finished: bool) -> None:
        import wandb

        if files:
            artifact = wandb.Artifact(f"files-{self._run.id}", "result")
            for file in files:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if finished else 1)


@registry.register("wandb")
def wandb_run(
    *, project: str = "unalike", mode: str | None = None, entity: str | None = None
) -> WeightsAndBiases:
    """Runs of a Weights & Biases project; mode='offline' keeps them in files."""
    require_extra("wandb", "wandb", what="track='wandb'")
    if mode is not None and mode not in get_args(Mode):
        raise UnalikeError(f"wandb(mode={mode!r}): expected one of {', '.join(get_args(Mode))}")
    return WeightsAndBiases(project, cast("Mode | None", mode), entity)
