"""The values of single parameters at the clients, and what each method makes of them."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unalike.reporting.charts.figure import Axis, Figure, HeatMap, Plot, Points, named
from unalike_studies.claims import Quantity, by_cell
from unalike_studies.layouts.looks import FAINT, HEIGHT, POINT_SIZE
from unalike_studies.layouts.tables import shown_mean
from unalike_studies.results import CellResult, Results

SERVER = -1
CLIENTS = "clients"
POINTS_WIDTH = 0.8
"""The width over which the methods' points of one parameter are spread."""

Values = dict[int, dict[int, float]]
"""Entry of the tensor -> client, or `SERVER`, -> value."""


@dataclass(frozen=True)
class ParameterValues:
    """One panel per setting: the first entries of a tensor at every client after the first round, and each method's new value.

    For cells with `record="entries(...)"`, first seed. All methods start alike, so that they see the same clients in that round.
    Values are drawn less the clients' mean, over their deviation; those beyond `limit` are not drawn.
    """

    title: str
    entries: int = 8
    limit: float = 4.5
    name: str = "parameters"

    def table(self, results: Results) -> list[list[str]]:
        """One row per setting and method: its mean distance from the clients' mean, over their deviation."""
        rows = [
            ["setting", "method", "mean distance from the clients' mean, in standard deviations"]
        ]
        for setting in results.settings:
            for method, values in _methods(results, setting).items():
                rows.append([setting, method, _distance(values)])
        return rows

    def figure(self, results: Results) -> Figure:
        x = Axis("parameter", named(range(self.entries)))
        y = Axis(self.title, limits=(-self.limit, self.limit))
        plots = []
        for setting in results.settings:
            methods = {
                method: _standardized(values)
                for method, values in _methods(results, setting).items()
            }
            # All methods saw the same clients: those of the first one stand for all.
            marks = [self._client_points(next(iter(methods.values()), {}))]
            for number, (method, values) in enumerate(methods.items(), 1):
                place = POINTS_WIDTH * (number / (len(methods) + 1) - 0.5)
                marks.append(self._points(method, values, place))
            plots.append(Plot(marks, x, y, setting))
        return Figure(plots, HEIGHT)

    @staticmethod
    def from_peak(method: str, setting: str) -> Quantity:
        """Seed -> the mean distance of a method's new values from the main peak over the clients, in standard deviations."""

        def number(cell: CellResult) -> float | None:
            distances = []
            for at in _standardized(_values(cell)).values():
                if SERVER in at:
                    peak = half_sample_mode(_of_clients(at))
                    distances.append(abs(at[SERVER] - peak))
            return statistics.fmean(distances) if distances else None

        return by_cell(method, setting, number)

    def _client_points(self, values: Values) -> Points:
        """The values of the clients."""
        x, y = [], []
        for entry in range(self.entries):
            of_clients = _of_clients(values.get(entry, {}))
            x += [entry] * len(of_clients)
            y += of_clients
        return Points(look=FAINT, label=CLIENTS, x=x, y=y, size=POINT_SIZE)

    def _points(self, method: str, values: Values, place: float) -> Points:
        """The new values of a method, beside the clients' points by `place`."""
        x, y = [], []
        for entry in range(self.entries):
            if SERVER in values.get(entry, {}):
                x.append(entry + place)
                y.append(values[entry][SERVER])
        return Points(label=method, x=x, y=y, size=POINT_SIZE)


@dataclass(frozen=True)
class Kernel:
    """One panel per method: the new values of one kernel, [side, side], after the first round.

    Values are drawn less the clients' mean, over their deviation; those beyond `limit` have the color of the limit.
    """

    title: str
    setting: str
    side: int = 5
    limit: float = 0.5
    name: str = "kernel"

    def table(self, results: Results) -> list[list[str]]:
        """One row per method: its mean distance from the clients' mean, over their deviation."""
        rows = [["method", "mean distance from the clients' mean, in standard deviations"]]
        for method, values in _methods(results, self.setting).items():
            rows.append([method, _distance(values)])
        return rows

    def figure(self, results: Results) -> Figure:
        bar = f"{self.title}, cut at {self.limit:g}"
        plots = []
        for method, values in _methods(results, self.setting).items():
            scaled = _standardized(values)
            flat = [scaled.get(i, {}).get(SERVER, math.nan) for i in range(self.side**2)]
            cut = np.clip(flat, -self.limit, self.limit).reshape(self.side, self.side)
            kernel = HeatMap(cut, bar, diverging=True)
            plots.append(Plot([kernel], y=Axis(reverse=True), title=method))
        return Figure(plots, HEIGHT)


def half_sample_mode(values: Sequence[float]) -> float:
    """The place of the main peak: the narrowest half of the values, again and again (Robertson and Cryer 1974)."""
    rest = sorted(values)
    while len(rest) > 2:
        size = math.ceil(len(rest) / 2)
        widths = [rest[i + size - 1] - rest[i] for i in range(len(rest) - size + 1)]
        start = widths.index(min(widths))
        rest = rest[start : start + size]
    return statistics.fmean(rest)


def _of_clients(at: dict[int, float]) -> list[float]:
    return [value for client, value in at.items() if client != SERVER]


def _methods(results: Results, setting: str) -> dict[str, Values]:
    """Method -> values after the first recorded round, under the first seed."""
    of_methods = {}
    for method in results.methods:
        cells = results.of(method, setting)
        if cells:
            values = _values(cells[min(cells)])
            if values:
                of_methods[method] = values
    return of_methods


def _values(cell: CellResult) -> Values:
    of_entries: Values = {}
    for series in cell.recorded.get("series", []):
        # The layer of a recorded parameter is its name with the place in it, such as "weight[3]".
        place = re.search(r"\[(\d+)\]$", series.get("layer", ""))
        if series["quantity"] != "parameter" or place is None:
            continue
        first_value = series["values"][0]
        if first_value is not None:
            by_client = of_entries.setdefault(int(place[1]), {})
            by_client[series.get("client", SERVER)] = first_value
    return of_entries


def _standardized(values: Values) -> Values:
    """Values less the clients' mean, over their deviation; without entries that are the same for all clients."""
    scaled: Values = {}
    for entry, at in values.items():
        clients = _of_clients(at)
        spread = statistics.pstdev(clients) if clients else 0.0
        if spread:
            mean = statistics.fmean(clients)
            scaled[entry] = {client: (value - mean) / spread for client, value in at.items()}
    return scaled


def _distance(values: Values) -> str:
    scaled = _standardized(values).values()
    return shown_mean((abs(at[SERVER]) for at in scaled if SERVER in at), ".3f")
