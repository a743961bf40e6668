"""What a contender's process reports: when each of its rounds ended, by the clock that `targets.py` started it by."""

from __future__ import annotations

import json
import resource
import time
from typing import Any

MARK = "MEASURED "


class Clock:
    """Rounds end at `lap`; the first one belongs to the start-up."""

    def __init__(self) -> None:
        self.laps: list[float] = []
        self.moved: float | None = None
        """How far the model went from its start, where the process trains one."""

    def lap(self) -> None:
        self.laps.append(time.time())

    def report(self, **more: Any) -> None:
        """Print what was measured, for `launch.contend`."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(MARK + json.dumps({"laps": self.laps, "own_mb": peak, "moved": self.moved} | more), flush=True)
