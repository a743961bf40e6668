"""Tables of methods and settings: scores with the published numbers beside ours, differences between clients, costs."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from unalike_studies.claims import Quantity, by_cell, peak, score
from unalike_studies.results import CellResult, Results

MISSING = "-"
PARAMETER_BYTES = 4
"""Bytes of a float32 parameter."""


@dataclass(frozen=True)
class MethodTable:
    """One row per method that has the column, one column per setting; `published` holds the paper's entries as printed.

    With `best`, the entries are the largest values over the rounds, chosen by the test samples, as some authors report.
    """

    title: str
    column: str = "accuracy"
    last: int = 10
    scale: float = 100
    digits: int = 2
    best: bool = False
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def table(self, results: Results) -> list[list[str]]:
        """The rows of the table as text, its heading first. Published numbers stand in columns of their own."""
        printed = {setting for _, setting in self.published}
        head = ["method"]
        for setting in results.settings:
            head.append(setting)
            if setting in printed:
                head.append(f"{setting}, published")
        rows = [head]
        for method in results.methods:
            scores = {}
            for setting in results.settings:
                scores[setting] = self._quantity(method, setting)(results)
            if not any(scores.values()):
                continue
            row = [method]
            for setting, values in scores.items():
                row.append(self.entry(list(values.values())))
                if setting in printed:
                    row.append(self.published.get((method, setting), MISSING))
            rows.append(row)
        return rows

    def _quantity(self, method: str, setting: str) -> Quantity:
        if self.best:
            return peak(method, setting, self.column)
        return score(method, setting, self.column, self.last)

    def entry(self, values: Sequence[float]) -> str:
        """`mean ± standard deviation (seeds)` of the values; `diverges` if one of them is infinite."""
        if not values:
            return MISSING
        shown = [self.scale * value for value in values]
        if any(math.isinf(value) for value in shown):
            return "diverges"
        mean = f"{statistics.fmean(shown):.{self.digits}f}"
        if len(shown) == 1:
            return mean
        deviation = f"{statistics.stdev(shown):.{self.digits}f}"
        return f"{mean} ± {deviation} ({len(shown)})"


@dataclass(frozen=True)
class ClientSpread:
    """One row per method; for each setting the deviation over clients and the worst client, means over seeds.

    A client's score is its mean over the last 10 evaluated rounds. Clients without test samples do not count.
    """

    title: str
    column: str = "accuracy"
    scale: float = 100

    def table(self, results: Results) -> list[list[str]]:
        head = ["method"]
        for setting in results.settings:
            head += [f"{setting}, deviation", f"{setting}, worst"]
        rows = [head]
        for method in results.methods:
            row = [method]
            for setting in results.settings:
                scores = [self._scores(cell) for cell in results.of(method, setting).values()]
                of_seeds = [of_clients for of_clients in scores if len(of_clients) > 1]
                deviations = [statistics.pstdev(of_clients) for of_clients in of_seeds]
                worst = [min(of_clients) for of_clients in of_seeds]
                row += [shown_mean(deviations, ".2f"), shown_mean(worst, ".2f")]
            rows.append(row)
        return rows

    def _scores(self, cell: CellResult) -> list[float]:
        values = cell.clients.get(self.column, [])
        return [self.scale * value for value in values if value is not None]


@dataclass(frozen=True)
class ClientTable:
    """One row per method, one column per client: means and deviations over seeds, in the last evaluated round.

    `published` has a method's published numbers, one a client, which stand in a row of their own.
    """

    title: str
    clients: tuple[str, ...]
    column: str = "accuracy"
    scale: float = 100
    published: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def table(self, results: Results) -> list[list[str]]:
        rows = [["method", *self.clients]]
        entry = MethodTable(self.title, scale=self.scale).entry
        for method in results.methods:
            by_client = [self._by_client(cell) for cell in results.cells if cell.method == method]
            values = []
            for client in self.clients:
                scores = [of_seed.get(client) for of_seed in by_client]
                values.append([score for score in scores if score is not None])
            if not any(values):
                continue
            rows.append([method, *(entry(of_client) for of_client in values)])
            if method in self.published:
                numbers = [f"{number:.2f}" for number in self.published[method]]
                rows.append([f"{method}, published", *numbers])
        return rows

    def _by_client(self, cell: CellResult) -> dict[str, float | None]:
        clients = cell.clients.get("client", [])
        return dict(zip(clients, cell.clients.get(self.column, [])))


@dataclass(frozen=True)
class Costs:
    """One row per method and setting, means over seeds.

    Columns: seconds of a round; the first evaluated round whose score is within `margin` of the mean of the `last` ones; the
    seconds of training until then; thousands of parameters sent to and by a client in a round. Of a plan with several stages,
    only rounds of the last one can have converged. A method whose final mean is not `learned` above the score before training
    has learned nothing, and has no convergence.
    """

    title: str
    column: str = "accuracy"
    last: int = 10
    margin: float = 0.005
    learned: float = 0.02

    def table(self, results: Results) -> list[list[str]]:
        head = [
            "method",
            "setting",
            "seconds a round",
            "rounds to convergence",
            "seconds to convergence",
            "thousand parameters down",
            "up",
        ]
        rows = [head]
        for method, setting, cells in results.groups():
            rows.append([method, setting, *self._row(cells)])
        return rows

    def seconds_a_round(self, method: str, setting: str) -> Quantity:
        """The mean seconds of the evaluated rounds."""
        return by_cell(method, setting, _a_round)

    def rounds_to_convergence(self, method: str, setting: str) -> Quantity:
        """The first evaluated round whose score is within `margin` of the final one."""

        def number(cell: CellResult) -> float | None:
            point = self._converged(cell)
            return None if point is None else float(point[0])

        return by_cell(method, setting, number)

    def _row(self, cells: list[CellResult]) -> list[str]:
        paces = [_a_round(cell) for cell in cells]
        points = [self._converged(cell) for cell in cells]
        converged = [point for point in points if point is not None]
        return [
            shown_mean(pace for pace in paces if pace is not None),
            shown_mean(number for number, _ in converged),
            shown_mean(seconds for _, seconds in converged),
            _thousand_parameters(cells, "bytes_down"),
            _thousand_parameters(cells, "bytes_up"),
        ]

    def _converged(self, cell: CellResult) -> tuple[int, float] | None:
        """The first round whose score is as good as in the end, and the seconds of training until then."""
        rounds = cell.rounds.get("round", [])
        values = cell.rounds.get(self.column, [])
        stages = cell.rounds.get("stage", [1] * len(rounds))
        final = cell.score(self.column, self.last)
        pace = _a_round(cell)
        if pace is None or not math.isfinite(final):
            return None

        # Round 0 is the model before training.
        start = values[0] if values and rounds[0] == 0 else None
        if start is not None and final < start + self.learned:
            return None
        for number, value, stage in zip(rounds, values, stages):
            is_trained = number > 0 and stage == stages[-1]
            if is_trained and value is not None and value >= final - self.margin:
                return number, number * pace
        return None


def _a_round(cell: CellResult) -> float | None:
    """The mean seconds of the evaluated rounds; the first one warms up and does not count, unless it is the only one."""
    seconds = cell.column("seconds")
    if not seconds:
        return None
    return statistics.fmean(seconds[1:] or seconds)


def _thousand_parameters(cells: Iterable[CellResult], way: str) -> str:
    """The thousands of parameters that go to or from a client in a round; `way` is the column of their bytes."""
    thousands = []
    for cell in cells:
        columns = zip(cell.rounds.get(way, []), cell.rounds.get("participants", []))
        for total, participants in columns:
            if total is not None and participants:
                thousands.append(total / PARAMETER_BYTES / participants / 1000)
    return shown_mean(thousands)


def shown(value: float | None, form: str = ".4g") -> str:
    """A number as text; `MISSING` for one that is not known."""
    if value is None or math.isnan(value):
        return MISSING
    return format(value, form)


def shown_mean(values: Iterable[float], form: str = ".4g") -> str:
    """The mean of values as text."""
    numbers = list(values)
    return shown(statistics.fmean(numbers) if numbers else None, form)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of rows, of which the first is the heading."""
    head, *body = rows
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line(row) for row in body]
    return "\n".join(lines)


def _line(cells: Iterable[object]) -> str:
    texts = ["" if cell is None else str(cell).replace("|", "\\|") for cell in cells]
    joined = " | ".join(texts)
    return f"| {joined} |"
