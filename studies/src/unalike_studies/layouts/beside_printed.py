"""Numbers of ours by setting beside those that a paper prints, and their correlation over the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, fmean, pstdev

from unalike.reporting.charts.figure import Axis, Figure, Plot, Points
from unalike_studies.claims import Quantity
from unalike_studies.layouts.looks import HEIGHT
from unalike_studies.layouts.tables import MISSING
from unalike_studies.published import Printed
from unalike_studies.results import Results

BySetting = Callable[[str], Quantity]
"""Setting -> the quantity there."""
LEAST = 4
"""Settings below which no interval of a correlation is known."""
NORMAL = 1.959964
"""The 97.5 % point of the standard normal distribution."""


def correlated(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Pearson's r of n pairs and its 95 % interval, tanh(artanh r ± 1.96 / sqrt(n - 3)) (Fisher 1915).

    All are NaN for fewer than four pairs, or if one of the two is constant. The interval takes the pairs for a sample of a normal
    distribution.
    """
    if len(x) < LEAST or not pstdev(x) or not pstdev(y):
        return (math.nan,) * 3
    r = correlation(x, y)
    if abs(r) >= 1:
        return r, r, r
    middle, half = math.atanh(r), NORMAL / math.sqrt(len(x) - 3)
    return r, math.tanh(middle - half), math.tanh(middle + half)


@dataclass(frozen=True)
class BesidePrinted:
    """One row per setting: quantities of ours, the means over seeds, and printed numbers beside them.

    The last rows are Pearson's correlation over settings of each quantity with the printed numbers `reference`, and its 95 %
    interval. The figure draws the quantities over these numbers.

    Attributes:
        ours: label -> the quantity by setting.
        printed: label -> setting -> the printed number.
        reference: the label of the printed numbers that quantities are correlated with.
    """

    title: str
    ours: Mapping[str, BySetting]
    printed: Mapping[str, Mapping[str, Printed]]
    reference: str
    scale: float = 100
    name: str = "beside"

    def table(self, results: Results) -> list[list[str]]:
        """The rows of the table, its heading first."""
        columns = {label: self._values(results, quantity) for label, quantity in self.ours.items()}
        rows = [["setting", *columns, *(f"{label}, printed" for label in self.printed)]]
        for setting in results.settings:
            own = [_shown(values.get(setting)) for values in columns.values()]
            rows.append([setting, *own, *(_printed(numbers.get(setting)) for numbers in self.printed.values())])
        found = {label: correlated(*zip(*pairs)) for label in columns if len(pairs := self._pairs(columns[label])) > 1}
        blank = [""] * len(self.printed)
        known = [found.get(label, (math.nan,) * 3) for label in columns]
        rows.append([f"correlation with {self.reference}, printed", *(_shown(r) for r, _, _ in known), *blank])
        intervals = [MISSING if math.isnan(low) else f"{low:.2f} to {high:.2f}" for _, low, high in known]
        return [*rows, ["its 95 % interval", *intervals, *blank]]

    def figure(self, results: Results) -> Figure:
        """The figure."""
        marks = []
        for label, quantity in self.ours.items():
            if pairs := self._pairs(self._values(results, quantity)):
                ours, printed = zip(*sorted(pairs, key=lambda pair: pair[1]))
                marks.append(Points(label=label, x=printed, y=ours, size=7))
        return Figure([Plot(marks, Axis(f"{self.reference}, printed"), Axis(self.title))], HEIGHT)

    def _values(self, results: Results, quantity: BySetting) -> dict[str, float]:
        """Setting -> the mean of a quantity over seeds."""
        by_seed = {setting: quantity(setting)(results).values() for setting in results.settings}
        return {setting: self.scale * fmean(values) for setting, values in by_seed.items() if values}

    def _pairs(self, values: Mapping[str, float]) -> list[tuple[float, float]]:
        """Our number and the printed one in each setting that has both."""
        printed = self.printed[self.reference]
        return [(value, printed[setting].value) for setting, value in values.items() if setting in printed]


def _shown(value: float | None) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.2f}"


def _printed(number: Printed | None) -> str:
    return MISSING if number is None else f"{number.value:.2f}"
