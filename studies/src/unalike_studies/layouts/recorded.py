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

WHOLE_MODEL_LABEL = "model"
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
            seeds = str(len(results.of(method, setting)))
            for entry, by_number in self.entries(results, method, setting).items():
                means = [statistics.fmean(of_seeds) for of_seeds in by_number.values()]
                first, last = f"{means[0]:.4g}", f"{means[-1]:.4g}"
                over_rounds = f"{statistics.fmean(means):.4g}"
                rows.append([method, setting, seeds, entry, first, last, over_rounds])
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
                by_number = entries.setdefault(entry or WHOLE_MODEL_LABEL, {})
                for number, value in values.items():
                    by_number.setdefault(number, []).append(value)
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
        rows = [["layer", *(", ".join(pair) for pair in pairs)]]
        for layer in layers:
            ranges = [_between(entries.get(layer, {})) for entries in columns]
            rows.append([layer, *ranges])
        return rows


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
            row = [method, setting, str(counts.total())]
            for sizes, count in counts.most_common(2):
                share = f"{100 * count / counts.total():.1f}"
                row += [", ".join(map(str, sizes)), share]
            # Where all groups have the same sizes, or there are none, columns are left over.
            row += [MISSING] * (len(rows[0]) - len(row))
            rows.append(row)
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
            if series["quantity"] != self.quantity:
                continue
            layer = series.get("layer", "")
            for number, group in zip(cell.recorded["rounds"], series["values"]):
                if group is not None and group >= 0:
                    members = groups.setdefault((layer, number), Counter())
                    members[int(group)] += 1
        return [tuple(sorted(members.values(), reverse=True)) for members in groups.values()]


@dataclass(frozen=True)
class RecordedMap(RecordedCurves):
    """As `RecordedCurves`, but a heat map with rounds as columns and layers as rows; for many layers."""

    def figure(self, results: Results) -> Figure:
        plots = []
        for method, setting in _recorded(results, self.quantity):
            entries = self.entries(results, method, setting)
            rounds = sorted({number for by_number in entries.values() for number in by_number})
            means, texts = [], []
            for entry, by_number in entries.items():
                known = {n: statistics.fmean(values) for n, values in by_number.items()}
                means.append([known.get(number, math.nan) for number in rounds])
                texts.append([f"{entry}, round {number}" for number in rounds])
            x = Axis("round", named(rounds))
            y = Axis(self.by, named(entries), reverse=True)
            squares = HeatMap(np.array(means), self.title, texts=texts, form=".4g")
            plots.append(Plot([squares], x, y, _title(results, method, setting)))
        return Figure(plots, HEIGHT)


def _recorded(results: Results, quantity: str) -> list[tuple[str, str]]:
    """The (method, setting) pairs with a recorded number, in the order of the study."""
    pairs = []
    for method, setting, cells in results.groups():
        if any(by_round(cell.recorded, quantity) for cell in cells):
            pairs.append((method, setting))
    return pairs


def _between(values: Mapping[int, list[float]]) -> str:
    """The mean of values by round, and their range."""
    flat = [value for of_round in values.values() for value in of_round]
    if not flat:
        return MISSING
    return f"{statistics.fmean(flat):.3g} ({min(flat):.3g} to {max(flat):.3g})"


def _title(results: Results, method: str, setting: str) -> str:
    return method if len(results.settings) == 1 else f"{method}, {setting}"
