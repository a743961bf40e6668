"""Figures of a study: curves by round, one line per client, scores of classes, label counts, and a histogram of parameters."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from unalike.reporting.charts.figure import Axis, Figure, HeatMap, Line, Plot, Points, named
from unalike_studies.cells import CLASS_ACCURACY
from unalike_studies.claims import Quantity
from unalike_studies.layouts.looks import HEIGHT, over_seeds
from unalike_studies.layouts.tables import MISSING
from unalike_studies.results import LOWER_IS_BETTER, CellResult, Results


@dataclass(frozen=True)
class Curves:
    """One panel per setting, one line per method: the mean of a column over seeds by round, with a band of one deviation.

    With `less`, the column less this one. `log_rounds`: the x axis is logarithmic and begins with round 1, for methods that train
    for very different numbers of rounds.
    """

    title: str
    column: str = "accuracy"
    scale: float = 100
    name: str = "curves"
    less: str = ""
    log_rounds: bool = False

    def table(self, results: Results) -> list[list[str]]:
        """The rounds that are drawn of each method and setting, and the best of them."""
        rows = [["method", "setting", "seeds", "rounds", "best round", "its mean"]]
        sign = -1 if self.column.endswith(LOWER_IS_BETTER) else 1
        for setting in results.settings:
            for method in results.methods:
                line = self._line(method, setting, results)
                if line is not None:
                    best = max(range(len(line.y)), key=lambda i: sign * line.y[i])
                    seeds = str(len(results.of(method, setting)))
                    rows.append([method, setting, seeds, f"{line.x[-1]:g}", f"{line.x[best]:g}", f"{line.y[best]:.2f}"])
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure."""
        plots = []
        for setting in results.settings:
            of_methods = (self._line(method, setting, results) for method in results.methods)
            lines = [line for line in of_methods if line is not None]
            plots.append(
                Plot(lines, Axis("round", word="round ", form="", log=self.log_rounds), Axis(self.title), setting)
            )
        return Figure(plots, HEIGHT)

    def _line(self, method: str, setting: str, results: Results) -> Line | None:
        by_round: dict[float, list[float]] = {}
        for cell in results.of(method, setting).values():
            values = cell.rounds.get(self.column, [])
            taken = cell.rounds.get(self.less, []) if self.less else [0.0] * len(values)
            for number, value, other in zip(cell.rounds.get("round", []), values, taken):
                if value is not None and other is not None and (number > 0 or not self.log_rounds):
                    by_round.setdefault(number, []).append(self.scale * (value - other))
        if not by_round:
            return None
        return over_seeds(method, by_round)


@dataclass(frozen=True)
class ClientCurves:
    """One panel per setting, one line per client of `method` under the first seed, for cells with `client_curves`."""

    title: str
    method: str
    scale: float = 100
    name: str = "clients"

    def table(self, results: Results) -> list[list[str]]:
        """The last value of each client."""
        rows = [["setting", "client", "last round"]]
        for setting in results.settings:
            for line in self._lines(results.of(self.method, setting)):
                rows.append([setting, line.label, f"{line.y[-1]:.2f}" if line.y else MISSING])
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure."""
        x, y = Axis("round", word="round ", form=""), Axis(self.title)
        plots = [Plot(self._lines(results.of(self.method, setting)), x, y, setting) for setting in results.settings]
        return Figure(plots, HEIGHT)

    def _lines(self, cells: Mapping[int, CellResult]) -> list[Line]:
        """One line per client of the cell under the first seed."""
        if not cells:
            return []
        cell = cells[min(cells)]
        rounds = [number for number, _ in zip(cell.rounds["round"], cell.curves)]
        lines = []
        for client in range(max(map(len, cell.curves), default=0)):
            points = [(n, row[client]) for n, row in zip(rounds, cell.curves) if client < len(row)]
            values = [(n, self.scale * value) for n, value in points if value is not None]
            lines.append(Line(label=f"client {client}", x=[n for n, _ in values], y=[value for _, value in values]))
        return lines


@dataclass(frozen=True)
class ClassScores:
    """The accuracy on each class after the last round, mean over seeds, one line per method: for cells with `class_accuracy`.

    `chosen` are the classes to show, such as those that are easily confused; empty shows all. `published` are the printed
    entries of (method, class).
    """

    title: str
    setting: str
    chosen: tuple[str, ...] = ()
    name: str = "classes"
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def table(self, results: Results) -> list[list[str]]:
        """One row per class, one column per method, and one for the published entries of a method."""
        lines, printed = self._scores(results), {method for method, _ in self.published}
        classes = list(dict.fromkeys(name for scores in lines.values() for name in scores))
        rows = [["class", *chain.from_iterable([m, f"{m}, published"] if m in printed else [m] for m in lines)]]
        for label in classes:
            row = [label]
            for method, scores in lines.items():
                row.append(f"{scores[label]:.1f}" if label in scores else MISSING)
                row += [self.published.get((method, label), MISSING)] if method in printed else []
            rows.append(row)
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure."""
        lines = self._scores(results)
        classes = list(dict.fromkeys(name for scores in lines.values() for name in scores))
        marks = [
            Points(label=method, x=range(len(classes)), y=[scores.get(c, 0.0) for c in classes], texts=classes)
            for method, scores in lines.items()
        ]
        return Figure([Plot(marks, Axis("class", named(classes)), Axis(self.title))], HEIGHT)

    def _scores(self, results: Results) -> dict[str, dict[str, float]]:
        """Method -> class -> accuracy in per cent."""
        scores: dict[str, dict[str, float]] = {}
        for method in results.methods:
            cells = list(results.of(method, self.setting).values())
            columns = [c for c in (cells[0].rounds if cells else ()) if c.startswith(CLASS_ACCURACY)]
            for column in columns:
                label = column.removeprefix(CLASS_ACCURACY)
                if not self.chosen or label in self.chosen:
                    values = [cell.score(column, 1) for cell in cells]
                    scores.setdefault(method, {})[label] = 100 * statistics.fmean(values)
        return scores


