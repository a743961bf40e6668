"""The standings of a comparison while it runs, read from its folder: seeds done, score so far and time left."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.comparison.comparison_json import ComparisonFacts
from unalike.metrics.columns import Column, Columns
from unalike.metrics.named_metrics import significant
from unalike.runtime.records.history import DIVERGED
from unalike.runtime.records.run_directory import RunDirectory
from unalike.statistics.seed_draws import POOLED_SCORE

if TYPE_CHECKING:
    import pandas as pd

CELLS_FILE = "cells.json"
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

    `seeds` are planned, and the runs of `seeds_done` have ended, of which `diverged` diverged. `rounds` are over all planned
    seeds, `rounds_done` those on disk. `column` is that of the score, such as `personal_accuracy`, None before the first
    result; `score` is the mean of the finished seeds, of the model that clients would use, and `difference` its mean difference
    to the baseline over the seeds that both have finished, NaN without any. `epsilon` is the most that a run of a private method
    has cost so far, NaN for other methods. `seconds_left` is at the pace so far, NaN before the first finished run.
    """

    method: str
    seeds_done: int
    seeds: int
    rounds_done: int
    rounds: int
    column: Column | None
    score: float
    difference: float
    epsilon: float
    diverged: int
    seconds_left: float

    @property
    def epsilon_text(self) -> str:
        return "" if math.isnan(self.epsilon) else significant(self.epsilon)


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
    """A cell as its folder shows it. `seconds` is the time from its begin to its end; NaN unless it was run in one go.

    `score` is that of a finished run in its `column`, of the model in use, `epsilon` what the rounds of a private method cost.
    """

    state: str
    rounds_done: int
    seconds: float
    column: Column | None = None
    score: float = math.nan
    epsilon: float = math.nan


def save_cells(folder: Path, facts: ComparisonFacts, cells: Iterable[PlannedCell]) -> None:
    """Write the planned cells and what is known before they run into a comparison's folder, for `standings` and reports."""
    content = {
        "baseline": facts.baseline,
        "cells": [vars(cell) for cell in cells],
        "facts": asdict(facts),
    }
    write_bytes(folder / CELLS_FILE, (json.dumps(content, indent=1) + "\n").encode())


def standings(folder: str | Path) -> Standings:
    """Read the standings of a comparison from its folder; it may still run.

    The best score comes first; methods without a score come last. Raises `UnalikeError` for a folder without a comparison that
    has begun.
    """
    folder = Path(folder)
    baseline, cells, facts = planned(folder)
    across = facts.get("across", POOLED_SCORE)
    by_method: dict[str, list[tuple[PlannedCell, CellProgress]]] = {}
    for cell in cells:
        by_method.setdefault(cell.method, []).append(
            (cell, _progress(folder / cell.folder, across))
        )
    scores: dict[str, dict[int, float]] = {}
    paces: dict[str, float] = {}
    for name, cells_of_method in by_method.items():
        scores[name] = {}
        seconds_per_round = []
        for cell, progress in cells_of_method:
            if not math.isnan(progress.score):
                scores[name][cell.seed] = progress.score
            if cell.rounds and not math.isnan(progress.seconds):
                seconds_per_round.append(progress.seconds / cell.rounds)
        paces[name] = _mean(seconds_per_round)

    # A method without a finished run is expected to take as long as the others.
    usual_pace = _mean(pace for pace in paces.values() if not math.isnan(pace))
    rows = []
    for name, cells_of_method in by_method.items():
        pace = usual_pace if math.isnan(paces[name]) else paces[name]
        of_baseline = scores.get(baseline, {})
        rows.append(_standing(name, cells_of_method, scores[name], of_baseline, pace))
    return Standings(baseline, sorted(rows, key=_rank))


def _rank(row: Standing) -> tuple[bool, float]:
    if row.column is None:
        return math.isnan(row.score), 0.0
    return math.isnan(row.score), -row.column.metric.sign * row.score


