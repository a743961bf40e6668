"""The cost of each method: time of a round, rounds to convergence, and parameters sent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from unalike_studies.layouts.tables import MISSING
from unalike_studies.results import CellResult, Results

BYTES = 4
"""Bytes of a float32 parameter."""


@dataclass(frozen=True)
class Costs:
    """One row per method and setting, means over seeds.

    Columns: seconds of a round; the first evaluated round whose score is within `margin` of the mean of the `last` ones; the
    seconds of training until then; thousands of parameters sent to and by a client in a round. Of a plan with several stages,
    only rounds of the last one can have converged. A method whose final mean is not `learned` above the score before training
    has learned nothing, and has no convergence.
    """

    title: str
    column: str = "accuracy"
    last: int = 10
    margin: float = 0.005
    learned: float = 0.02
    columns: Mapping[str, str] = field(default_factory=dict)
    """Setting -> its column, where that is another one."""

    def table(self, results: Results) -> list[list[str]]:
        """The rows of the table, its heading first."""
        head = ["method", "setting", "seconds a round", "rounds to convergence", "seconds to convergence"]
        rows = [[*head, "thousand parameters down", "up"]]
        for setting in results.settings:
            for method in results.methods:
                cells = list(results.of(method, setting).values())
                if cells:
                    rows.append([method, setting, *self._row(cells, self.columns.get(setting, self.column))])
        return rows

    def _row(self, cells: list[CellResult], column: str) -> list[str]:
        converged = [found for cell in cells if (found := self._converged(cell, column)) is not None]
        return [
            _mean(seconds for cell in cells if (seconds := _a_round(cell)) is not None),
            _mean(number for number, _ in converged),
            _mean(seconds for _, seconds in converged),
            *(_mean(sent / 1000 for cell in cells for sent in _sent(cell, way)) for way in ("bytes_down", "bytes_up")),
        ]

    def _converged(self, cell: CellResult, column: str) -> tuple[int, float] | None:
        """The first round whose score is as good as in the end, and the seconds of training until then."""
        final, pace, rounds = cell.score(column, self.last), _a_round(cell), cell.rounds.get("round", [])
        values, stages = cell.rounds.get(column, []), cell.rounds.get("stage", [1] * len(rounds))
        start = values[0] if values and rounds[0] == 0 else None
        if pace is None or not math.isfinite(final) or (start is not None and final < start + self.learned):
            return None
        reached = [
            n
            for n, value, stage in zip(rounds, values, stages)
            if n and value is not None and value >= final - self.margin and stage == stages[-1]
        ]
        return (reached[0], reached[0] * pace) if reached else None


def _a_round(cell: CellResult) -> float | None:
    """The mean seconds of the evaluated rounds; the first one warms up and does not count, unless it is the only one."""
    seconds = [s for n, s in zip(cell.rounds.get("round", []), cell.rounds.get("seconds", [])) if n and s is not None]
    return statistics.fmean(seconds[1:] or seconds) if seconds else None


def _sent(cell: CellResult, way: str) -> list[float]:
    """The parameters sent to or by a client in each evaluated round."""
    columns = zip(cell.rounds.get(way, []), cell.rounds.get("participants", []))
    return [sent / BYTES / count for sent, count in columns if sent is not None and count]


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{statistics.fmean(found):.4g}" if found else MISSING
