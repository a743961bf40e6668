"""What a contender's process reports: when each of its rounds ended, by the clock that `targets.py` started it by."""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable, Mapping
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


def alternating(calls: Mapping[str, Callable[[], object]], times: int, rest: float = 0.0) -> dict[str, float]:
    """The median seconds of each call; they take turns, and the first turn does not count.

    `rest`: seconds before each, where the threads of the one before still look for work for a while.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(times + 1):
        for name, call in calls.items():
            time.sleep(rest)
            started = time.perf_counter()
            call()
            if turn:
                found[name].append(time.perf_counter() - started)
    return {name: statistics.median(seconds) for name, seconds in found.items()}
