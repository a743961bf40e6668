"""Profile of a run: seconds per region of a round, and a trace, from torch's profiler."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from unalike._utils.profiler_regions import PREFIX, Region
from unalike._utils.progress import ProgressCallback, Row
from unalike._utils.tensor_files import writing

MAX_PROFILED_ROUNDS = 5
"""At most this many rounds are profiled, because each adds thousands of operations to the trace."""
STEP_NAME = "ProfilerStep"

PARTS: tuple[str, ...] = get_args(Region)


class Stretch(NamedTuple):
    """A named stretch of time, in seconds."""

    name: str
    start: float
    end: float


class Profile:
    """Rounds of a run under torch's profiler: the first, which warms up, is left out where there are others.

    Pass `watching(progress)` to the run as its progress callback, so that the profiler sees where each round ends.
    """

    def __init__(self, rounds: int):
        # otherwise the profiler logs its start and end to the terminal
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        first = 1 if rounds > 1 else 0
        active = max(1, min(MAX_PROFILED_ROUNDS, rounds - first))
        self._torch = profile(
            activities=kinds, schedule=schedule(wait=0, warmup=first, active=active, repeat=1)
        )
        self._torch.on_trace_ready = self._ready
        self._first = first
        self._reported = 0
        self.rounds = 0
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def watching(self, progress: ProgressCallback) -> ProgressCallback:
        """A progress callback that calls `progress` and marks the end of a round for the profiler."""

        def advance(row: Row, what: str = "") -> None:
            progress(row, what)
            self._reported += 1
            self._torch.step()

        return advance

    def __enter__(self) -> Profile:
        self._torch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._torch.__exit__(*error)

    def write(self, file: Path) -> None:
        """The trace of these rounds, for chrome://tracing or Perfetto. Raises `UnalikeError` where it cannot be written whole."""
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".trace-", dir=file.parent) as folder:
                whole = Path(folder) / file.name
                self._torch.export_chrome_trace(str(whole))
                try:  # torch raises no error when the disk is full
                    json.loads(whole.read_bytes())
                except (FileNotFoundError, ValueError):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
                os.replace(whole, file)

    def _ready(self, done: Any) -> None:
        found = [
            Stretch(e.name.removeprefix(PREFIX), e.time_range.start / 1e6, e.time_range.end / 1e6)
            for e in done.events()
            if e.name.startswith((PREFIX, STEP_NAME))
            and e.device_type == torch.autograd.DeviceType.CPU
        ]
        steps = sorted(s.end for s in found if s.name.startswith(STEP_NAME))
        # the step in which the run ended is not a round
        rounds = steps[: max(0, self._reported - self._first)]
        over = max(rounds, default=0.0)
        self.rounds = len(rounds)
        for name, seconds in by_part(s for s in found if s.end <= over).items():
            self.seconds[name] += seconds


def by_part(found: Iterable[Stretch]) -> dict[str, float]:
    """Seconds per region. Time in nested regions counts for the innermost; time outside any region counts as bookkeeping."""
    seconds: dict[str, float] = {}
    around: list[Stretch] = []
    for stretch in sorted(found, key=lambda s: (s.start, -s.end)):
        while around and around[-1].end <= stretch.start:
            around.pop()
        length = stretch.end - stretch.start
        for name, change in ((stretch.name, length), *((s.name, -length) for s in around[-1:])):
            name = "bookkeeping" if name.startswith(STEP_NAME) else name
            seconds[name] = seconds.get(name, 0.0) + change
        around.append(stretch)
    return seconds