@dataclass(frozen=True)
class LabelBubbles:
    """One panel per setting: the training samples of each client (row) and class (column) under the first seed."""

    title: str
    name: str = "labels"

    def table(self, results: Results) -> list[list[str]]:
        """The samples and classes of each client."""
        rows = [["setting", "client", "training samples", "classes", "share of the largest class"]]
        for setting, counts in self._counts(results).items():
            for client, row in enumerate(counts):
                total = max(1, sum(row))
                rows.append(
                    [setting, str(client), str(sum(row)), str(sum(n > 0 for n in row)), f"{max(row) / total:.2f}"]
                )
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure. Darker is more, by the square root of the count."""
        x, y, bar = Axis("class"), Axis("client", reverse=True), "training samples"
        return Figure(
            [
                Plot([HeatMap(np.array(counts), bar, root=True, form="")], x, y, setting)
                for setting, counts in self._counts(results).items()
            ],
            HEIGHT,
        )

    def _counts(self, results: Results) -> dict[str, list[list[int]]]:
        counts: dict[str, list[list[int]]] = {}
        for cell in results.cells:
            if cell.label_counts:
                counts.setdefault(cell.setting, cell.label_counts)
        return counts


@dataclass(frozen=True)
class ParameterHistogram:
    """One panel per setting, one line per method: the share of the shared model's final parameters in each bin, mean over seeds.

    Parameters beyond the limit count in the outermost bins.
    """

    title: str
    name: str = "parameters"

    def table(self, results: Results) -> list[list[str]]:
        """The share of small parameters: those within a tenth of the limit."""
        rows = [["method", "setting", "seeds", "limit", "share within a tenth of it"]]
        for setting in results.settings:
            for method in results.methods:
                cells = [cell for cell in results.of(method, setting).values() if cell.parameters]
                if cells:
                    rows.append([method, setting, str(len(cells)), f"{_limit(cells[0]):g}", f"{_near_zero(cells):.3f}"])
        return rows

    def near_zero(self, method: str, setting: str) -> Quantity:
        """Seed -> the share of small parameters."""

        def values(results: Results) -> dict[int, float]:
            cells = results.of(method, setting).items()
            return {seed: _near_zero([cell]) for seed, cell in cells if cell.parameters}

        return values

    def figure(self, results: Results) -> Figure:
        """The figure."""
        plots = []
        for setting in results.settings:
            of_methods = {method: results.of(method, setting).values() for method in results.methods}
            shares = {m: _shares(cells) for m, cells in of_methods.items() if any(cell.parameters for cell in cells)}
            lines = [Line(label=method, x=middles, y=share) for method, (middles, share) in shares.items()]
            plots.append(Plot(lines, Axis("parameter"), Axis(self.title, log=True), setting))
        return Figure(plots, HEIGHT)


def _limit(cell: CellResult) -> float:
    return float(cell.options["histogram"]["limit"])


def _near_zero(cells: Sequence[CellResult]) -> float:
    """The share of the parameters within a tenth of the limit."""
    return sum(share for middle, share in zip(*_shares(cells)) if abs(middle) < _limit(cells[0]) / 10)


def _shares(cells: Iterable[CellResult]) -> tuple[list[float], list[float]]:
    """The middles of the bins, and the mean share of the parameters in each."""
    with_bins = [cell for cell in cells if cell.parameters]
    bins, limit = len(with_bins[0].parameters), _limit(with_bins[0])
    middles = [limit * ((2 * i + 1) / bins - 1) for i in range(bins)]
    shares = [[count / sum(cell.parameters) for count in cell.parameters] for cell in with_bins]
    return middles, [statistics.fmean(column) for column in zip(*shares)]
