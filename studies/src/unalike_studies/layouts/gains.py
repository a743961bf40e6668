"""Gains over a baseline: in many settings with intervals, beside numbers that may explain them, and beside printed ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from unalike.reporting.charts.figure import Axis, Figure, Plot, Points
from unalike.statistics.moderated_t import moderated_t
from unalike_studies.claims import WHOLE_MODEL, Quantity, gain, recorded_mean
from unalike_studies.correlations import pearson_with_interval, rank_correlation
from unalike_studies.layouts.looks import HEIGHT
from unalike_studies.layouts.tables import MISSING, shown
from unalike_studies.published import Printed
from unalike_studies.results import LOWER_IS_BETTER, CellResult, Results


@dataclass(frozen=True)
class GainTable:
    """One row per setting: the score of the baseline and the gain of each other method, with 95 % intervals.

    A run's score is the mean over the clients of each client's own metric, by test samples; clients in which it is not defined,
    such as an AUC of one outcome, do not count. Where a method makes models of the clients' own, these are scored. Gains are
    points, of errors per cent of the baseline's error, and positive where the method is better.

    Every seed tests other samples and trains on many of the same, so seeds vary less than other samples would make them. The
    variance of a mean over J seeds is therefore (1 / J + tests / trains) s^2 (Nadeau and Bengio 2003), as in `moderated_t`.
    """

    title: str
    columns: Mapping[str, str]
    """Setting -> the column of its metric."""
    baseline: str = "FedAvg"

    def table(self, results: Results) -> list[list[str]]:
        others = [method for method in results.methods if method != self.baseline]
        rows = [["data set", "metric", self.baseline, *others]]
        for setting in results.settings:
            column = self.columns[setting]
            base, share = (
                self._scores(results, self.baseline, setting),
                _share(results, self.baseline, setting),
            )
            row = [
                setting,
                column,
                _entry([(1 if _is_error(column) else 100) * v for v in base.values()], share, ""),
            ]
            for method in others:
                own = self._scores(results, method, setting)
                gains = [_gain(own[seed], base[seed], column) for seed in own if seed in base]
                row.append(_entry(gains, share, "+"))
            rows.append(row)
        return rows

    def _scores(self, results: Results, method: str, setting: str) -> dict[int, float]:
        """Seed -> score."""
        return {
            s: score_of(cell, self.columns[setting])
            for s, cell in results.of(method, setting).items()
        }


def client_scores(cell: CellResult, column: str) -> list[tuple[float, int]]:
    """The defined values of the clients' metric with their test samples, of a client's own model where the method makes one."""
    own = cell.clients.get(f"personal_{column}") or cell.clients.get(column) or []
    return [
        (value, n)
        for value, n in zip(own, cell.clients.get("n_test", []))
        if value is not None and math.isfinite(value)
    ]


def score_of(cell: CellResult, column: str) -> float:
    """The mean of the clients' own metric by test samples; a run that diverged is infinitely bad."""
    known = client_scores(cell, column)
    return (
        sum(value * n for value, n in known) / sum(n for _, n in known)
        if known
        else cell.score(column, 1)
    )


def _gain(own: float, base: float, column: str) -> float:
    return 100 * ((base - own) / base if _is_error(column) else own - base)


def _is_error(column: str) -> bool:
    return column.endswith(LOWER_IS_BETTER)


def _share(results: Results, method: str, setting: str) -> float:
    """The ratio of test samples to training samples."""
    cells = [cell.clients for cell in results.of(method, setting).values() if cell.clients]
    return sum(sum(c["n_test"]) for c in cells) / max(1, sum(sum(c["n_train"]) for c in cells))


