"""The differences between clients: standard deviation of a score over clients, and the worst client."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from unalike_studies.layouts.tables import MISSING
from unalike_studies.results import CellResult, Results


@dataclass(frozen=True)
class ClientSpread:
    """One row per method; for each setting the deviation over clients and the worst client, means over seeds.

    A client's score is its mean over the last 10 evaluated rounds. Clients without test samples do not count.
    """

    title: str
    column: str = "accuracy"
    scale: float = 100
    columns: Mapping[str, str] = field(default_factory=dict)
    """Setting -> its column, where that is another one."""

    def table(self, results: Results) -> list[list[str]]:
        """The rows of the table, its heading first."""
        rows = [["method", *(f"{setting}, {what}" for setting in results.settings for what in ("deviation", "worst"))]]
        for method in results.methods:
            row = [method]
            for setting in results.settings:
                column = self.columns.get(setting, self.column)
                scores = [self._scores(cell, column) for cell in results.of(method, setting).values()]
                known = [own for own in scores if len(own) > 1]
                row += [self._mean([statistics.pstdev(own) for own in known]), self._mean([min(own) for own in known])]
            rows.append(row)
        return rows

    def _scores(self, cell: CellResult, column: str) -> list[float]:
        return [self.scale * value for value in cell.clients.get(column, []) if value is not None]

    def _mean(self, values: list[float]) -> str:
        return f"{statistics.fmean(values):.2f}" if values else MISSING
