"""Numbers of ours by setting beside those that a paper prints, and their correlation over the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from unalike.reporting.charts.figure import Axis, Figure, Plot, Points
from unalike_studies.claims import Quantity
from unalike_studies.correlations import pearson_with_interval
from unalike_studies.layouts.looks import HEIGHT
from unalike_studies.layouts.tables import MISSING, shown
from unalike_studies.published import Printed
from unalike_studies.results import Results

BySetting = Callable[[str], Quantity]
"""Setting -> the quantity there."""


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
        columns = {label: self._values(results, quantity) for label, quantity in self.ours.items()}
        rows = [["setting", *columns, *(f"{label}, printed" for label in self.printed)]]
        for setting in results.settings:
            numbers = [of.get(setting) for of in self.printed.values()]
            printed = [MISSING if number is None else f"{number.value:.2f}" for number in numbers]
            own = [shown(values.get(setting), ".2f") for values in columns.values()]
            rows.append([setting, *own, *printed])
        pairs = {label: self._pairs(values) for label, values in columns.items()}
        known = [pearson_with_interval(of) if len(of) > 1 else (math.nan,) * 3 for of in pairs.values()]
        blank = [""] * len(self.printed)
        rows.append([f"correlation with {self.reference}, printed", *(shown(r, ".2f") for r, _, _ in known), *blank])
        intervals = [MISSING if math.isnan(low) else f"{low:.2f} to {high:.2f}" for _, low, high in known]
        return [*rows, ["its 95 % interval", *intervals, *blank]]

    def figure(self, results: Results) -> Figure:
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
