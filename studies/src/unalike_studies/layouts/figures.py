"""Figures of a study: curves by round, one line per client, scores of classes, label counts, and a histogram of parameters."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
            line = self._line(method, cells)
            if line is None:
                continue
            signed = [sign * value for value in line.y]
            best = signed.index(max(signed))
            numbers = [f"{line.x[-1]:g}", f"{line.x[best]:g}", f"{line.y[best]:.2f}"]
            rows.append([method, setting, str(len(cells)), *numbers])
        return rows

    def figure(self, results: Results) -> Figure:
        def lines(setting: str) -> list[Line]:
            of_methods = []
            for method in results.methods:
                line = self._line(method, results.of(method, setting).values())
                if line is not None:
                    of_methods.append(line)
            return of_methods

        return panels(results, lines, replace(ROUNDS, log=self.log_rounds), self.title)

    def _line(self, method: str, cells: Iterable[CellResult]) -> Line | None:
        by_round: dict[float, list[float]] = {}
        for cell in cells:
            values = cell.rounds.get(self.column, [])
            subtracted = cell.rounds.get(self.less, []) if self.less else [0.0] * len(values)
            for number, value, other in zip(cell.rounds.get("round", []), values, subtracted):
                is_known = value is not None and other is not None
                # A logarithmic axis has no place for round 0.
                if is_known and (number > 0 or not self.log_rounds):
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
        def lines(setting: str) -> list[Line]:
            return self._lines(results.of(self.method, setting))

        return panels(results, lines, ROUNDS, self.title)

    def _lines(self, cells: Mapping[int, CellResult]) -> list[Line]:
        """One line per client of the cell under the first seed."""
        if not cells:
            return []
        cell = cells[min(cells)]
        clients = max((len(row) for row in cell.curves), default=0)
        lines = []
        for client in range(clients):
            x, y = [], []
            # A round without the values of this client, or of any, leaves a gap in its line.
            for number, row in zip(cell.rounds["round"], cell.curves):
                value = row[client] if client < len(row) else None
                if value is not None:
                    x.append(number)
                    y.append(self.scale * value)
            lines.append(Line(label=f"client {client}", x=x, y=y))
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
        scores_of = self._scores(results)
        printed = {method for method, _ in self.published}
        head = ["class"]
        for method in scores_of:
            head.append(method)
            if method in printed:
                head.append(f"{method}, published")
        rows = [head]
        for label in _classes(scores_of):
            row = [label]
            for method, scores in scores_of.items():
                row.append(f"{scores[label]:.1f}" if label in scores else MISSING)
                if method in printed:
                    row.append(self.published.get((method, label), MISSING))
            rows.append(row)
        return rows

    def figure(self, results: Results) -> Figure:
        scores_of = self._scores(results)
        classes = _classes(scores_of)
        marks = []
        for method, scores in scores_of.items():
            y = [scores.get(label, 0.0) for label in classes]
            marks.append(Points(label=method, x=range(len(classes)), y=y, texts=classes))
        return Figure([Plot(marks, Axis("class", named(classes)), Axis(self.title))], HEIGHT)

    def _scores(self, results: Results) -> dict[str, dict[str, float]]:
        """Method -> class -> accuracy in per cent."""
        scores: dict[str, dict[str, float]] = {}
        for method in results.methods:
            cells = list(results.of(method, self.setting).values())
            if not cells:
                continue
            for column in cells[0].rounds:
                if not column.startswith(CLASS_ACCURACY):
                    continue
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
                samples = sum(row)
                classes = sum(count > 0 for count in row)
                largest_share = f"{max(row) / max(1, samples):.2f}"
                rows.append([setting, str(client), str(samples), str(classes), largest_share])
        return rows

    def figure(self, results: Results) -> Figure:
        """The figure. Darker is more, by the square root of the count."""
        counts = self._counts(results)

        def bubbles(setting: str) -> list[HeatMap]:
            return [HeatMap(np.array(counts[setting]), "training samples", root=True, form="")]

        shown = Results(tuple(cell for cell in results.cells if cell.setting in counts))
        return panels(shown, bubbles, Axis("class"), Axis("client", reverse=True))

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
            binned = [cell for cell in cells if cell.parameters]
            if binned:
                limit = f"{_limit(binned[0]):g}"
                share = f"{_near_zero(binned):.3f}"
                rows.append([method, setting, str(len(binned)), limit, share])
        return rows

    def near_zero(self, method: str, setting: str) -> Quantity:
        """Seed -> the share of small parameters."""

        def share(cell: CellResult) -> float | None:
            return _near_zero([cell]) if cell.parameters else None

        return by_cell(method, setting, share)

    def figure(self, results: Results) -> Figure:
        def lines(setting: str) -> list[Line]:
            of_methods = []
            for method in results.methods:
                cells = results.of(method, setting).values()
                if any(cell.parameters for cell in cells):
                    middles, shares = _shares(cells)
                    of_methods.append(Line(label=method, x=middles, y=shares))
            return of_methods

        return panels(results, lines, Axis("parameter"), Axis(self.title, log=True))


def _limit(cell: CellResult) -> float:
    return float(cell.options["histogram"]["limit"])


def _near_zero(cells: Sequence[CellResult]) -> float:
    """The share of the parameters within a tenth of the limit."""
    middles, shares = _shares(cells)
    small = _limit(cells[0]) / 10
    return sum(share for middle, share in zip(middles, shares) if abs(middle) < small)


def _shares(cells: Iterable[CellResult]) -> tuple[list[float], list[float]]:
    """The middles of the bins, and the mean share of the parameters in each."""
    binned = [cell for cell in cells if cell.parameters]
    bins = len(binned[0].parameters)
    limit = _limit(binned[0])
    middles = [limit * ((2 * i + 1) / bins - 1) for i in range(bins)]

    shares_of_cells = []
    for cell in binned:
        total = sum(cell.parameters)
        shares_of_cells.append([count / total for count in cell.parameters])
    mean_shares = [statistics.fmean(of_bin) for of_bin in zip(*shares_of_cells)]
    return middles, mean_shares
