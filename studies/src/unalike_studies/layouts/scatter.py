"""Scatter plots: recorded numbers against each other, a bound and what it bounds, data and updates of clients, maps of clients."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from sklearn.manifold import TSNE

from unalike.reporting.charts.figure import Axis, Figure, Line, Plot
from unalike.reporting.charts.figure import Points as PointMarks
from unalike_studies.claims import Quantity, by_cell
from unalike_studies.correlations import pearson, rank_correlation
from unalike_studies.layouts.looks import HEIGHT, panels
from unalike_studies.recorded_numbers import by_round
from unalike_studies.results import CellResult, Results

MOST_NEIGHBOURS = 5
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Scatter:
    """One panel per setting, the points of one method in one color, all seeds together; the table has Pearson's r of each seed."""

    title: str
    x: str = ""
    """The label of the x axis."""
    name: str = field(default="scatter", kw_only=True)

    def points(self, cell: CellResult) -> Points:
        """The points of a cell. Layouts define it."""
        raise NotImplementedError

    def correlation(self, method: str, setting: str) -> Quantity:
        """Seed -> Pearson's r of a method's points."""

        def number(cell: CellResult) -> float | None:
            r = pearson(self.points(cell))
            return r if math.isfinite(r) else None

        return by_cell(method, setting, number)

    def table(self, results: Results) -> list[list[str]]:
        """The number of points and Pearson's r, seed by seed."""
        rows = [["method", "setting", "seed", "points", "Pearson's r"]]
        for method, setting, cell in self._cells(results):
            points = self.points(cell)
            r = pearson(points)
            rows.append(
                [
                    method,
                    setting,
                    str(cell.seed),
                    str(len(points)),
                    f"{r:.2f}" if math.isfinite(r) else "-",
                ]
            )
        return rows

    def figure(self, results: Results) -> Figure:
        def marks(setting: str) -> list[PointMarks | Line]:
            by_method: dict[str, Points] = {}
            for method, where, cell in self._cells(results):
                if where == setting:
                    by_method.setdefault(method, []).extend(self.points(cell))
            points = [
                PointMarks(label=method, x=[x for x, _ in of], y=[y for _, y in of], size=7)
                for method, of in by_method.items()
            ]
            return [*points, *self.lines(points)]

        return panels(results, marks, Axis(self.x), self.title)

    def lines(self, marks: Sequence[PointMarks]) -> list[Line]:
        """Lines to draw besides the points; none unless a layout defines them."""
        return []

    def _cells(self, results: Results) -> Iterator[tuple[str, str, CellResult]]:
        for method, setting, cells in results.groups():
            for cell in cells:
                if self.points(cell):
                    yield method, setting, cell


@dataclass(frozen=True)
class RecordedScatter(Scatter):
    """Two recorded numbers of the whole model, `x` and `y`, one point per round, for cells with `record`."""

    y: str = ""

    def points(self, cell: CellResult) -> Points:
        x, y = (_means(cell, quantity) for quantity in (self.x, self.y))
        return [(x[number], y[number]) for number in sorted(x) if number in y]


@dataclass(frozen=True)
class ScoreAgainstBytes(Scatter):
    """Bytes that a client sends in a round against the accuracy of the last evaluated rounds, one point per seed."""

    last: int = 1
    name: str = "score-against-bytes"

    def points(self, cell: CellResult) -> Points:
        up, clients = (cell.rounds.get(name, []) for name in ("bytes_up", "participants"))
        return (
            [(up[-1] / clients[-1] / 1000, 100 * cell.score("accuracy", self.last))] if up else []
        )

    def table(self, results: Results) -> list[list[str]]:
        """Bytes and accuracy of each method, the means over seeds."""
        rows = [["method", "setting", self.x, self.title]]
        for method, setting, cells in results.groups():
            if points := [point for cell in cells for point in self.points(cell)]:
                x, y = map(statistics.fmean, zip(*points))
                rows.append([method, setting, f"{x:.2f}", f"{y:.1f}"])
        return rows


