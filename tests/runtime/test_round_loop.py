"""The way from `ua.run` to the loss is short."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import unalike as ua
from unalike.methods.roles import Objective

PACKAGE = str(Path(ua.__file__).parent)
frames: list[list[traceback.FrameSummary]] = []


@dataclass(frozen=True)
class Spy(Objective):
    """Adds nothing to the loss, and keeps the stack on which it is called."""

    name: ClassVar[str] = "spy"

    def loss(self, client, batch):
        frames.append([f for f in traceback.extract_stack() if f.filename.startswith(PACKAGE)])
        return 0.0 * client.task_loss(client.out(batch), batch)


def test_run_to_loss_takes_at_most_eleven_frames_in_five_files(people):
    """`run_phases` is one loop for every executor, and `gradients` one function for a step and for `client.gradient(at=...)`."""
    frames.clear()
    method = ua.Method.parse("fedavg") + Spy()
    ua.run(method, people, model="mlp(hidden=(8,))", rounds=1, executor="loop", progress=False)
    way = max(frames, key=len)
    way = [
        f for f in way[[f.name for f in way].index("run") :] if f.name != "<listcomp>"
    ]  # a frame in Python 3.11 only
    shown = "\n".join(f"{Path(f.filename).relative_to(PACKAGE)}: {f.name}" for f in way)
    assert len(way) <= 11 and len({f.filename for f in way}) <= 5, f"{len(way)} frames:\n{shown}"
    print(shown)
