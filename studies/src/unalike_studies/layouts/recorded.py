"""Figures of recorded numbers, such as the gamma of each layer by round."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unalike.reporting.charts.figure import Axis, Figure, HeatMap, Plot, named
from unalike_studies.claims import Quantity, by_cell
from unalike_studies.layouts.looks import HEIGHT, ROUNDS, over_seeds
from unalike_studies.layouts.tables import MISSING
from unalike_studies.recorded_numbers import by_round
from unalike_studies.results import CellResult, Results

WHOLE = "model"
"""The label of a number that belongs to no layer."""

Entries = dict[str, dict[int, list[float]]]
"""Layer or client -> round -> the values of the seeds."""


@dataclass(frozen=True)
class RecordedCurves:
    """A recorded number, for cells with `record`: one panel per method and setting, one line per layer.

    A line is the mean over seeds by round, with a band of one deviation. `by` names another column of the records to draw a line
    for, such as "client".
    """

    title: str
    quantity: str
    by: str = "layer"

    @property
    def name(self) -> str:
        """The name of the figure's files."""
        return self.quantity

    def table(self, results: Results) -> list[list[str]]:
        """The number in the first and the last round that is kept, and its mean over rounds."""
        rows = [
            ["method", "setting", "seeds", self.by, "first round", "last round", "mean over rounds"]
        ]
        for method, setting in _recorded(results, self.quantity):
            entries, seeds = (
                self.entries(results, method, setting),
                str(len(results.of(method, setting))),
            )
            for entry, by_number in entries.items():
                values = [statistics.fmean(values) for values in by_number.values()]
                shown = [
                    f"{value:.4g}" for value in (values[0], values[-1], statistics.fmean(values))
                ]
                rows.append([method, setting, seeds, entry, *shown])
        return rows

    def figure(self, results: Results) -> Figure:
        plots = []
        for method, setting in _recorded(results, self.quantity):
            entries = self.entries(results, method, setting).items()
            lines = [over_seeds(entry, by_number) for entry, by_number in entries]
            plots.append(Plot(lines, ROUNDS, Axis(self.title), _title(results, method, setting)))
        return Figure(plots, HEIGHT)

    def entries(self, results: Results, method: str, setting: str) -> Entries:
        """The values of the seeds by entry and round."""
        entries: Entries = {}
        for cell in results.of(method, setting).values():
            for entry, values in by_round(cell.recorded, self.quantity, self.by).items():
                for number, value in values.items():
                    entries.setdefault(entry or WHOLE, {}).setdefault(number, []).append(value)
        return entries


@dataclass(frozen=True)
class RecordedTable:
    """A recorded number, for cells with `record`: one row per layer, one column per method and setting.

    An entry is the mean over rounds and seeds, and the least and the largest value of a round and seed.
    """

    title: str
    quantity: str

    def table(self, results: Results) -> list[list[str]]:
        pairs = _recorded(results, self.quantity)
        columns = [RecordedCurves("", self.quantity).entries(results, *pair) for pair in pairs]
        layers = dict.fromkeys(layer for entries in columns for layer in entries)
        return [
            ["layer", *(", ".join(pair) for pair in pairs)],
            *(
                [layer, *(_between(entries.get(layer, {})) for entries in columns)]
                for layer in layers
            ),
        ]


@dataclass(frozen=True)
class GroupSizes:
    """The sizes of the groups into which a rule puts the clients, for cells that record the group of each client as `quantity`.

    One row per method and setting: the most frequent sizes, over layers, rounds and seeds, and the share of these.
    """

    title: str
    quantity: str

    def table(self, results: Results) -> list[list[str]]:
        rows = [
            [
                "method",
                "setting",
                "layers, rounds and seeds",
                "most frequent sizes",
                "share, %",
                "next",
                "share, %",
            ]
        ]
        for method, setting in _recorded(results, self.quantity):
            cells = results.of(method, setting).values()
            counts = Counter(sizes for cell in cells for sizes in self._sizes(cell))
            shown = [
                text
                for sizes, count in counts.most_common(2)
                for text in (", ".join(map(str, sizes)), f"{100 * count / counts.total():.1f}")
            ]
            rows.append([method, setting, str(counts.total()), *(shown + [MISSING] * 4)[:4]])
        return rows

    def share(self, method: str, setting: str, sizes: tuple[int, ...]) -> Quantity:
        """The share of layers and rounds in which the groups have these sizes, by seed."""

        def number(cell: CellResult) -> float | None:
            of_cell = self._sizes(cell)
            return of_cell.count(sizes) / len(of_cell) if of_cell else None

        return by_cell(method, setting, number)

    def _sizes(self, cell: CellResult) -> list[tuple[int, ...]]:
        """The sizes of the groups in each layer and round, largest first; clients in no group are left out."""
        groups: dict[tuple[str, int], Counter[int]] = {}
        for series in cell.recorded.get("series", []):
            if series["quantity"] == self.quantity:
                for number, group in zip(cell.recorded["rounds"], series["values"]):
                    if group is not None and group >= 0:
                        groups.setdefault((series.get("layer", ""), number), Counter())[
                            int(group)
                        ] += 1
        return [tuple(sorted(members.values(), reverse=True)) for members in groups.values()]


@dataclass(frozen=True)
class RecordedMap(RecordedCurves):
    """As `RecordedCurves`, but a heat map with rounds as columns and layers as rows; for many layers."""

    def figure(self, results: Results) -> Figure:
        plots = []
        for method, setting in _recorded(results, self.quantity):
            entries = self.entries(results, method, setting)
            rounds = sorted({number for by_number in entries.values() for number in by_number})
            means = [
                [statistics.fmean(by_number[n]) if n in by_number else math.nan for n in rounds]
                for by_number in entries.values()
            ]
            texts = [[f"{entry}, round {number}" for number in rounds] for entry in entries]
            x, y = Axis("round", named(rounds)), Axis(self.by, named(entries), reverse=True)
            squares = HeatMap(np.array(means), self.title, texts=texts, form=".4g")
            plots.append(Plot([squares], x, y, _title(results, method, setting)))
        return Figure(plots, HEIGHT)


def _recorded(results: Results, quantity: str) -> list[tuple[str, str]]:
    """The (method, setting) pairs with a recorded number, in the order of the study."""
    groups = results.groups()
    return [
        (m, where)
        for m, where, cells in groups
        if any(by_round(cell.recorded, quantity) for cell in cells)
    ]


def _between(values: Mapping[int, list[float]]) -> str:
    """The mean of values by round, and their range."""
    flat = [value for of_round in values.values() for value in of_round]
    return f"{statistics.fmean(flat):.3g} ({min(flat):.3g} to {max(flat):.3g})" if flat else MISSING


def _title(results: Results, method: str, setting: str) -> str:
    return method if len(results.settings) == 1 else f"{method}, {setting}"
