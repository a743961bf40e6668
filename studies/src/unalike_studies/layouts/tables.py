"""Tables of methods and settings: mean and standard deviation over seeds, with the published numbers beside ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unalike_studies.claims import Quantity, peak, score
from unalike_studies.results import Results

MISSING = "-"


@dataclass(frozen=True)
class MethodTable:
    """One row per method that has the column, one column per setting; `published` holds the paper's entries as printed.

    With `best`, the entries are the largest values over the rounds, chosen by the test samples, as some authors report.
    `columns` has the settings that show another column.
    """

    title: str
    column: str = "accuracy"
    last: int = 10
    scale: float = 100
    digits: int = 2
    best: bool = False
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

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
        column = self.columns.get(setting, self.column)
        return peak(method, setting, column) if self.best else score(method, setting, column, self.last)

    def entry(self, values: Sequence[float]) -> str:
        """`mean ± standard deviation (seeds)` of the values; `diverges` if one of them is infinite."""
        if not values:
            return MISSING
        shown = [self.scale * value for value in values]
        if any(math.isinf(value) for value in shown):
            return "diverges"
        mean = f"{statistics.fmean(shown):.{self.digits}f}"
        return mean if len(shown) == 1 else f"{mean} ± {statistics.stdev(shown):.{self.digits}f} ({len(shown)})"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of rows, of which the first is the heading."""
    head, *body = [["" if cell is None else str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
