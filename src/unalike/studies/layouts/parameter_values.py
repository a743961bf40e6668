"""The values of single parameters at the clients, and what each method makes of them."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass

from unalike.studies.layouts.panels import Grid, Line, Panel, Picture
from unalike.studies.layouts.tables import MISSING
from unalike.studies.results import CellResult, Results

SERVER = -1
CLIENTS = "clients"

Values = dict[int, dict[int, float]]
"""Entry of the tensor -> client, or `SERVER`, -> value."""


@dataclass(frozen=True)
class ParameterValues:
    """One panel per setting: the first entries of a tensor at every client after the first round, and each method's new value.

    For cells with `record="entries(...)"`, first seed. All methods start alike, so that they see the same clients in that round.
    """

    title: str
    entries: int = 8
    name: str = "parameters"

    def table(self, results: Results) -> list[list[str]]:
        """One row per setting and method: its mean distance from the clients' mean, over their deviation."""
        rows = [["setting", "method", "mean distance from the clients' mean, in standard deviations"]]
        for setting in results.settings:
            for method, values in _methods(results, setting).items():
                rows.append([setting, method, _distance(values)])
        return rows

    def picture(self, results: Results) -> Picture:
        """The figure."""
        panels = []
        for setting in results.settings:
            methods = _methods(results, setting)
            lines = [self._line(method, values) for method, values in methods.items()]
            first = next(iter(methods.values()), {})
            clients = [(i, v) for i in range(self.entries) for k, v in first.get(i, {}).items() if k != SERVER]
            lines.insert(0, Line(CLIENTS, [i for i, _ in clients], [v for _, v in clients]))
            names = tuple(str(i) for i in range(self.entries))
            panels.append(Panel(setting, "parameter", self.title, tuple(lines), ticks=names))
        return Picture(self.name, tuple(panels))

    def _line(self, method: str, values: Values) -> Line:
        found = [(i, values[i][SERVER]) for i in range(self.entries) if SERVER in values.get(i, {})]
        return Line(method, [i for i, _ in found], [value for _, value in found])


@dataclass(frozen=True)
class Kernel:
    """One panel per method: the new values of one kernel, [side, side], after the first round."""

    title: str
    setting: str
    side: int = 5
    name: str = "kernel"

    def table(self, results: Results) -> list[list[str]]:
        """One row per method: its mean distance from the clients' mean, over their deviation."""
        rows = [["method", "mean distance from the clients' mean, in standard deviations"]]
        return rows + [[method, _distance(values)] for method, values in _methods(results, self.setting).items()]

    def picture(self, results: Results) -> Picture:
        """The figure."""
        panels = []
        for method, values in _methods(results, self.setting).items():
            flat = [values.get(i, {}).get(SERVER, math.nan) for i in range(self.side**2)]
            rows = tuple(tuple(flat[i * self.side : (i + 1) * self.side]) for i in range(self.side))
            panels.append(Panel(method, "", "", grid=Grid(rows, bar=self.title)))
        return Picture(self.name, tuple(panels))


def _methods(results: Results, setting: str) -> dict[str, Values]:
    """Method -> values after the first recorded round, under the first seed."""
    cells = {method: results.of(method, setting) for method in results.methods}
    found = {method: _values(own[min(own)]) for method, own in cells.items() if own}
    return {method: values for method, values in found.items() if values}


def _values(cell: CellResult) -> Values:
    found: Values = {}
    for series in cell.recorded.get("series", []):
        place = re.search(r"\[(\d+)\]$", series.get("layer", ""))
        if series["quantity"] == "parameter" and place and series["values"][0] is not None:
            found.setdefault(int(place[1]), {})[series.get("client", SERVER)] = series["values"][0]
    return found


def _distance(values: Values) -> str:
    found = []
    for own in values.values():
        clients = [value for client, value in own.items() if client != SERVER]
        spread = statistics.pstdev(clients) if clients else 0.0
        if spread and SERVER in own:
            found.append(abs(own[SERVER] - statistics.fmean(clients)) / spread)
    return f"{statistics.fmean(found):.3f}" if found else MISSING
