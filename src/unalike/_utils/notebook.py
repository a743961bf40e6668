"""Display in notebooks: HTML that objects show of themselves, and a progress bar that is drawn without widgets."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

CELL_STYLE = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"
BLUE = "#1A80BB"
BUBBLE_CELL_PIXELS = 18
"""Width and height of a bubble's cell."""
ROW_NAMES_PIXELS = 110
"""Width of the names of the rows at the left of the bubbles."""


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table; everything in it is escaped."""
    head = _cells("th", header)
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(tag: str, values: Sequence[object]) -> str:
    """The cells of one row of a table."""
    cells = [f'<{tag} style="{CELL_STYLE}">{escape(str(value))}</{tag}>' for value in values]
    return "".join(cells)


def paragraph(text: object) -> str:
    return f"<p>{escape(str(text))}</p>"


def bold_paragraph(text: object) -> str:
    return f"<p><b>{escape(str(text))}</b></p>"


def sparkline(values: Sequence[float], title: str, text: Callable[[float], str]) -> str:
    """A line of numbers as a small SVG drawing, with the first and the last number as `text`; empty for fewer than two."""
    # NaN, the number of a round without a score, has no point but keeps its place
    finite = {i: value for i, value in enumerate(values) if value == value}
    if len(finite) < 2:
        return ""
    low = min(finite.values())
    height = (max(finite.values()) - low) or 1
    # the line fills 240 x 48 pixels but for a margin of 4; y counts from the top
    points = []
    for i, value in finite.items():
        x = 4 + 232 * i / (len(values) - 1)
        y = 44 - 40 * (value - low) / height
        points.append(f"{x:.1f},{y:.1f}")
    first, *_, last = finite.values()
    summary = f"{title}: {text(first)} to {text(last)}"
    line = " ".join(points)
    return (
        f'<svg width="240" height="48" role="img" aria-label="{escape(summary)}">'
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/></svg>'
        f"{paragraph(summary)}"
    )


def bubbles(
    counts: Sequence[Sequence[int]], rows: Sequence[object], columns: Sequence[object]
) -> str:
    """Counts as a small SVG drawing: a circle for each number above 0, with the number as its area."""
    cell = BUBBLE_CELL_PIXELS
    left = ROW_NAMES_PIXELS
    largest = max((count for row in counts for count in row), default=0) or 1
    marks = []
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if not count:
                continue
            radius = 8.5 * (count / largest) ** 0.5
            tooltip = escape(f"{rows[i]}, {columns[j]}: {count}")
            marks.append(
                f'<circle cx="{left + cell * j + 9}" cy="{cell * i + 27}" r="{radius:.1f}" '
                f'fill="{BLUE}"><title>{tooltip}</title></circle>'
            )
    # names come last, so that no circle covers them
    style = 'font-size="11" font-family="sans-serif" fill="currentColor"'
    for i, name in enumerate(rows):
        text = escape(str(name)[:16])
        y = cell * i + 31
        marks.append(f'<text x="{left - 6}" y="{y}" text-anchor="end" {style}>{text}</text>')
    for j, name in enumerate(columns):
        text = escape(str(name)[:2])
        x = left + cell * j + 9
        marks.append(f'<text x="{x}" y="12" text-anchor="middle" {style}>{text}</text>')
    width = left + cell * len(columns) + 10
    height = cell * len(rows) + 24
    return f'<svg width="{width}" height="{height}" role="img">{"".join(marks)}</svg>'


def in_notebook() -> bool:
    """Whether a kernel such as Jupyter's runs this program. IPython is not imported: where it is not loaded, there is none."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def notebook_bar(total: int, title: str) -> Iterator[Callable[[int, str], None]]:
    """Show a bar in the cell's output while the `with` block runs, then remove it. Yields (rounds done, text) -> None."""
    # loaded already, as the kernel is
    display: Any = import_module("IPython.display")
    output = display.display(display.HTML(_progress_html(0, total, title)), display_id=True)

    def draw(rounds: int, text: str) -> None:
        html = _progress_html(rounds, total, f"{title} {text}")
        output.update(display.HTML(html))

    try:
        yield draw
    finally:
        output.update(display.HTML(""))


def _progress_html(rounds: int, total: int, text: str) -> str:
    return f'<progress value="{rounds}" max="{total}"></progress> {rounds} of {total} rounds {escape(text)}'
