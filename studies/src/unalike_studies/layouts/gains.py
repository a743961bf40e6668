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
from unalike_studies.layouts.looks import HEIGHT, POINT_SIZE
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
            base = self._scores(results, self.baseline, setting)
            share = _share(results, self.baseline, setting)
            scale = 1 if _is_error(column) else 100
            shown_base = [scale * score for score in base.values()]
            row = [setting, column, _entry(shown_base, share, "")]
            for method in others:
                scores = self._scores(results, method, setting)
                gains = [_gain(scores[seed], base[seed], column) for seed in scores if seed in base]
                row.append(_entry(gains, share, "+"))
            rows.append(row)
        return rows

    def _scores(self, results: Results, method: str, setting: str) -> dict[int, float]:
        """Seed -> score."""
        column = self.columns[setting]
        cells = results.of(method, setting)
        return {seed: score_of(cell, column) for seed, cell in cells.items()}


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
    scores = client_scores(cell, column)
    if not scores:
        return cell.score(column, 1)
    samples = sum(n for _, n in scores)
    return sum(value * n for value, n in scores) / samples


def _gain(score: float, base: float, column: str) -> float:
    if _is_error(column):
        return 100 * ((base - score) / base)
    return 100 * (score - base)


def _is_error(column: str) -> bool:
    return column.endswith(LOWER_IS_BETTER)


def _share(results: Results, method: str, setting: str) -> float:
    """The ratio of test samples to training samples."""
    tests = trains = 0
    for cell in results.of(method, setting).values():
        if cell.clients:
            tests += sum(cell.clients["n_test"])
            trains += sum(cell.clients["n_train"])
    return tests / max(1, trains)


def _entry(values: Sequence[float], share: float, sign: str) -> str:
    """`mean (low to high)`; `diverges` if a value is infinite."""
    if not values:
        return MISSING
    if not all(map(math.isfinite, values)):
        return "diverges"
    test = moderated_t(np.asarray(values)[:, None], overlap=share)
    mean = f"{test.mean.item():{sign}.2f}"
    low = test.low.item()
    high = test.high.item()
    if not math.isfinite(low):
        return mean
    return f"{mean} ({low:{sign}.2f} to {high:{sign}.2f})"


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
        if not settings:
            return {}
        numbers, gains = [], []
        for setting in settings:
            recorded = recorded_mean(recorded_of, setting, quantity, WHOLE_MODEL)
            numbers.append(recorded(results))
            gains.append(gain(method, baseline, setting, column, last)(results))

        # Only seeds that every setting has both numbers of.
        seeds_of_each = [set(by_seed) for by_seed in [*numbers, *gains]]
        seeds = set.intersection(*seeds_of_each)
        correlations = {}
        for seed in sorted(seeds):
            pairs = [(number[seed], gained[seed]) for number, gained in zip(numbers, gains)]
            correlations[seed] = rank_correlation(pairs)
        return correlations

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
        differences = [f"{method} less {self.baseline}" for method in others]
        rows = [["setting", *self.quantities, *differences]]
        for setting in results.settings:
            row = [setting]
            for quantity in self.quantities:
                row.append(shown(self._number(results, setting, quantity), ".4g"))
            for method in others:
                row.append(shown(self._gain(results, method, setting), "+.2f"))
            rows.append(row)

        blank = [""] * len(self.quantities)
        for quantity in self.quantities:
            row = [f"correlation with {quantity}", *blank]
            for method in others:
                row.append(shown(self._correlation(results, quantity, method), "+.2f"))
            rows.append(row)
        return rows

    def figure(self, results: Results) -> Figure:
        title = self.title
        if math.isfinite(self.least):
            title += f"; below {self.least:g} not drawn"
        plots = []
        for quantity in self.quantities:
            marks = []
            for method in self._others(results):
                x, y = self._points(results, quantity, method)
                if x:
                    marks.append(Points(label=method, x=x, y=y, size=POINT_SIZE))
            plots.append(Plot(marks, Axis(quantity.replace("_", " ")), Axis(title)))
        return Figure(plots, HEIGHT)

    def _others(self, results: Results) -> list[str]:
        return [method for method in results.methods if method != self.baseline]

    def _number(self, results: Results, setting: str, quantity: str) -> float | None:
        recorded = recorded_mean(self.recorded_of, setting, quantity, WHOLE_MODEL)
        return _mean(list(recorded(results).values()))

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
        points = []
        for setting in results.settings:
            number = self._number(results, setting, quantity)
            gained = self._gain(results, method, setting)
            if number is not None and gained is not None and gained >= self.least:
                points.append((number, gained))
        points.sort()
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
        printed_columns = [f"{label}, printed" for label in self.printed]
        rows = [["setting", *columns, *printed_columns]]
        for setting in results.settings:
            row = [setting]
            for values in columns.values():
                row.append(shown(values.get(setting), ".2f"))
            for numbers in self.printed.values():
                number = numbers.get(setting)
                row.append(MISSING if number is None else f"{number.value:.2f}")
            rows.append(row)

        correlations = [f"correlation with {self.reference}, printed"]
        intervals = ["its 95 % interval"]
        for values in columns.values():
            r, low, high = pearson_with_interval(self._pairs(values))
            correlations.append(shown(r, ".2f"))
            intervals.append(MISSING if math.isnan(low) else f"{low:.2f} to {high:.2f}")
        blank = [""] * len(self.printed)
        return [*rows, [*correlations, *blank], [*intervals, *blank]]

    def figure(self, results: Results) -> Figure:
        marks = []
        for label, quantity in self.ours.items():
            pairs = self._pairs(self._values(results, quantity))
            if pairs:
                pairs.sort(key=lambda pair: pair[1])
                ours, printed = zip(*pairs)
                marks.append(Points(label=label, x=printed, y=ours, size=POINT_SIZE))
        return Figure([Plot(marks, Axis(f"{self.reference}, printed"), Axis(self.title))], HEIGHT)

    def _values(self, results: Results, quantity: BySetting) -> dict[str, float]:
        """Setting -> the mean of a quantity over seeds."""
        means = {}
        for setting in results.settings:
            by_seed = quantity(setting)(results)
            if by_seed:
                means[setting] = self.scale * fmean(by_seed.values())
        return means

    def _pairs(self, values: Mapping[str, float]) -> list[tuple[float, float]]:
        """Our number and the printed one in each setting that has both."""
        printed = self.printed[self.reference]
        return [
            (value, printed[setting].value)
            for setting, value in values.items()
            if setting in printed
        ]
