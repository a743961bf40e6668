"""Weights & Biases: a run of a project, sent to a server or kept in files (mode='offline')."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args
from uuid import uuid4

from unalike._utils.errors import UnalikeError, require_extra
from unalike.tracking.tracker import Row, TrackedRun, registry

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
        if step >= self._run.step:  # a resumed run logs all its rounds again; the server has the first ones
            self._run.log({name: value for name, value in row.items() if name != "round"}, step=step)

    def end(self, files: Sequence[Path], finished: bool) -> None:
        import wandb

        if files:
            artifact = wandb.Artifact(f"files-{self._run.id}", "result")
            for file in files:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if finished else 1)


@registry.register("wandb")
def wandb_run(*, project: str = "unalike", mode: str | None = None, entity: str | None = None) -> WeightsAndBiases:
    """Runs of a Weights & Biases project; mode='offline' keeps them in files."""
    require_extra("wandb", "wandb", what="track='wandb'")
    if mode is not None and mode not in get_args(Mode):
        raise UnalikeError(f"wandb(mode={mode!r}): expected one of {', '.join(get_args(Mode))}")
    return WeightsAndBiases(project, cast("Mode | None", mode), entity)
