"""Results of cells, as tables and verdicts read them; `result_files.py` stores them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unalike.runtime.records.history import DIVERGED
from unalike_studies.cells import StudyCell
from unalike_studies.recorded_numbers import Recorded

LOWER_IS_BETTER = ("loss", "rmse")
"""Endings of the columns in which lower is better."""

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class CellResult:
    """The result of one cell.

    Attributes:
        method: label of the method.
        setting: label of the setting.
        seed: the seed.
        digest: hash of everything that decides the result.
        spec: the method with all its parts and fields.
        options: the options of the cell.
        seconds: wall-clock seconds of the whole cell.
        ended: why the run ended.
        versions: versions of the software.
        machine: number of threads, and the device.
        notes: the run's warnings.
        rounds: the history, column by column.
        clients: one entry per client: means over the last 10 evaluated rounds.
        curves: round by round the values of one column for every client, where the cell asks for them.
        label_counts: client by client the training samples of each class, for at most 1,000 numbers.
        recorded: the recorded numbers of the evaluated rounds, where the cell has `record`; see `recorded_numbers.py`.
        transport: the cost of optimal transport between every two clients, where the cell asks for it.
        parameters: the number of final parameters of the shared model in each bin of the cell's `histogram`.
    """

    method: str
    setting: str
    seed: int
    digest: str
    spec: str
    options: dict[str, Any]
    seconds: float
    ended: str
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rounds: Columns = field(default_factory=dict)
    clients: Columns = field(default_factory=dict)
    curves: list[list[float | None]] = field(default_factory=list)
    label_counts: list[list[int]] = field(default_factory=list)
    recorded: Recorded = field(default_factory=dict)
    transport: list[list[float]] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The cell without its seed, as `StudyCell.kind`."""
        return f"{self.method}, {self.setting}"

    def score(self, column: str, last: int) -> float:
        """The mean of a column over the last evaluated rounds; NaN where there is none.

        A run that diverged is infinitely bad: -inf, or inf where lower is better.
        """
        if self.ended == DIVERGED:
            return math.inf if column.endswith(LOWER_IS_BETTER) else -math.inf
        scores = self.column(column)[-last:]
        return sum(scores) / len(scores) if scores else math.nan

    def column(self, name: str) -> list[float]:
        """A column of the history from round 1 on, without the rounds in which it is not known."""
        values = zip(self.rounds.get("round", []), self.rounds.get(name, []))
        return [value for number, value in values if number > 0 and value is not None]

    def by_number(self, name: str) -> dict[int, Any]:
        """Round -> the value of a column of the history."""
        return dict(zip(self.rounds.get("round", []), self.rounds.get(name, [])))

    def instead(self, columns: Mapping[str, str]) -> CellResult:
        """The result with other columns in place of some: column -> the column in its place."""

        def exchanged(table: Columns) -> Columns:
            rest = {name: values for name, values in table.items() if name not in columns}
            in_place = {name: table[other] for name, other in columns.items() if other in table}
            return rest | in_place

        if not columns:
            return self
        return replace(self, rounds=exchanged(self.rounds), clients=exchanged(self.clients))

    def labelled(self, cell: StudyCell) -> CellResult:
        """The result under the labels of a cell, which may differ from those under which it was stored."""
        return replace(self, method=cell.method, setting=cell.setting)


@dataclass(frozen=True)
class Results:
    """The stored results of a study at one scale that belong to its present cells."""

    cells: tuple[CellResult, ...]

    def __len__(self) -> int:
        return len(self.cells)

    def of(self, method: str, setting: str) -> dict[int, CellResult]:
        """Seed -> result of a method in a setting."""
        return {
            cell.seed: cell
            for cell in self.cells
            if cell.method == method and cell.setting == setting
        }

    def scores(
        self, method: str, setting: str, column: str = "accuracy", last: int = 10
    ) -> dict[int, float]:
        """Seed -> mean of a column over the last evaluated rounds, without the seeds that lack the column."""
        scores = {seed: cell.score(column, last) for seed, cell in self.of(method, setting).items()}
        return {seed: score for seed, score in scores.items() if not math.isnan(score)}

    def curves(self, method: str, setting: str, column: str = "accuracy") -> dict[int, list[float]]:
        """Seed -> the values of a column from round 1 on."""
        return {seed: cell.column(column) for seed, cell in self.of(method, setting).items()}

    def instead(self, columns: Mapping[str, Mapping[str, str]]) -> Results:
        """The results with other columns in some settings: setting -> column -> the column in its place."""
        exchanged = [cell.instead(columns.get(cell.setting, {})) for cell in self.cells]
        return Results(tuple(exchanged))

    @property
    def methods(self) -> list[str]:
        """The labels of the methods, in the order of the study."""
        return list(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def settings(self) -> list[str]:
        """The labels of the settings, in the order of the study."""
        return list(dict.fromkeys(cell.setting for cell in self.cells))

    def groups(self) -> Iterator[tuple[str, str, list[CellResult]]]:
        """Method, setting, and the cells of all seeds, for the pairs that have cells, setting by setting."""
        for setting in self.settings:
            for method in self.methods:
                cells = list(self.of(method, setting).values())
                if cells:
                    yield method, setting, cells

    @property
    def seconds(self) -> float:
        """The wall-clock seconds of all cells together."""
        return sum(cell.seconds for cell in self.cells)
