"""The state that the dashboard shows of a comparison, read from its folder: the standings, and the curve of each method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unalike._utils.system.locks import is_locked
from unalike.dashboard.state import State, curve, number, stamp_of, stored_columns, table_rows
from unalike.experiments.standings import FILE, PlannedCell, Standing, Standings, planned, standings
from unalike.metrics.named_metrics import MISSING
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
        (baseline, cells), table = planned(self.path), standings(self.path)
        done, rounds = (sum(getattr(row, name) for row in table.methods) for name in ("rounds_done", "rounds"))
        configs = [RunDirectory(self.path / cell.folder).config for cell in cells]
        model = next((str(c["model"]["name"]) for c in configs if c), "")
        return {
            "title": self.path.resolve().name,
            "kind": "comparison",
            "method": f"{len(table.methods)} methods compared with {baseline}",
            "baseline": baseline,
            "model": model,
            "state": self._state(cells, table),
            "done": done,
            "rounds": rounds,
            "left": number(table.seconds_left),
            "standings": list(map(_standing, table.methods)),
            "curves": self._curves(cells, table),
        }

    def _state(self, cells: Sequence[PlannedCell], table: Standings) -> str:
        if all(row.seeds_done == row.seeds for row in table.methods):
            return "finished"
        locks = [is_locked(self.path / cell.folder) for cell in cells]
        if any(locks):
            return "running"
        return "running, or interrupted" if None in locks else "not finished, and no process continues it"

    def _curves(self, cells: Sequence[PlannedCell], table: Standings) -> list[dict[str, Any]]:
        """For each method the mean of its score over its seeds, by round."""
        scores = {row.method: row.column for row in table.methods if row.column is not None}
        values: dict[str, dict[int, list[float]]] = {}
        for cell in cells:
            folder = self.path / cell.folder
            rows = table_rows(folder / "rounds.parquet")
            if rows and cell.method not in scores:  # no run of it has ended
                begun = stored_columns(folder, rows).shown(rows[-1])
                scores |= {} if begun is None else {cell.method: begun}
            for row in rows if cell.method in scores else ():
                if (value := number(row.get(scores[cell.method].name))) is not None:
                    values.setdefault(cell.method, {}).setdefault(int(row["round"]), []).append(value)
        return [
            curve(f"{scores[method].label} of {method}", scores[method].metric, _means(by_round))
            for method, by_round in values.items()
        ]


def _means(by_round: dict[int, list[float]]) -> list[tuple[int, float]]:
    return [(r, sum(values) / len(values)) for r, values in sorted(by_round.items())]


def _standing(row: Standing) -> dict[str, Any]:
    """A method's standing as JSON values, with its score and its difference as text."""
    values = {k: number(v) if isinstance(v, float) else v for k, v in vars(row).items() if k != "column"}
    if row.column is None:
        return values | {"metric": "", "score_text": MISSING, "difference_text": MISSING}
    texts = {
        "score_text": row.column.metric.text(row.score),
        "difference_text": row.column.metric.difference(row.difference),
    }
    return values | {"metric": row.column.label} | texts
