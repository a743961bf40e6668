"""Notebooks: whether the program runs in one, and a progress bar that is drawn there as HTML, without widgets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any


def in_notebook() -> bool:
    """Whether a kernel such as Jupyter's runs this program. IPython is not imported: where it is not loaded, there is none."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def notebook_bar(total: int, title: str) -> Iterator[Callable[[int, str], None]]:
    """Show a bar in the cell's output while the `with` block runs, then remove it. Yields (rounds done, text) -> None."""
    display: Any = import_module("IPython.display")  # loaded already, as the kernel is
    shown = display.display(display.HTML(_bar(0, total, title)), display_id=True)

    def draw(done: int, text: str) -> None:
        shown.update(display.HTML(_bar(done, total, f"{title} {text}")))

    try:
        yield draw
    finally:
        shown.update(display.HTML(""))


def _bar(done: int, total: int, text: str) -> str:
    return f'<progress value="{done}" max="{total}"></progress> {done} of {total} rounds {escape(text)}'
