"""Tables: a column is declared once, with title, value and format, and written for pages, papers, terminals and notebooks.

>>> scores = [{"method": "fedavg", "score": 0.341}]
>>> columns = [words("Method", "method"), number("Score", "score", lambda value: f"{100 * value:.1f} %")]
>>> print(markdown(Table.of("", columns, scores)))
| Method | Score |
| :-- | --: |
| fedavg | 34.1 % |

The page's own writer is the macro `grid` of its templates; a terminal's is `cli/terminal_tables.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from unalike._utils import notebook
from unalike._utils.printable import without_controls
from unalike.metrics.named_metrics import MISSING
from unalike.reporting.charts.palette import Look, Looks

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
Get = str | Callable[[Any], Any]
"""The key of a value in a row that is a dictionary, or a function of any row."""


@dataclass(frozen=True)
class TableCell:
    """Text, and the value by which it is sorted; numbers are aligned right.

    `look` adds the swatch of a method; papers print a `strong` cell in bold.
    """

    text: str
    value: float | str
    look: Look | None = None
    strong: bool = False

    @property
    def numeric(self) -> bool:
        return not isinstance(self.value, str)


@dataclass(frozen=True)
class TableColumn:
    """A column: its title, and the cell of a row."""

    title: str
    cell: Callable[[Any], TableCell]


@dataclass(frozen=True)
class Table:
    """A table with a caption; the first cell of each row is the row's heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]

    @classmethod
    def of(cls, caption: str, columns: Sequence[TableColumn], rows: Iterable[Any]) -> Table:
        """The cells of every row under the titles of the columns."""
        titles = [column.title for column in columns]
        cells = []
        for row in rows:
            cells.append([column.cell(row) for column in columns])
        return cls(caption, titles, cells)

    @property
    def texts(self) -> list[list[str]]:
        """The texts of the cells, row by row."""
        texts = []
        for row in self.rows:
            texts.append([cell.text for cell in row])
        return texts

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        numeric = []
        for place in range(len(self.columns)):
            numeric.append(any(row[place].numeric for row in self.rows))
        return numeric

    @property
    def words(self) -> int:
        """The number of columns before the first one with numbers."""
        return (*self.numeric, True).index(True)


def rows(table: pd.DataFrame) -> list[Row]:
    """The rows of a data frame as dictionaries with column names as keys."""
    names = [str(name) for name in table.columns]
    return [dict(zip(names, values)) for values in table.itertuples(index=False, name=None)]


def words(title: str, get: Get, looks: Looks | None = None) -> TableColumn:
    """A column of text, a dash where it is empty; of methods, with their looks."""
    value = itemgetter(get) if isinstance(get, str) else get

    def cell(row: Any) -> TableCell:
        text = str(value(row))
        return TableCell(text or MISSING, text, (looks or {}).get(text))

    return TableColumn(title, cell)


def number(title: str, get: Get, form: Callable[[Any], str] = str) -> TableColumn:
    """A column of numbers, sorted by value and written by `form`; a dash where there is none."""
    value = itemgetter(get) if isinstance(get, str) else get

    def cell(row: Any) -> TableCell:
        amount = value(row)
        if amount is None or math.isnan(amount):
            return TableCell(MISSING, math.nan)
        return TableCell(form(amount), amount)

    return TableColumn(title, cell)


def interval(title: str, low: Get, high: Get, form: Callable[[float, float], str]) -> TableColumn:
    """A column of intervals, sorted by their lower ends; a dash where there is none."""
    lower_end = itemgetter(low) if isinstance(low, str) else low
    upper_end = itemgetter(high) if isinstance(high, str) else high

    def cell(row: Any) -> TableCell:
        lower = lower_end(row)
        upper = upper_end(row)
        is_missing = math.isnan(lower) or math.isnan(upper)
        return TableCell(MISSING if is_missing else form(lower, upper), lower)

    return TableColumn(title, cell)


def markdown(table: Table) -> str:
    """The table in Markdown; its caption is left out."""
    sides = ["--:" if numeric else ":--" for numeric in table.numeric]
    lines = [_markdown_line(table.columns), _markdown_line(sides)]
    for row in table.rows:
        lines.append(
            _markdown_line([f"**{cell.text}**" if cell.strong else cell.text for cell in row])
        )
    return "\n".join(lines)


def _markdown_line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_text, texts))} |"


def markdown_text(text: str) -> str:
    """The text with what Markdown or HTML would read as markup or as a link escaped; one line."""
    return without_controls(text).translate(_MARKDOWN).replace("](", r"]\(")


def latex(table: Table, label: str = "") -> str:
    """The table in LaTeX, for the package booktabs: a floating table if it has a caption and is given a label."""
    sides = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _latex_line([_escaped(title) for title in table.columns]),
        r"\midrule",
    ]
    for row in table.rows:
        lines.append(_latex_line([_latex_cell(cell) for cell in row]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    if label:
        caption = [rf"\caption{{{_escaped(table.caption)}}}", rf"\label{{{label}}}"]
        lines = [r"\begin{table}", r"\centering", *caption, *lines, r"\end{table}"]
    return "\n".join(lines)


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: TableCell) -> str:
    text = _escaped(cell.text)
    return rf"\textbf{{{text}}}" if cell.strong else text


def aligned_text(table: Table) -> str:
    """The table as lines of aligned text, for `print`."""
    lines = []
    for line in (table.columns, *table.texts):
        lines.append([without_controls(text) for text in line])
    forms = []
    for i, numeric in enumerate(table.numeric):
        width = max(len(line[i]) for line in lines)
        forms.append(f">{width}" if numeric else f"<{width}")
    aligned = []
    for line in lines:
        cells = [format(text, form) for text, form in zip(line, forms)]
        aligned.append("  ".join(cells).rstrip())
    return "\n".join(aligned)


def html(table: Table) -> str:
    """The table as HTML for a notebook."""
    return notebook.table(table.columns, table.texts)


_MARKDOWN = str.maketrans({"\u00a0": " ", "\\": r"\\", "|": r"\|", "<": "&lt;"})
_LATEX = {
    "\u00a0": "~",
    "\\": r"\textbackslash{}",
    "−": "$-$",
    "–": "--",
    "±": r"$\pm$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "~": r"\textasciitilde{}",
    "^": r"\^{}",
} | {c: "\\" + c for c in "&%$#_{}"}


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in without_controls(text))