def _standing(
    name: str,
    own: Sequence[tuple[PlannedCell, CellProgress]],
    scores: Mapping[int, float],
    baseline: Mapping[int, float],
    pace: float,
) -> Standing:
    """The standing of a method, from its cells, its scores and those of the baseline by seed, and its seconds per round."""
    paired = [value - baseline[seed] for seed, value in scores.items() if seed in baseline]
    missing = sum(
        max(0, cell.rounds - p.rounds_done) for cell, p in own if p.state in (RUNNING, WAITING)
    )
    return Standing(
        method=name,
        seeds_done=sum(p.state in (FINISHED, DIVERGED) for _, p in own),
        seeds=len(own),
        rounds_done=sum(p.rounds_done for _, p in own),
        rounds=sum(cell.rounds for cell, _ in own),
        column=next((p.column for _, p in own if p.column is not None), None),
        score=_mean(scores.values()),
        difference=_mean(paired),
        epsilon=max((p.epsilon for _, p in own if not math.isnan(p.epsilon)), default=math.nan),
        diverged=sum(p.state == DIVERGED for _, p in own),
        seconds_left=missing * pace if missing else 0.0,
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan


def planned(folder: Path) -> tuple[str, list[PlannedCell], dict[str, Any]]:
    """The baseline, cells and stored facts of a comparison. Raises `UnalikeError` if none has begun in the folder."""
    try:
        content = json.loads((folder / CELLS_FILE).read_text("utf-8"))
        return (
            content["baseline"],
            [PlannedCell(**cell) for cell in content["cells"]],
            content.get("facts") or {},
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnalikeError(
            f"{folder} holds no comparison that has begun ({error}); give a folder that `unalike compare --out` writes"
        ) from None


def _progress(folder: Path, across: str) -> CellProgress:
    of_events = stamp_of(folder / "events.jsonl")
    of_rounds = stamp_of(folder / "rounds.parquet")
    return _read_progress(folder, across, of_events, of_rounds)


def stamp_of(file: Path) -> tuple[int, int]:
    """Time of the last change and size of a file; zeros for none."""
    try:
        about = file.stat()
        return about.st_mtime_ns, about.st_size
    except OSError:
        return 0, 0


@lru_cache(maxsize=4096)
def _read_progress(folder: Path, across: str, *stamps: tuple[int, int]) -> CellProgress:
    """Read the progress of a cell from its folder. `stamps` are only a key of the cache: they change with the cell's files."""
    directory = RunDirectory(folder)
    events = directory.events
    if not events:
        return CellProgress(WAITING, 0, math.nan)
    state = RUNNING
    if directory.finished:
        state = FINISHED
    elif directory.diverged:
        state = DIVERGED
    rounds = stored_table(folder / "rounds.parquet")
    done = 0 if rounds is None else int(rounds["round"].max())
    kinds = [event["event"] for event in events]
    in_one_go = state == FINISHED and kinds.count("begun") == 1
    seconds = events[-1]["time"] - events[0]["time"] if in_one_go else math.nan
    column = None
    score = math.nan
    epsilon = math.nan
    if rounds is not None and state == FINISHED:
        column, score = _final_score(rounds, directory, across)
    if rounds is not None and "epsilon" in rounds:
        epsilon = float(rounds["epsilon"].iloc[-1])
    return CellProgress(state, done, seconds, column, score, epsilon)


def stored_table(file: Path) -> pd.DataFrame | None:
    """A table of a run; None before it is written. Files are replaced atomically, so none is half written."""
    import pandas as pd

    try:
        return pd.read_parquet(file)
    except (OSError, ValueError):
        return None


def _final_score(
    rounds: pd.DataFrame, directory: RunDirectory, across: str
) -> tuple[Column | None, float]:
    """The score of a finished run, of the model in use; with the protocol `server` of the shared model, if there is one."""
    from unalike.statistics.client_scores import scored_across
    from unalike.statistics.models_in_use import protocol_in_use
    from unalike.statistics.scores import tail_mean

    table = rounds.assign(method="", seed=0)
    columns = Columns.load(directory.path)
    if across != POOLED_SCORE:
        clients = stored_table(directory.path / "clients.parquet")
        if clients is not None:
            clients = clients.assign(method="", seed=0)
            table, columns = scored_across(across, table, clients, columns)
    protocol = (
        "server" if columns.unprefixed_protocol == "server" else protocol_in_use(table, columns)
    )
    column = columns.get(protocol)
    if column is None or column.name not in table:
        return None, math.nan
    values = tail_mean(table, column).tolist()
    return (column, float(values[0])) if values else (None, math.nan)
