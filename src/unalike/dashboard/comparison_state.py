"""The state that the dashboard shows of a comparison, read from its folder: the standings, and the curve of each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unalike._utils.system.locks import is_locked
from unalike.dashboard.state import State, curve, number, stamp_of, table_rows
from unalike.experiments.standings import FILE, PlannedCell, Standings, planned, standings
from unalike.runtime.records.run_directory import RunDirectory


class FollowedComparison:
    """A comparison to follow. Raises `UnalikeError` if none has begun in the folder."""

    def __init__(self, path: Path):
        self.path = path
        standings(path)

    @property
    def stamp(self) -> tuple[Any, ...]:
        """A value that changes whenever something that is shown changes."""
        _, cells = planned(self.path)
        folders = [self.path / cell.folder for cell in cells]
        files = [folder / name for folder in folders for name in ("events.jsonl", "rounds.parquet")]
        return (*map(stamp_of, [self.path / FILE, *files]), *map(is_locked, folders))

    def state(self) -> State:
        """Everything that the page shows, as JSON values."""
        (baseline, cells), found = planned(self.path), standings(self.path)
        done, rounds = (sum(getattr(row, name) for row in found.methods) for name in ("rounds_done", "rounds"))
        configs = [RunDirectory(self.path / cell.folder).config for cell in cells]
        model = next((str(c["model"]["name"]) for c in configs if c), "")
        return {
            "title": self.path.resolve().name,
            "kind": "comparison",
            "method": f"{len(found.methods)} methods compared with {baseline}",
            "baseline": baseline,
            "model": model,
            "state": self._state(cells, found),
            "done": done,
            "rounds": rounds,
            "left": number(found.seconds_left),
            "standings": [
                {k: number(v) if isinstance(v, float) else v for k, v in asdict(row).items()} for row in found.methods
            ],
            "curves": self._curves(cells, next((row.metric for row in found.methods if row.metric), "accuracy")),
        }

    def _state(self, cells: Sequence[PlannedCell], found: Standings) -> str:
        if all(row.seeds_done == row.seeds for row in found.methods):
            return "finished"
        locks = [is_locked(self.path / cell.folder) for cell in cells]
        if any(locks):
            return "running"
        return "running, or interrupted" if None in locks else "not finished, and no process continues it"

    def _curves(self, cells: Sequence[PlannedCell], metric: str) -> list[dict[str, Any]]:
        """For each method the mean of the metric over its seeds, by round."""
        values: dict[str, dict[int, list[float]]] = {}
        for cell in cells:
            for row in table_rows(self.path / cell.folder / "rounds.parquet"):
                if (value := number(row.get(metric))) is not None:
                    values.setdefault(cell.method, {}).setdefault(int(row["round"]), []).append(value)
        return [
            curve(f"{metric} of {method}", [(r, sum(v) / len(v)) for r, v in sorted(by_round.items())])
            for method, by_round in values.items()
        ]
