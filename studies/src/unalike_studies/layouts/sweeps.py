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
            row = [f"{value:g}"]
            for line in lines:
                score = dict(zip(line.x, line.y)).get(value)
                row.append(MISSING if score is None else f"{score:.4g}")
            rows.append(row)
        return rows

    def figure(self, results: Results) -> Figure:
        x = Axis(self.parameter, word=f"{self.parameter} ")
        return Figure([Plot(self._lines(results), x, Axis(self.title, log=self.log))], HEIGHT)

    def _lines(self, results: Results) -> list[Line]:
        lines = []
        for method in results.methods:
            at_value = {}
            for setting in results.settings:
                scores = results.scores(method, setting, self.column, self.last)
                if scores and setting in self.at:
                    at_value[self.at[setting]] = [self.scale * v for v in scores.values()]
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
        columns = [f"{family} less {self.baseline}" for family in self.families]
        rows = [["setting", self.parameter, *columns]]
        all_values = sorted({value for at in self.families.values() for value in at.values()})
        for setting in results.settings:
            for value in all_values:
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
        for method, value_of_method in at.items():
            if value_of_method != value:
                continue
            scores = self._scores(results, method, setting)
            gains = [scores[seed] - base[seed] for seed in scores if seed in base]
            if gains:
                mean = f"{statistics.fmean(gains):+.2f}"
                if len(gains) == 1:
                    return mean
                return f"{mean} ± {statistics.stdev(gains):.2f} ({len(gains)})"
        return MISSING

    def _lines(self, results: Results, setting: str) -> list[Line]:
        lines = []
        for family, at in self.families.items():
            scores = {}
            for method, value in at.items():
                scores[value] = list(self._scores(results, method, setting).values())
            at_value = {value: scores[value] for value in sorted(scores) if scores[value]}
            if at_value:
                lines.append(over_seeds(family, at_value))

        # The baseline has no such parameter: a level line over the whole width.
        level = list(self._scores(results, self.baseline, setting).values())
        places = [x for line in lines for x in line.x]
        if level and places:
            lines.append(over_seeds(self.baseline, {min(places): level, max(places): level}))
        return lines