@dataclass(frozen=True)
class GapAgainstBound(Scatter):
    """|test loss - training loss| against sqrt(2 tau / K) of K clients, one point per evaluated round, and the diagonal.

    For cells that record tau. The training loss is the mean loss while clients train, weighted by their samples. Layers record
    their own tau; that of the model lies between the root of the sum of their squares and their sum. The sum is taken, so that
    the bound is not too small.

    Source: FedLWS, theorem D.2.
    """

    x: str = "sqrt(2 tau / K)"
    name: str = "gap-against-bound"

    def points(self, cell: CellResult) -> Points:
        tau = by_round(cell.recorded, "tau").values()
        rows = zip(
            *(cell.rounds.get(name, []) for name in ("round", "participants", "loss", "train_loss"))
        )
        return [
            (
                math.sqrt(2 * sum(by_number[number] for by_number in tau) / clients),
                abs(loss - train_loss),
            )
            for number, clients, loss, train_loss in rows
            if tau
            and None not in (loss, train_loss)
            and all(number in by_number for by_number in tau)
        ]

    def slack(self, method: str, setting: str) -> Quantity:
        """Seed -> the mean over rounds of the bound less the gap: the theorem bounds the expected gap."""

        def number(cell: CellResult) -> float | None:
            points = self.points(cell)
            return statistics.fmean(x - y for x, y in points) if points else None

        return by_cell(method, setting, number)

    def table(self, results: Results) -> list[list[str]]:
        """Means, the share of rounds above the bound, the least C with gap <= C bound, and the rank correlation, by seed."""
        rows = [
            [
                "method",
                "setting",
                "seed",
                "rounds",
                "gap",
                "bound",
                "rounds above it, %",
                "least C",
                "rank correlation",
            ]
        ]
        for method, setting, cell in self._cells(results):
            points = self.points(cell)
            bound, gap = (statistics.fmean(values) for values in zip(*points))
            above = 100 * statistics.fmean(y > x for x, y in points)
            numbers = (
                f"{gap:.2f}",
                f"{bound:.2f}",
                f"{above:.0f}",
                f"{max(y / x for x, y in points):.2f}",
            )
            r = rank_correlation(points)
            rows.append([method, setting, str(cell.seed), str(len(points)), *numbers, f"{r:.2f}"])
        return rows

    def lines(self, marks: Sequence[PointMarks]) -> list[Line]:
        """The diagonal."""
        most = max(max(*mark.x, *mark.y) for mark in marks) if marks else 1.0
        return [Line(label="gap = bound", x=[0, most], y=[0, most], markers=False)]


@dataclass(frozen=True)
class DataAgainstUpdates(Scatter):
    """Every two clients: total variation of their label distributions, and 1 - cosine of their updates, the mean over rounds.

    For cells with `record="updates"` and label counts.
    """

    x: str = "total variation of labels"
    name: str = "updates-against-data"

    def points(self, cell: CellResult) -> Points:
        cosines, distances = _cosines(cell), self.distances(cell)
        return [
            (distances[i][j], 1 - statistics.fmean(cosines[i, j]))
            for i, j in combinations(range(len(distances)), 2)
            if (i, j) in cosines
        ]

    def mean_between(self, low: float, high: float, method: str, setting: str) -> Quantity:
        """Seed -> the mean distance of the updates of clients whose data differ by `low` to `high`."""

        def number(cell: CellResult) -> float | None:
            chosen = [y for x, y in self.points(cell) if low <= x <= high]
            return statistics.fmean(chosen) if chosen else None

        return by_cell(method, setting, number)

    def distances(self, cell: CellResult) -> list[list[float]]:
        """The distance of every two clients' data."""
        shares = [[count / max(1, sum(row)) for count in row] for row in cell.label_counts]
        return [[sum(abs(p - q) for p, q in zip(a, b)) / 2 for b in shares] for a in shares]


@dataclass(frozen=True)
class TransportAgainstUpdates(DataAgainstUpdates):
    """The same with the cost of optimal transport between samples, for cells with `transport`."""

    x: str = "optimal transport of samples"
    name: str = "updates-against-transport"

    def distances(self, cell: CellResult) -> list[list[float]]:
        return cell.transport


