"""Histogram of final parameters, for cells with `histogram`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from unalike.reporting.charts.figure import Axis, Figure, Line, Plot
from unalike_studies.layouts.looks import HEIGHT
from unalike_studies.results import CellResult, Results


@dataclass(frozen=True)
class ParameterHistogram:
    """One panel per setting, one line per method: the share of the shared model's final parameters in each bin, mean over seeds.

    Parameters beyond the limit count in the outermost bins.
    """

    title: str
    name: str = "parameters"

    def table(self, results: Results) -> list[list[str]]:
        """The share of small parameters: those within a tenth of the limit."""
        rows = [["method", "setting", "seeds", "limit", "share within a tenth of it"]]
        for setting in results.settings:
            for method in results.methods:
                cells = [cell for cell in results.of(method, setting).values() if cell.parameters]
                if cells:
                    limit = float(cells[0].options["histogram"]["limit"])
                    near = sum(y for x, y in zip(*_shares(cells)) if abs(x) < limit / 10)
                    rows.append([method, setting, str(len(cells)), f"{limit:g}", f"{near:.3f}"])
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure."""
        plots = []
        for setting in results.settings:
            found = {method: results.of(method, setting).values() for method in results.methods}
            shares = {m: _shares(cells) for m, cells in found.items() if any(cell.parameters for cell in cells)}
            lines = [Line(label=method, x=middles, y=share) for method, (middles, share) in shares.items()]
            plots.append(Plot(lines, Axis("parameter"), Axis(self.title, log=True), setting))
        return Figure(plots, HEIGHT)


def _shares(cells: Iterable[CellResult]) -> tuple[list[float], list[float]]:
    """The middles of the bins, and the mean share of the parameters in each."""
    known = [cell for cell in cells if cell.parameters]
    bins, limit = len(known[0].parameters), float(known[0].options["histogram"]["limit"])
    middles = [limit * ((2 * i + 1) / bins - 1) for i in range(bins)]
    shares = [[count / sum(cell.parameters) for count in cell.parameters] for cell in known]
    return middles, [statistics.fmean(column) for column in zip(*shares)]