def _entry(values: Sequence[float], share: float, sign: str) -> str:
    """`mean (low to high)`; `diverges` if a value is infinite."""
    if not values:
        return MISSING
    if not all(map(math.isfinite, values)):
        return "diverges"
    tested = moderated_t(np.asarray(values)[:, None], overlap=share)
    mean, low, high = (end.item() for end in (tested.mean, tested.low, tested.high))
    return f"{mean:{sign}.2f}" + (
        f" ({low:{sign}.2f} to {high:{sign}.2f})" if math.isfinite(low) else ""
    )


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
        numbers = [
            recorded_mean(recorded_of, setting, quantity, WHOLE_MODEL)(results)
            for setting in settings
        ]
        gains = [gain(method, baseline, setting, column, last)(results) for setting in settings]
        seeds = set.intersection(*map(set, (*numbers, *gains))) if settings else set[int]()
        return {
            seed: rank_correlation([(n[seed], g[seed]) for n, g in zip(numbers, gains)])
            for seed in sorted(seeds)
        }

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
        rows = [
            ["setting", *self.quantities, *(f"{method} less {self.baseline}" for method in others)]
        ]
        for setting in results.settings:
            numbers = [self._number(results, setting, quantity) for quantity in self.quantities]
            gains = [self._gain(results, method, setting) for method in others]
            rows.append(
                [setting, *(shown(n, ".4g") for n in numbers), *(shown(g, "+.2f") for g in gains)]
            )
        blank = [""] * len(self.quantities)
        for quantity in self.quantities:
            correlations = [self._correlation(results, quantity, method) for method in others]
            rows.append(
                [f"correlation with {quantity}", *blank, *(shown(r, "+.2f") for r in correlations)]
            )
        return rows

    def figure(self, results: Results) -> Figure:
        plots, title = [], self.title
        if math.isfinite(self.least):
            title += f"; below {self.least:g} not drawn"
        for quantity in self.quantities:
            of_methods = {
                method: self._points(results, quantity, method) for method in self._others(results)
            }
            marks = [
                Points(label=method, x=x, y=y, size=7) for method, (x, y) in of_methods.items() if x
            ]
            plots.append(Plot(marks, Axis(quantity.replace("_", " ")), Axis(title)))
        return Figure(plots, HEIGHT)

    def _others(self, results: Results) -> list[str]:
        return [method for method in results.methods if method != self.baseline]

    def _number(self, results: Results, setting: str, quantity: str) -> float | None:
        return _mean(
            list(recorded_mean(self.recorded_of, setting, quantity, WHOLE_MODEL)(results).values())
        )

    def _gain(self, results: Results, method: str, setting: str) -> float | None:
        gains = gain(method, self.baseline, setting, self.column, self.last)(results)
        return _mean([self.scale * value for value in gains.values()])

    def _correlation(self, results: Results, quantity: str, method: str) -> float | None:
        """The mean over seeds of the correlation over settings."""
        quantity_by_seed = explained_by(
            quantity,
            method,
            self.baseline,
            results.settings,
            self.recorded_of,
            self.last,
            self.column,
        )
        return _mean(list(quantity_by_seed(results).values()))

    def _points(
        self, results: Results, quantity: str, method: str
    ) -> tuple[list[float], list[float]]:
        """The number and the gain in each setting that has both, by size of the number; no gain below `least`."""
        pairs = [
            (self._number(results, s, quantity), self._gain(results, method, s))
            for s in results.settings
        ]
        points = sorted(
            (n, gained)
            for n, gained in pairs
            if n is not None and gained is not None and gained >= self.least
        )
        return [number for number, _ in points], [gained for _, gained in points]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


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
        known = [
            pearson_with_interval(of) if len(of) > 1 else (math.nan,) * 3 for of in pairs.values()
        ]
        blank = [""] * len(self.printed)
        rows.append(
            [
                f"correlation with {self.reference}, printed",
                *(shown(r, ".2f") for r, _, _ in known),
                *blank,
            ]
        )
        intervals = [
            MISSING if math.isnan(low) else f"{low:.2f} to {high:.2f}" for _, low, high in known
        ]
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
        return {
            setting: self.scale * fmean(values) for setting, values in by_seed.items() if values
        }

    def _pairs(self, values: Mapping[str, float]) -> list[tuple[float, float]]:
        """Our number and the printed one in each setting that has both."""
        printed = self.printed[self.reference]
        return [
            (value, printed[setting].value)
            for setting, value in values.items()
            if setting in printed
        ]
