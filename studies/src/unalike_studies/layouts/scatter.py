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
from unalike_studies.layouts.looks import HEIGHT, POINT_SIZE, panels
from unalike_studies.recorded_numbers import by_round
from unalike_studies.results import CellResult, Results

MOST_NEIGHBOURS = 5
"""The largest perplexity of a map of clients."""
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
            shown = f"{r:.2f}" if math.isfinite(r) else "-"
            rows.append([method, setting, str(cell.seed), str(len(points)), shown])
        return rows

    def figure(self, results: Results) -> Figure:
        def marks(setting: str) -> list[PointMarks | Line]:
            by_method: dict[str, Points] = {}
            for method, where, cell in self._cells(results):
                if where == setting:
                    by_method.setdefault(method, []).extend(self.points(cell))
            point_marks = []
            for method, points in by_method.items():
                x, y = zip(*points)
                point_marks.append(PointMarks(label=method, x=list(x), y=list(y), size=POINT_SIZE))
            return [*point_marks, *self.lines(point_marks)]

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
        x = _means(cell, self.x)
        y = _means(cell, self.y)
        return [(x[number], y[number]) for number in sorted(x) if number in y]


@dataclass(frozen=True)
class ScoreAgainstBytes(Scatter):
    """Bytes that a client sends in a round against the accuracy of the last evaluated rounds, one point per seed."""

    last: int = 1
    name: str = "score-against-bytes"

    def points(self, cell: CellResult) -> Points:
        bytes_up = cell.rounds.get("bytes_up", [])
        clients = cell.rounds.get("participants", [])
        if not bytes_up:
            return []
        kilobytes = bytes_up[-1] / clients[-1] / 1000
        return [(kilobytes, 100 * cell.score("accuracy", self.last))]

    def table(self, results: Results) -> list[list[str]]:
        """Bytes and accuracy of each method, the means over seeds."""
        rows = [["method", "setting", self.x, self.title]]
        for method, setting, cells in results.groups():
            points = [point for cell in cells for point in self.points(cell)]
            if points:
                x = statistics.fmean(kilobytes for kilobytes, _ in points)
                y = statistics.fmean(accuracy for _, accuracy in points)
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
        if not tau:
            return []
        columns = [
            cell.rounds.get(name, []) for name in ("round", "participants", "loss", "train_loss")
        ]
        points = []
        for number, clients, loss, train_loss in zip(*columns):
            has_losses = loss is not None and train_loss is not None
            if has_losses and all(number in by_number for by_number in tau):
                tau_of_model = sum(by_number[number] for by_number in tau)
                bound = math.sqrt(2 * tau_of_model / clients)
                points.append((bound, abs(loss - train_loss)))
        return points

    def slack(self, method: str, setting: str) -> Quantity:
        """Seed -> the mean over rounds of the bound less the gap: the theorem bounds the expected gap."""

        def number(cell: CellResult) -> float | None:
            points = self.points(cell)
            return statistics.fmean(x - y for x, y in points) if points else None

        return by_cell(method, setting, number)

    def ratio(self, method: str, setting: str) -> Quantity:
        """Seed -> the mean gap over the mean bound: the constant that the theorem would need on average."""

        def number(cell: CellResult) -> float | None:
            points = self.points(cell)
            if not points:
                return None
            return statistics.fmean(y for _, y in points) / statistics.fmean(x for x, _ in points)

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
            bound = statistics.fmean(x for x, _ in points)
            gap = statistics.fmean(y for _, y in points)
            above = 100 * statistics.fmean(y > x for x, y in points)
            least_c = max(y / x for x, y in points)
            rows.append(
                [
                    method,
                    setting,
                    str(cell.seed),
                    str(len(points)),
                    f"{gap:.2f}",
                    f"{bound:.2f}",
                    f"{above:.0f}",
                    f"{least_c:.2f}",
                    f"{rank_correlation(points):.2f}",
                ]
            )
        return rows

    def lines(self, marks: Sequence[PointMarks]) -> list[Line]:
        """The diagonal."""
        most = 1.0
        if marks:
            most = max(max(*mark.x, *mark.y) for mark in marks)
        return [Line(label="gap = bound", x=[0, most], y=[0, most], markers=False)]


