"""Display in notebooks: HTML that objects show of themselves, and a progress bar that is drawn without widgets."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table; everything in it is escaped."""
    head = "".join(f'<th style="{CELL}">{escape(str(name))}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{escape(str(value))}</td>' for value in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def paragraph(text: object) -> str:
    return f"<p>{escape(str(text))}</p>"


def sparkline(values: Sequence[float], title: str, text: Callable[[float], str]) -> str:
    """A line of numbers as a small SVG drawing, with the first and the last number as `text`; empty for fewer than two."""
    known = [(i, v) for i, v in enumerate(values) if v == v]
    if len(known) < 2:
        return ""
    low, high = min(v for _, v in known), max(v for _, v in known)
    points = [
        (4 + 232 * i / (len(values) - 1), 44 - 40 * (v - low) / ((high - low) or 1))
        for i, v in known
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    ends = f"{title}: {text(known[0][1])} to {text(known[-1][1])}"
    return (
        f'<svg width="240" height="48" role="img" aria-label="{escape(ends)}">'
        f'<polyline points="{line}" fill="none" stroke="#1A80BB" stroke-width="2"/></svg>{paragraph(ends)}'
    )


def bubbles(
    counts: Sequence[Sequence[int]], rows: Sequence[object], columns: Sequence[object]
) -> str:
    """Counts as a small SVG drawing: a circle for each number above 0, with the number as its area."""
    most, cell, left = max((n for row in counts for n in row), default=0) or 1, 18, 110
    marks = [
        f'<circle cx="{left + cell * j + 9}" cy="{cell * i + 27}" r="{8.5 * (n / most) ** 0.5:.1f}" fill="#1A80BB">'
        f"<title>{escape(f'{rows[i]}, {columns[j]}: {n}')}</title></circle>"
        for i, row in enumerate(counts)
        for j, n in enumerate(row)
        if n
    ]
    style = 'font-size="11" font-family="sans-serif" fill="currentColor"'
    marks += [
        f'<text x="{left - 6}" y="{cell * i + 31}" text-anchor="end" {style}>{escape(str(name)[:16])}</text>'
        for i, name in enumerate(rows)
    ]
    marks += [
        f'<text x="{left + cell * j + 9}" y="12" text-anchor="middle" {style}>{escape(str(name)[:2])}</text>'
        for j, name in enumerate(columns)
    ]
    width, height = left + cell * len(columns) + 10, cell * len(rows) + 24
    return f'<svg width="{width}" height="{height}" role="img">{"".join(marks)}</svg>'


def in_notebook() -> bool:
    """Whether a kernel such as Jupyter's runs this program. IPython is not imported: where it is not loaded, there is none."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def notebook_bar(total: int, title: str) -> Iterator[Callable[[int, str], None]]:
    """Show a bar in the cell's output while the `with` block runs, then remove it. Yields (rounds done, text) -> None."""
    display: Any = import_module("IPython.display")  # loaded already, as the kernel is
    shown = display.display(display.HTML(_progress(0, total, title)), display_id=True)

    def draw(done: int, text: str) -> None:
        shown.update(display.HTML(_progress(done, total, f"{title} {text}")))

    try:
        yield draw
    finally:
        shown.update(display.HTML(""))


def _progress(done: int, total: int, text: str) -> str:
    return f'<progress value="{done}" max="{total}"></progress> {done} of {total} rounds {escape(text)}'
