"""Figures of recorded numbers, such as the gamma of each layer by round."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from unalike.studies.layouts.panels import Grid, Line, Panel, Picture
from unalike.studies.recorded_numbers import by_round
from unalike.studies.results import Results

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
    name: str = ""

    def table(self, results: Results) -> list[list[str]]:
        """The number in the first and the last round that is kept, and its mean over rounds."""
        rows = [["method", "setting", "seeds", self.by, "first round", "last round", "mean over rounds"]]
        for method, setting in _recorded(results, self.quantity):
            entries, seeds = self._entries(results, method, setting), str(len(results.of(method, setting)))
            for entry, found in entries.items():
                values = [statistics.fmean(values) for values in found.values()]
                shown = [f"{value:.4g}" for value in (values[0], values[-1], statistics.fmean(values))]
                rows.append([method, setting, seeds, entry, *shown])
        return rows

    def picture(self, results: Results) -> Picture:
        """The figure."""
        panels = []
        for method, setting in _recorded(results, self.quantity):
            lines = [Line.over_seeds(entry, found) for entry, found in self._entries(results, method, setting).items()]
            panels.append(Panel(_title(results, method, setting), "round", self.title, tuple(lines)))
        return Picture(self.name or self.quantity, tuple(panels))

    def _entries(self, results: Results, method: str, setting: str) -> Entries:
        entries: Entries = {}
        for cell in results.of(method, setting).values():
            for entry, values in by_round(cell.recorded, self.quantity, self.by).items():
                for number, value in values.items():
                    entries.setdefault(entry or WHOLE, {}).setdefault(number, []).append(value)
        return entries


@dataclass(frozen=True)
class RecordedMap(RecordedCurves):
    """As `RecordedCurves`, but a heat map with rounds as columns and layers as rows; for many layers."""

    def picture(self, results: Results) -> Picture:
        """The figure."""
        panels = []
        for method, setting in _recorded(results, self.quantity):
            entries = self._entries(results, method, setting)
            rounds = sorted({number for found in entries.values() for number in found})
            means = tuple(
                tuple(statistics.fmean(found[n]) if n in found else math.nan for n in rounds)
                for found in entries.values()
            )
            grid = Grid(means, tuple(entries), tuple(map(str, rounds)), bar=self.title)
            panels.append(Panel(_title(results, method, setting), "round", self.by, grid=grid))
        return Picture(self.name or self.quantity, tuple(panels))


def _recorded(results: Results, quantity: str) -> list[tuple[str, str]]:
    """The (method, setting) pairs with a recorded number, in the order of the study."""
    return [
        (method, setting)
        for setting in results.settings
        for method in results.methods
        if any(by_round(cell.recorded, quantity) for cell in results.of(method, setting).values())
    ]


def _title(results: Results, method: str, setting: str) -> str:
    return method if len(results.settings) == 1 else f"{method}, {setting}"
