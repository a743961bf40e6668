"""The standings of a comparison while it runs, read from its folder: seeds done, score so far and time left."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.metrics.named_metrics import direction
from unalike.runtime.records.history import DIVERGED
from unalike.runtime.records.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

FILE = "cells.json"
FINISHED, RUNNING, WAITING = "finished", "running", "waiting"
"""States of a cell besides `diverged`: it has ended, it has begun, it has not begun."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell that a comparison has run or will run; `folder` is below the comparison's folder."""

    method: str
    seed: int
    rounds: int
    folder: str


@dataclass(frozen=True)
class Standing:
    """One method of a comparison that may still run.

    Attributes:
        method: label of the method.
        seeds_done: seeds whose run has ended.
        seeds: seeds that are planned.
        rounds_done: rounds over all seeds, as far as they are on disk.
        rounds: rounds over all planned seeds.
        metric: column of the score, such as `accuracy` or `personal_accuracy`; empty before the first result.
        score: mean score of the finished seeds; NaN before the first one.
        difference: mean difference to the baseline over the seeds that both have finished; NaN if there is none.
        diverged: number of seeds that diverged.
        seconds_left: time until the planned seeds are done, at the pace so far; NaN before the first finished run.
    """

    method: str
    seeds_done: int
    seeds: int
    rounds_done: int
    rounds: int
    metric: str
    score: float
    difference: float
    diverged: int
    seconds_left: float


@dataclass(frozen=True)
class Standings:
    """The methods of a comparison, best first, and the baseline."""

    baseline: str
    methods: Sequence[Standing]

    @property
    def seconds_left(self) -> float:
        """Time until the whole comparison is done; NaN if it is not known for some method."""
        return sum(method.seconds_left for method in self.methods)


@dataclass(frozen=True)
class CellProgress:
    """A cell as its folder shows it. `seconds` is the time from its begin to its end; NaN unless it was run in one go."""

    state: str
    rounds_done: int
    seconds: float
    scores: dict[str, float]


def save_cells(folder: Path, baseline: str, cells: Iterable[PlannedCell]) -> None:
    """Write the planned cells into a comparison's folder, for `standings`."""
    content = {"baseline": baseline, "cells": [vars(cell) for cell in cells]}
    write_bytes(folder / FILE, (json.dumps(content, indent=1) + "\n").encode())


def standings(folder: str | Path) -> Standings:
    """Read the standings of a comparison from its folder; it may still run.

    Args:
        folder: the folder of `ua.compare(..., out=folder)` or `unalike compare --out`.

    Returns:
        The methods, best score first; methods without a score come last.

    Raises:
        UnalikeError: if the folder holds no comparison that has begun.
    """
    folder = Path(folder)
    baseline, cells = planned(folder)
    found = {(cell.method, cell.seed): _progress(folder / cell.folder) for cell in cells}
    methods = dict.fromkeys(cell.method for cell in cells)
    scores = {name: _scores(found, name) for name in methods}
    paces = {name: _pace([(found[c.method, c.seed], c.rounds) for c in cells if c.method == name]) for name in methods}
    rows = [_standing(name, cells, found, scores, scores.get(baseline, {}), paces) for name in methods]
    return Standings(baseline, sorted(rows, key=_rank))


def _rank(row: Standing) -> tuple[bool, float]:
    return math.isnan(row.score), -(direction(row.metric) or 1) * row.score


