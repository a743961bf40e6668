"""Tables of methods and settings: scores with the published numbers beside ours, differences between clients, costs."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from unalike_studies.claims import Quantity, by_cell, peak, score
from unalike_studies.results import CellResult, Results

MISSING = "-"
BYTES = 4
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
            head += [setting, *([f"{setting}, published"] if setting in printed else [])]
        rows = [head]
        for method in results.methods:
            scores = {s: self._quantity(method, s)(results) for s in results.settings}
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
        return (
            peak(method, setting, self.column)
            if self.best
            else score(method, setting, self.column, self.last)
        )

    def entry(self, values: Sequence[float]) -> str:
        """`mean ± standard deviation (seeds)` of the values; `diverges` if one of them is infinite."""
        if not values:
            return MISSING
        shown = [self.scale * value for value in values]
        if any(math.isinf(value) for value in shown):
            return "diverges"
        mean = f"{statistics.fmean(shown):.{self.digits}f}"
        return (
            mean
            if len(shown) == 1
            else f"{mean} ± {statistics.stdev(shown):.{self.digits}f} ({len(shown)})"
        )


@dataclass(frozen=True)
class ClientSpread:
    """One row per method; for each setting the deviation over clients and the worst client, means over seeds.

    A client's score is its mean over the last 10 evaluated rounds. Clients without test samples do not count.
    """

    title: str
    column: str = "accuracy"
    scale: float = 100

    def table(self, results: Results) -> list[list[str]]:
        rows = [
            [
                "method",
                *(
                    f"{setting}, {what}"
                    for setting in results.settings
                    for what in ("deviation", "worst")
                ),
            ]
        ]
        for method in results.methods:
            row = [method]
            for setting in results.settings:
                scores = [self._scores(cell) for cell in results.of(method, setting).values()]
                of_seeds = [of_clients for of_clients in scores if len(of_clients) > 1]
                row += [
                    shown_mean(map(statistics.pstdev, of_seeds), ".2f"),
                    shown_mean(map(min, of_seeds), ".2f"),
                ]
            rows.append(row)
        return rows

    def _scores(self, cell: CellResult) -> list[float]:
        return [
            self.scale * value for value in cell.clients.get(self.column, []) if value is not None
        ]


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
            cells = [cell for cell in results.cells if cell.method == method]
            of = [
                dict(zip(cell.clients.get("client", []), cell.clients.get(self.column, [])))
                for cell in cells
            ]
            values = [
                [score[client] for score in of if score.get(client) is not None]
                for client in self.clients
            ]
            if any(values):
                rows.append([method, *map(entry, values)])
                if method in self.published:
                    rows.append(
                        [
                            f"{method}, published",
                            *(f"{number:.2f}" for number in self.published[method]),
                        ]
                    )
        return rows


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
        ]
        rows = [[*head, "thousand parameters down", "up"]]
        return [
            *rows,
            *([method, setting, *self._row(cells)] for method, setting, cells in results.groups()),
        ]

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
        converged = [point for cell in cells if (point := self._converged(cell)) is not None]
        return [
            shown_mean(seconds for cell in cells if (seconds := _a_round(cell)) is not None),
            shown_mean(number for number, _ in converged),
            shown_mean(seconds for _, seconds in converged),
            *(
                shown_mean(sent / 1000 for cell in cells for sent in _sent(cell, way))
                for way in ("bytes_down", "bytes_up")
            ),
        ]

    def _converged(self, cell: CellResult) -> tuple[int, float] | None:
        """The first round whose score is as good as in the end, and the seconds of training until then."""
        final, pace, rounds = (
            cell.score(self.column, self.last),
            _a_round(cell),
            cell.rounds.get("round", []),
        )
        values, stages = (
            cell.rounds.get(self.column, []),
            cell.rounds.get("stage", [1] * len(rounds)),
        )
        start = values[0] if values and rounds[0] == 0 else None
        if (
            pace is None
            or not math.isfinite(final)
            or (start is not None and final < start + self.learned)
        ):
            return None
        reached = [
            n
            for n, value, stage in zip(rounds, values, stages)
            if n and value is not None and value >= final - self.margin and stage == stages[-1]
        ]
        return (reached[0], reached[0] * pace) if reached else None


def _a_round(cell: CellResult) -> float | None:
    """The mean seconds of the evaluated rounds; the first one warms up and does not count, unless it is the only one."""
    seconds = [
        s
        for n, s in zip(cell.rounds.get("round", []), cell.rounds.get("seconds", []))
        if n and s is not None
    ]
    return statistics.fmean(seconds[1:] or seconds) if seconds else None


def _sent(cell: CellResult, way: str) -> list[float]:
    """The parameters sent to or by a client in each evaluated round."""
    columns = zip(cell.rounds.get(way, []), cell.rounds.get("participants", []))
    return [sent / BYTES / count for sent, count in columns if sent is not None and count]


def shown(value: float | None, form: str = ".4g") -> str:
    """A number as text; `MISSING` for one that is not known."""
    return MISSING if value is None or math.isnan(value) else format(value, form)


def shown_mean(values: Iterable[float], form: str = ".4g") -> str:
    """The mean of values as text."""
    numbers = list(values)
    return shown(statistics.fmean(numbers) if numbers else None, form)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of rows, of which the first is the heading."""
    head, *body = [
        ["" if cell is None else str(cell).replace("|", "\\|") for cell in row] for row in rows
    ]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
