"""The gains of methods over a baseline beside recorded numbers that may explain them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from unalike.reporting.charts.figure import Axis, Figure, Plot, Points
from unalike_studies.claims import WHOLE_MODEL, Quantity, gain, recorded_mean
from unalike_studies.correlations import rank_correlation
from unalike_studies.layouts.looks import HEIGHT
from unalike_studies.layouts.tables import shown
from unalike_studies.results import Results


def explained_by(
    quantity: str,
    method: str,
    baseline: str,
    settings: Sequence[str],
    recorded_of: str,
    last: int = 10,
    column: str = "accuracy",
) -> Quantity:
    """Spearman's correlation over settings of a recorded number and the gain of a method, by seed; NaN if one is constant."""

    def values(results: Results) -> dict[int, float]:
        numbers = [recorded_mean(recorded_of, setting, quantity, WHOLE_MODEL)(results) for setting in settings]
        gains = [gain(method, baseline, setting, column, last)(results) for setting in settings]
        seeds = set.intersection(*map(set, (*numbers, *gains))) if settings else set[int]()
        return {seed: rank_correlation([(n[seed], g[seed]) for n, g in zip(numbers, gains)]) for seed in sorted(seeds)}

    return values


@dataclass(frozen=True)
class ExplainedGains:
    """One row per setting: recorded numbers of the baseline, and the gain of every other method over it.

    The last rows are Spearman's correlations of the gains with each recorded number over settings, the means over seeds that
    `explained_by` gives. The figure has a panel for each number: the gains over it, without those below `least`.
    """

    title: str
    baseline: str
    quantities: tuple[str, ...]
    recorded_of: str
    column: str = "accuracy"
    last: int = 10
    scale: float = 100
    least: float = -math.inf
    name: str = "explained"

    def table(self, results: Results) -> list[list[str]]:
        others = self._others(results)
        rows = [["setting", *self.quantities, *(f"{method} less {self.baseline}" for method in others)]]
        for setting in results.settings:
            numbers = [self._number(results, setting, quantity) for quantity in self.quantities]
            gains = [self._gain(results, method, setting) for method in others]
            rows.append([setting, *(shown(n, ".4g") for n in numbers), *(shown(g, "+.2f") for g in gains)])
        blank = [""] * len(self.quantities)
        for quantity in self.quantities:
            correlations = [self._correlation(results, quantity, method) for method in others]
            rows.append([f"correlation with {quantity}", *blank, *(shown(r, "+.2f") for r in correlations)])
        return rows

    def figure(self, results: Results) -> Figure:
        plots, title = [], self.title
        if math.isfinite(self.least):
            title += f"; below {self.least:g} not drawn"
        for quantity in self.quantities:
            of_methods = {method: self._points(results, quantity, method) for method in self._others(results)}
            marks = [Points(label=method, x=x, y=y, size=7) for method, (x, y) in of_methods.items() if x]
            plots.append(Plot(marks, Axis(quantity.replace("_", " ")), Axis(title)))
        return Figure(plots, HEIGHT)

    def _others(self, results: Results) -> list[str]:
        return [method for method in results.methods if method != self.baseline]

    def _number(self, results: Results, setting: str, quantity: str) -> float | None:
        return _mean(list(recorded_mean(self.recorded_of, setting, quantity, WHOLE_MODEL)(results).values()))

    def _gain(self, results: Results, method: str, setting: str) -> float | None:
        gains = gain(method, self.baseline, setting, self.column, self.last)(results)
        return _mean([self.scale * value for value in gains.values()])

    def _correlation(self, results: Results, quantity: str, method: str) -> float | None:
        """The mean over seeds of the correlation over settings."""
        quantity_by_seed = explained_by(
            quantity, method, self.baseline, results.settings, self.recorded_of, self.last, self.column
        )
        return _mean(list(quantity_by_seed(results).values()))

    def _points(self, results: Results, quantity: str, method: str) -> tuple[list[float], list[float]]:
        """The number and the gain in each setting that has both, by size of the number; no gain below `least`."""
        pairs = [(self._number(results, s, quantity), self._gain(results, method, s)) for s in results.settings]
        points = sorted(
            (n, gained) for n, gained in pairs if n is not None and gained is not None and gained >= self.least
        )
        return [number for number, _ in points], [gained for _, gained in points]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
