"""Scores over a parameter that settings sweep, or that methods sweep, such as the beta of layer-wise weight shrinking."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from unalike.reporting.charts.figure import Axis, Figure, Line, Plot
from unalike_studies.layouts.looks import HEIGHT, over_seeds, panels
from unalike_studies.layouts.tables import MISSING
from unalike_studies.results import Results


@dataclass(frozen=True)
class Sweep:
    """The score of each method over a parameter that settings sweep: `at` gives the parameter's value in each setting."""

    title: str
    parameter: str
    at: Mapping[str, float] = field(default_factory=dict)
    column: str = "accuracy"
    last: int = 10
    scale: float = 100
    log: bool = False
    name: str = "sweep"

    def table(self, results: Results) -> list[list[str]]:
        """One row per value of the parameter, one column per method."""
        lines = self._lines(results)
        rows = [[self.parameter, *(line.label for line in lines)]]
        for value in sorted(set(self.at.values())):
            scores = [dict(zip(line.x, line.y)).get(value) for line in lines]
            rows.append(
                [f"{value:g}", *(MISSING if score is None else f"{score:.4g}" for score in scores)]
            )
        return rows

    def figure(self, results: Results) -> Figure:
        x = Axis(self.parameter, word=f"{self.parameter} ")
        return Figure([Plot(self._lines(results), x, Axis(self.title, log=self.log))], HEIGHT)

    def _lines(self, results: Results) -> list[Line]:
        lines = []
        for method in results.methods:
            at_value = {}
            for setting in results.settings:
                values = [
                    self.scale * v
                    for v in results.scores(method, setting, self.column, self.last).values()
                ]
                if values and setting in self.at:
                    at_value[self.at[setting]] = values
            if at_value:
                lines.append(over_seeds(method, dict(sorted(at_value.items()))))
        return lines


@dataclass(frozen=True)
class MethodSweep:
    """One panel per setting, one line per family of methods over the parameter; the baseline is a level line.

    `families`: label of a line -> method -> the parameter's value. `log`: the x axis is logarithmic.
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
        rows = [
            [
                "setting",
                self.parameter,
                *(f"{family} less {self.baseline}" for family in self.families),
            ]
        ]
        for setting in results.settings:
            for value in sorted({value for at in self.families.values() for value in at.values()}):
                gains = [self._gain(results, at, value, setting) for at in self.families.values()]
                if any(gain != MISSING for gain in gains):
                    rows.append([setting, f"{value:g}", *gains])
        return rows

    def figure(self, results: Results) -> Figure:
        x = Axis(self.parameter, log=self.log, word=f"{self.parameter} ")
        return panels(results, lambda setting: self._lines(results, setting), x, self.title)

    def _scores(self, results: Results, method: str, setting: str) -> dict[int, float]:
        scores = results.scores(method, setting, self.column, self.last)
        return {seed: self.scale * value for seed, value in scores.items() if math.isfinite(value)}

    def _gain(self, results: Results, at: Mapping[str, float], value: float, setting: str) -> str:
        base = self._scores(results, self.baseline, setting)
        for method, its in at.items():
            scores = self._scores(results, method, setting)
            gains = [scores[seed] - base[seed] for seed in scores if seed in base]
            if its == value and gains:
                spread = (
                    f" ± {statistics.stdev(gains):.2f} ({len(gains)})" if len(gains) > 1 else ""
                )
                return f"{statistics.fmean(gains):+.2f}{spread}"
        return MISSING

    def _lines(self, results: Results, setting: str) -> list[Line]:
        lines = []
        for family, at in self.families.items():
            scores = {
                value: list(self._scores(results, method, setting).values())
                for method, value in at.items()
            }
            at_value = {value: scores[value] for value in sorted(scores) if scores[value]}
            if at_value:
                lines.append(over_seeds(family, at_value))
        level = list(self._scores(results, self.baseline, setting).values())
        places = [x for line in lines for x in line.x]
        if level and places:
            lines.append(over_seeds(self.baseline, {min(places): level, max(places): level}))
        return lines