def _standing(
    name: str,
    cells: Sequence[PlannedCell],
    found: dict[tuple[str, int], CellProgress],
    scores: dict[str, dict[str, dict[int, float]]],
    baseline: dict[str, dict[int, float]],
    paces: dict[str, float],
) -> Standing:
    own = [cell for cell in cells if cell.method == name]
    progress = [found[name, cell.seed] for cell in own]
    metric = next(iter(scores[name]), "")
    by_seed = scores[name].get(metric, {})
    paired = [value - baseline[metric][s] for s, value in by_seed.items() if s in baseline.get(metric, {})]
    missing = sum(
        max(0, cell.rounds - p.rounds_done) for cell, p in zip(own, progress) if p.state in (RUNNING, WAITING)
    )
    pace = paces[name] if not math.isnan(paces[name]) else _mean(p for p in paces.values() if not math.isnan(p))
    return Standing(
        method=name,
        seeds_done=sum(p.state in (FINISHED, DIVERGED) for p in progress),
        seeds=len(own),
        rounds_done=sum(p.rounds_done for p in progress),
        rounds=sum(cell.rounds for cell in own),
        metric=metric,
        score=_mean(by_seed.values()),
        difference=_mean(paired),
        diverged=sum(p.state == DIVERGED for p in progress),
        seconds_left=missing * pace if missing else 0.0,
    )


def _scores(found: dict[tuple[str, int], CellProgress], name: str) -> dict[str, dict[int, float]]:
    """Metric -> seed -> score, over the finished cells of a method."""
    scores: dict[str, dict[int, float]] = {}
    for (method, seed), progress in found.items():
        for column, value in progress.scores.items() if method == name else ():
            scores.setdefault(column, {})[seed] = value
    return scores


def _pace(cells: Iterable[tuple[CellProgress, int]]) -> float:
    """Seconds per round over the finished cells; NaN if there is none."""
    return _mean(p.seconds / rounds for p, rounds in cells if not math.isnan(p.seconds) and rounds)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan


def planned(folder: Path) -> tuple[str, list[PlannedCell]]:
    """The baseline and the cells of a comparison. Raises `UnalikeError` if none has begun in the folder."""
    try:
        content = json.loads((folder / FILE).read_text("utf-8"))
        return content["baseline"], [PlannedCell(**cell) for cell in content["cells"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnalikeError(
            f"{folder} holds no comparison that has begun ({error}); give a folder that `unalike compare --out` writes"
        ) from None


def _progress(folder: Path) -> CellProgress:
    return _read(folder, *(_stamp(folder / name) for name in ("events.jsonl", "rounds.parquet")))


def _stamp(file: Path) -> tuple[int, int]:
    try:
        about = os.stat(file)
        return about.st_mtime_ns, about.st_size
    except OSError:
        return 0, 0


@lru_cache(maxsize=4096)
def _read(folder: Path, *stamps: tuple[int, int]) -> CellProgress:
    """Read a cell. The stamps of its files make a changed cell another entry of the cache."""
    directory = RunDirectory(folder)
    events = directory.events
    if not events:
        return CellProgress(WAITING, 0, math.nan, {})
    state = FINISHED if directory.finished else DIVERGED if directory.diverged else RUNNING
    rounds = _rounds(folder)
    done = 0 if rounds is None else int(rounds["round"].max())
    kinds = [event["event"] for event in events]
    in_one_go = state == FINISHED and kinds.count("begun") == 1
    seconds = events[-1]["time"] - events[0]["time"] if in_one_go else math.nan
    return CellProgress(state, done, seconds, _final_scores(rounds) if state == FINISHED else {})


def _rounds(folder: Path) -> pd.DataFrame | None:
    """The history of a run; None before it is written. Files are replaced atomically."""
    import pandas as pd

    try:
        return pd.read_parquet(folder / "rounds.parquet")
    except (OSError, ValueError):
        return None


def _final_scores(rounds: pd.DataFrame | None) -> dict[str, float]:
    """Column -> score of a finished run: that of the shared model first, if it has one."""
    from unalike.metrics.statistics import headline, prefixes, tail_mean

    if rounds is None:
        return {}
    table = rounds.assign(method="", seed=0)
    column = headline(table).column
    found: dict[str, Any] = {
        p + column: tail_mean(table, p + column) for p in prefixes().values() if p + column in table
    }
    return {name: float(values.iloc[0]) for name, values in found.items() if len(values)}