@dataclass(frozen=True)
class DataAgainstUpdates(Scatter):
    """Every two clients: total variation of their label distributions, and 1 - cosine of their updates, the mean over rounds.

    For cells with `record="updates"` and label counts.
    """

    x: str = "total variation of labels"
    name: str = "updates-against-data"

    def points(self, cell: CellResult) -> Points:
        cosines = _cosines(cell)
        distances = self.distances(cell)
        points = []
        for i, j in combinations(range(len(distances)), 2):
            if (i, j) in cosines:
                mean_cosine = statistics.fmean(cosines[i, j])
                points.append((distances[i][j], 1 - mean_cosine))
        return points

    def mean_between(self, low: float, high: float, method: str, setting: str) -> Quantity:
        """Seed -> the mean distance of the updates of clients whose data differ by `low` to `high`."""

        def number(cell: CellResult) -> float | None:
            chosen = [y for x, y in self.points(cell) if low <= x <= high]
            return statistics.fmean(chosen) if chosen else None

        return by_cell(method, setting, number)

    def distances(self, cell: CellResult) -> list[list[float]]:
        """The distance of every two clients' data."""
        shares = []
        for counts in cell.label_counts:
            total = max(1, sum(counts))
            shares.append([count / total for count in counts])
        distances = []
        for of_client in shares:
            distances.append([_total_variation(of_client, of_other) for of_other in shares])
        return distances


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
            classes = _largest_classes(cell)
            # Of the pairs of a client with itself none counts.
            within = np.equal.outer(classes, classes) & ~np.eye(len(classes), dtype=bool)
            between = np.not_equal.outer(classes, classes)
            for number, distances in self._distances(cell).items():
                row = [setting, str(number)]
                for pairs in (within, between):
                    row.append(f"{distances[pairs].mean():.3f}" if pairs.any() else "-")
                rows.append(row)
        return rows

    def figure(self, results: Results) -> Figure:
        plots = []
        for setting, cell in self._cells(results).items():
            classes = _largest_classes(cell)
            for number, distances in self._distances(cell).items():
                places = _embed(distances)
                marks = []
                for label in sorted(set(classes.tolist())):
                    x, y = places[classes == label].T.tolist()
                    marks.append(PointMarks(label=f"class {label}", x=x, y=y, size=POINT_SIZE))
                plots.append(Plot(marks, Axis(), Axis(self.title), f"{setting}, round {number}"))
        return Figure(plots, HEIGHT)

    def _cells(self, results: Results) -> dict[str, CellResult]:
        """Setting -> the cell of the method under the first seed."""
        first_cells = {}
        for setting in results.settings:
            cells = results.of(self.method, setting)
            if cells and cells[min(cells)].recorded:
                first_cells[setting] = cells[min(cells)]
        return first_cells

    def _distances(self, cell: CellResult) -> dict[int, np.ndarray]:
        """Round -> distances of the clients' updates [K, K] over their mean norm."""
        clients = len(cell.label_counts)
        rounds = cell.recorded["rounds"]
        distances = {}
        for place in sorted({0, len(rounds) // 2, len(rounds) - 1}):
            norms = np.full(clients, np.nan)
            cosines = np.eye(clients)
            for series in cell.recorded["series"]:
                client = series.get("client", -1)
                other = series.get("other")
                value = series["values"][place]
                if client < 0 or value is None:
                    continue
                if series["quantity"] == "update_norm" and "layer" not in series:
                    norms[client] = value
                if series["quantity"] == "cosine":
                    cosines[client, other] = cosines[other, client] = value

            # |a - b|^2 = |a|^2 + |b|^2 - 2 |a| |b| cos(a, b), which rounding may make negative.
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
        if series["quantity"] != "cosine" or "other" not in series:
            continue
        values = [value for value in series["values"] if value is not None and math.isfinite(value)]
        if values:
            i, j = sorted((int(series["client"]), int(series["other"])))
            by_pair[i, j] = values
    return by_pair


def _total_variation(shares: Sequence[float], others: Sequence[float]) -> float:
    return sum(abs(p - q) for p, q in zip(shares, others)) / 2


def _largest_classes(cell: CellResult) -> np.ndarray:
    """The most frequent class of each client."""
    return np.array(cell.label_counts).argmax(1)


def _embed(distances: np.ndarray) -> np.ndarray:
    """Points [K, 2] by t-SNE; the seed is fixed."""
    perplexity = min(MOST_NEIGHBOURS, len(distances) - 1)
    embedding = TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=0)
    return embedding.fit_transform(distances)
