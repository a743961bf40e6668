"""The score over a parameter that methods sweep, such as the beta of layer-wise weight shrinking."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from unalike.reporting.charts.figure import Axis, Figure, Line, Plot
from unalike_studies.layouts.looks import HEIGHT, over_seeds
from unalike_studies.layouts.tables import MISSING
from unalike_studies.results import Results


@dataclass(frozen=True)
class MethodSweep:
    """One panel per setting, one line per family of methods over the parameter; the baseline is a level line.

    `families`: label of a line -> method -> the parameter's value. `log`: the x axis is the logarithm of the parameter.
    """

    title: str
    parameter: str
    families: Mapping[str, Mapping[str, float]]
    baseline: str
    column: str = "accuracy"
    last: int = 10
    scale: float = 100
    log: bool = True
    name: str = "sweep"

    def table(self, results: Results) -> list[list[str]]:
        """One row per setting and value of the parameter: the gain of each family over the baseline under the same seeds."""
        rows = [["setting", self.parameter, *(f"{family} less {self.baseline}" for family in self.families)]]
        for setting in results.settings:
            for value in sorted({value for at in self.families.values() for value in at.values()}):
                gains = [self._gain(results, at, value, setting) for at in self.families.values()]
                if any(gain != MISSING for gain in gains):
                    rows.append([setting, f"{value:g}", *gains])
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure."""
        x = f"log10 of {self.parameter}" if self.log else self.parameter
        y = Axis(self.title)
        plots = [Plot(self._lines(results, setting), Axis(x), y, setting) for setting in results.settings]
        return Figure(plots, HEIGHT)

    def _place(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def _scores(self, results: Results, method: str, setting: str) -> dict[int, float]:
        found = results.scores(method, setting, self.column, self.last)
        return {seed: self.scale * value for seed, value in found.items() if math.isfinite(value)}

    def _gain(self, results: Results, at: Mapping[str, float], value: float, setting: str) -> str:
        base = self._scores(results, self.baseline, setting)
        for method, its in at.items():
            own = self._scores(results, method, setting)
            gains = [own[seed] - base[seed] for seed in own if seed in base]
            if its == value and gains:
                spread = f" ± {statistics.stdev(gains):.2f} ({len(gains)})" if len(gains) > 1 else ""
                return f"{statistics.fmean(gains):+.2f}{spread}"
        return MISSING

    def _lines(self, results: Results, setting: str) -> list[Line]:
        lines = []
        for family, at in self.families.items():
            found = {
                self._place(value): list(self._scores(results, method, setting).values())
                for method, value in at.items()
            }
            found = {x: found[x] for x in sorted(found) if found[x]}
            if found:
                lines.append(over_seeds(family, found))
        level, places = (
            list(self._scores(results, self.baseline, setting).values()),
            [x for line in lines for x in line.x],
        )
        if level and places:
            lines.append(over_seeds(self.baseline, {min(places): level, max(places): level}))
        return lines
