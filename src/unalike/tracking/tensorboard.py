"""TensorBoard: event files that `tensorboard --logdir FOLDER` shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unalike._utils.errors import require_extra
from unalike._utils.spec import slug
from unalike.tracking.tracker import Row, TrackedRun, registry

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
        lines = [f"| {k} | {v} |" for k, v in run.config.items()]
        self._writer.add_text("config", "\n".join(["| | |", "| :-- | :-- |", *lines]), 0)
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
