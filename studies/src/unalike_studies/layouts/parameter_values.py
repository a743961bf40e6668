"""The values of single parameters at the clients, and what each method makes of them."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unalike.reporting.charts.figure import Axis, Figure, HeatMap, Plot, Points, named
from unalike_studies.claims import Quantity, by_cell
from unalike_studies.layouts.looks import FAINT, HEIGHT
from unalike_studies.layouts.tables import shown_mean
from unalike_studies.results import CellResult, Results

SERVER = -1
CLIENTS = "clients"
WIDTH = 0.8
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
        plots, x = [], Axis("parameter", named(range(self.entries)))
        for setting in results.settings:
            methods = {
                method: _standardized(values)
                for method, values in _methods(results, setting).items()
            }
            first = next(iter(methods.values()), {})
            clients = [
                (i, v)
                for i in range(self.entries)
                for k, v in first.get(i, {}).items()
                if k != SERVER
            ]
            places = [WIDTH * ((j + 1) / (len(methods) + 1) - 0.5) for j in range(len(methods))]
            marks = [
                Points(
                    look=FAINT,
                    label=CLIENTS,
                    x=[i for i, _ in clients],
                    y=[v for _, v in clients],
                    size=7,
                ),
                *(self._points(*values, place) for values, place in zip(methods.items(), places)),
            ]
            plots.append(
                Plot(marks, x, Axis(self.title, limits=(-self.limit, self.limit)), setting)
            )
        return Figure(plots, HEIGHT)

    @staticmethod
    def from_peak(method: str, setting: str) -> Quantity:
        """Seed -> the mean distance of a method's new values from the main peak over the clients, in standard deviations."""

        def number(cell: CellResult) -> float | None:
            entries = _standardized(_values(cell)).values()
            distances = [
                abs(at[SERVER] - half_sample_mode(_of_clients(at)))
                for at in entries
                if SERVER in at
            ]
            return statistics.fmean(distances) if distances else None

        return by_cell(method, setting, number)

    def _points(self, method: str, values: Values, place: float) -> Points:
        """The new values of a method, beside the clients' points by `place`."""
        points = [
            (i + place, values[i][SERVER])
            for i in range(self.entries)
            if SERVER in values.get(i, {})
        ]
        return Points(
            label=method, x=[x for x, _ in points], y=[value for _, value in points], size=7
        )


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
        return rows + [
            [method, _distance(values)]
            for method, values in _methods(results, self.setting).items()
        ]

    def figure(self, results: Results) -> Figure:
        plots, bar = [], f"{self.title}, cut at {self.limit:g}"
        for method, values in _methods(results, self.setting).items():
            scaled = _standardized(values)
            flat = [scaled.get(i, {}).get(SERVER, math.nan) for i in range(self.side**2)]
            cut = np.clip(flat, -self.limit, self.limit).reshape(self.side, self.side)
            plots.append(
                Plot([HeatMap(cut, bar, diverging=True)], y=Axis(reverse=True), title=method)
            )
        return Figure(plots, HEIGHT)


def half_sample_mode(values: Sequence[float]) -> float:
    """The place of the main peak: the narrowest half of the values, again and again (Robertson and Cryer 1974)."""
    rest = sorted(values)
    while len(rest) > 2:
        size = math.ceil(len(rest) / 2)
        start = min(range(len(rest) - size + 1), key=lambda i: rest[i + size - 1] - rest[i])
        rest = rest[start : start + size]
    return statistics.fmean(rest)


def _of_clients(at: dict[int, float]) -> list[float]:
    return [value for client, value in at.items() if client != SERVER]


def _methods(results: Results, setting: str) -> dict[str, Values]:
    """Method -> values after the first recorded round, under the first seed."""
    cells = {method: results.of(method, setting) for method in results.methods}
    of_methods = {method: _values(seeds[min(seeds)]) for method, seeds in cells.items() if seeds}
    return {method: values for method, values in of_methods.items() if values}


def _values(cell: CellResult) -> Values:
    of_entries: Values = {}
    for series in cell.recorded.get("series", []):
        place = re.search(r"\[(\d+)\]$", series.get("layer", ""))
        if series["quantity"] == "parameter" and place and series["values"][0] is not None:
            of_entries.setdefault(int(place[1]), {})[series.get("client", SERVER)] = series[
                "values"
            ][0]
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
    return shown_mean(
        (abs(at[SERVER]) for at in _standardized(values).values() if SERVER in at), ".3f"
    )
