"""Output of a contender's process: the time at which each round ended, on the same clock as its start in `launch.py`."""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

MARK = "MEASURED "


class Clock:
    """Records the end of each round; the first round counts as start-up."""

    def __init__(self) -> None:
        self.laps: list[float] = []
        self.moved: float | None = None
        """Distance of the trained model from its start; None if the process trains none."""

    def lap(self) -> None:
        self.laps.append(time.time())

    def report(self, **more: Any) -> None:
        """Print the measurements for `launch.contend`."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            MARK + json.dumps({"laps": self.laps, "own_mb": peak, "moved": self.moved} | more),
            flush=True,
        )


def alternating(
    calls: Mapping[str, Callable[[], object]], times: int, rest: float = 0.0
) -> dict[str, float]:
    """Median seconds of each call; the calls take turns, and the first turn is a warm-up.

    `rest`: seconds to wait before each call, because threads of the call before may spin for a while.
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
