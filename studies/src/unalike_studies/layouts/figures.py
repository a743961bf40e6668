"""Figures of a study: curves by round, one line per client, scores of classes, label counts, and a histogram of parameters."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from unalike.reporting.charts.figure import Axis, Figure, HeatMap, Line, Plot, Points, named
from unalike_studies.cells import CLASS_ACCURACY
from unalike_studies.claims import Quantity, by_cell
from unalike_studies.layouts.looks import HEIGHT, ROUNDS, over_seeds, panels
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
        for method, setting, cells in results.groups():
            if line := self._line(method, cells):
                best = max(range(len(line.y)), key=lambda i: sign * line.y[i])
                numbers = f"{line.x[-1]:g}", f"{line.x[best]:g}", f"{line.y[best]:.2f}"
                rows.append([method, setting, str(len(cells)), *numbers])
        return rows

    def figure(self, results: Results) -> Figure:
        def lines(setting: str) -> list[Line]:
            of_methods = (
                self._line(method, results.of(method, setting).values())
                for method in results.methods
            )
            return [line for line in of_methods if line is not None]

        return panels(results, lines, replace(ROUNDS, log=self.log_rounds), self.title)

    def _line(self, method: str, cells: Iterable[CellResult]) -> Line | None:
        by_round: dict[float, list[float]] = {}
        for cell in cells:
            values = cell.rounds.get(self.column, [])
            taken = cell.rounds.get(self.less, []) if self.less else [0.0] * len(values)
            for number, value, other in zip(cell.rounds.get("round", []), values, taken):
                if value is not None and other is not None and (number > 0 or not self.log_rounds):
                    by_round.setdefault(number, []).append(self.scale * (value - other))
        return over_seeds(method, by_round) if by_round else None


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
        return panels(
            results,
            lambda setting: self._lines(results.of(self.method, setting)),
            ROUNDS,
            self.title,
        )

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
            lines.append(
                Line(
                    label=f"client {client}",
                    x=[n for n, _ in values],
                    y=[value for _, value in values],
                )
            )
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
        rows = [
            [
                "class",
                *chain.from_iterable(
                    [m, f"{m}, published"] if m in printed else [m] for m in lines
                ),
            ]
        ]
        for label in _classes(lines):
            row = [label]
            for method, scores in lines.items():
                row.append(f"{scores[label]:.1f}" if label in scores else MISSING)
                row += [self.published.get((method, label), MISSING)] if method in printed else []
            rows.append(row)
        return rows

    def figure(self, results: Results) -> Figure:
        lines = self._scores(results)
        classes = _classes(lines)
        marks = [
            Points(
                label=method,
                x=range(len(classes)),
                y=[scores.get(c, 0.0) for c in classes],
                texts=classes,
            )
            for method, scores in lines.items()
        ]
        return Figure([Plot(marks, Axis("class", named(classes)), Axis(self.title))], HEIGHT)

    def _scores(self, results: Results) -> dict[str, dict[str, float]]:
        """Method -> class -> accuracy in per cent."""
        scores: dict[str, dict[str, float]] = {}
        for method in results.methods:
            cells = list(results.of(method, self.setting).values())
            columns = [
                c for c in (cells[0].rounds if cells else ()) if c.startswith(CLASS_ACCURACY)
            ]
            for column in columns:
                label = column.removeprefix(CLASS_ACCURACY)
                if not self.chosen or label in self.chosen:
                    values = [cell.score(column, 1) for cell in cells]
                    scores.setdefault(method, {})[label] = 100 * statistics.fmean(values)
        return scores


def _classes(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The classes that any method has."""
    return list(dict.fromkeys(name for of_method in scores.values() for name in of_method))


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
                largest = f"{max(row) / max(1, sum(row)):.2f}"
                rows.append(
                    [setting, str(client), str(sum(row)), str(sum(n > 0 for n in row)), largest]
                )
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure. Darker is more, by the square root of the count."""
        counts, y = self._counts(results), Axis("client", reverse=True)

        def bubbles(setting: str) -> list[HeatMap]:
            return [HeatMap(np.array(counts[setting]), "training samples", root=True, form="")]

        shown = Results(tuple(cell for cell in results.cells if cell.setting in counts))
        return panels(shown, bubbles, Axis("class"), y)

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
        for method, setting, cells in results.groups():
            if binned := [cell for cell in cells if cell.parameters]:
                numbers = f"{_limit(binned[0]):g}", f"{_near_zero(binned):.3f}"
                rows.append([method, setting, str(len(binned)), *numbers])
        return rows

    def near_zero(self, method: str, setting: str) -> Quantity:
        """Seed -> the share of small parameters."""
        return by_cell(
            method, setting, lambda cell: _near_zero([cell]) if cell.parameters else None
        )

    def figure(self, results: Results) -> Figure:
        def lines(setting: str) -> list[Line]:
            of_methods = {
                method: results.of(method, setting).values() for method in results.methods
            }
            shares = {
                m: _shares(cells)
                for m, cells in of_methods.items()
                if any(cell.parameters for cell in cells)
            }
            return [
                Line(label=method, x=middles, y=share)
                for method, (middles, share) in shares.items()
            ]

        return panels(results, lines, Axis("parameter"), Axis(self.title, log=True))


def _limit(cell: CellResult) -> float:
    return float(cell.options["histogram"]["limit"])


def _near_zero(cells: Sequence[CellResult]) -> float:
    """The share of the parameters within a tenth of the limit."""
    return sum(
        share for middle, share in zip(*_shares(cells)) if abs(middle) < _limit(cells[0]) / 10
    )


def _shares(cells: Iterable[CellResult]) -> tuple[list[float], list[float]]:
    """The middles of the bins, and the mean share of the parameters in each."""
    with_bins = [cell for cell in cells if cell.parameters]
    bins, limit = len(with_bins[0].parameters), _limit(with_bins[0])
    middles = [limit * ((2 * i + 1) / bins - 1) for i in range(bins)]
    shares = [[count / sum(cell.parameters) for count in cell.parameters] for cell in with_bins]
    return middles, [statistics.fmean(column) for column in zip(*shares)]