@dataclass(frozen=True)
class ClientMap:
    """One point per client, for cells of `method` with `record="updates"`, first seed.

    There is a panel for the first, the middle and the last recorded round of each setting. The distance of two clients is that of
    their updates, from the recorded norms and cosines. Points have the color of the client's most frequent class.
    """

    title: str
    method: str
    name: str = "clients-map"

    def table(self, results: Results) -> list[list[str]]:
        """Whether clients of the same most frequent class lie together: mean distances, relative to the mean update norm."""
        rows = [["setting", "round", "distance within a class", "distance between classes"]]
        for setting, cell in self._cells(results).items():
            kinds = _kinds(cell)
            for number, apart in self._distances(cell).items():
                alike = np.equal.outer(kinds, kinds) & ~np.eye(len(kinds), dtype=bool)
                other = np.not_equal.outer(kinds, kinds)
                means = [
                    f"{apart[where].mean():.3f}" if where.any() else "-" for where in (alike, other)
                ]
                rows.append([setting, str(number), *means])
        return rows

    def figure(self, results: Results) -> Figure:
        plots = []
        for setting, cell in self._cells(results).items():
            kinds = _kinds(cell)
            for number, apart in self._distances(cell).items():
                places = _embedded(apart)
                of_kinds = {
                    kind: places[kinds == kind].T.tolist() for kind in sorted(set(kinds.tolist()))
                }
                marks = [
                    PointMarks(label=f"class {kind}", x=x, y=y, size=7)
                    for kind, (x, y) in of_kinds.items()
                ]
                plots.append(Plot(marks, Axis(), Axis(self.title), f"{setting}, round {number}"))
        return Figure(plots, HEIGHT)

    def _cells(self, results: Results) -> dict[str, CellResult]:
        """Setting -> the cell of the method under the first seed."""
        seeds = {setting: results.of(self.method, setting) for setting in results.settings}
        return {
            setting: cells[min(cells)]
            for setting, cells in seeds.items()
            if cells and cells[min(cells)].recorded
        }

    def _distances(self, cell: CellResult) -> dict[int, np.ndarray]:
        """Round -> distances of the clients' updates [K, K] over their mean norm."""
        clients = len(cell.label_counts)
        distances, rounds = {}, cell.recorded["rounds"]
        for place in sorted({0, len(rounds) // 2, len(rounds) - 1}):
            norms, cosines = np.full(clients, np.nan), np.eye(clients)
            for series in cell.recorded["series"]:
                client, other, value = (
                    series.get("client", -1),
                    series.get("other"),
                    series["values"][place],
                )
                if client < 0 or value is None:
                    continue
                if series["quantity"] == "update_norm" and "layer" not in series:
                    norms[client] = value
                if series["quantity"] == "cosine":
                    cosines[client, other] = cosines[other, client] = value
            if np.isfinite(norms).all():
                squares = norms[:, None] ** 2 + norms**2 - 2 * np.outer(norms, norms) * cosines
                distances[rounds[place]] = np.sqrt(squares.clip(0)) / norms.mean()
        return distances


def _means(cell: CellResult, quantity: str) -> dict[int, float]:
    """Round -> the mean of a recorded number."""
    by_number: dict[int, list[float]] = {}
    for values in by_round(cell.recorded, quantity).values():
        for number, value in values.items():
            by_number.setdefault(number, []).append(value)
    return {number: statistics.fmean(values) for number, values in by_number.items()}


def _cosines(cell: CellResult) -> dict[tuple[int, int], list[float]]:
    """Pair of clients -> the cosines of their updates in the rounds that are kept."""
    by_pair = {}
    for series in cell.recorded.get("series", []):
        values = [value for value in series["values"] if value is not None and math.isfinite(value)]
        if series["quantity"] == "cosine" and "other" in series and values:
            i, j = sorted((int(series["client"]), int(series["other"])))
            by_pair[i, j] = values
    return by_pair


def _kinds(cell: CellResult) -> np.ndarray:
    """The most frequent class of each client."""
    return np.array(cell.label_counts).argmax(1)


def _embedded(apart: np.ndarray) -> np.ndarray:
    """Points [K, 2] by t-SNE; the seed is fixed."""
    perplexity = min(MOST_NEIGHBOURS, len(apart) - 1)
    return TSNE(
        metric="precomputed", init="random", perplexity=perplexity, random_state=0
    ).fit_transform(apart)
