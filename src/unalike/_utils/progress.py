"""Progress of long work: a live bar on a terminal, plain lines elsewhere, silence when nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from unalike._utils.errors import UnalikeError

Row = dict[str, Any]

REST = 38
"""Columns that the bar, the counts and the times take of a terminal."""
QUIET_SECONDS = 5.0
"""Without a terminal, at most one line in this time."""


class ProgressCallback(Protocol):
    """Told of every new row of a history, and of the last row of a run that is only read back; `what` names the run."""

    def __call__(self, row: Row, what: str = "") -> None: ...


@contextmanager
def progress_reporting(progress: ProgressCallback | bool | None, total: int, title: str) -> Iterator[ProgressCallback]:
    """Who watches `total` rounds: `progress`, nobody if that is False, and otherwise a live bar if there is a terminal.

    Raises `UnalikeError` for what cannot be told.
    """
    if progress is None or progress is True:
        with progress_bar(total, title, lines=False) as bar:
            yield bar
    elif progress is False:
        yield _nobody
    elif callable(progress):
        yield progress
    else:
        raise UnalikeError(f"progress: found {progress!r}, expected a function of a row, or False for no bar")


@contextmanager
def progress_bar(total: int, title: str, *, lines: bool) -> Iterator[ProgressCallback]:
    """Follow `total` rounds on standard error. `lines`: without a terminal, print plain lines instead of nothing."""
    if sys.stderr.isatty():
        with _bar(total, title) as seen:
            yield seen
    else:
        yield _Lines(total, title) if lines else _nobody


def _nobody(row: Row, what: str = "") -> None:
    """Nobody watches."""


@contextmanager
def _bar(total: int, title: str) -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description} {task.fields[now]}", markup=False)
    columns = text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True) as progress:
        task, done = progress.add_task(title, total=total, now=""), dict[str, int]()

        def seen(row: Row, what: str = "") -> None:
            done[what] = row["round"]  # a resumed run begins where it stopped
            score = headline(row)
            room = screen.width - REST - len(f"{title} {score}")
            progress.update(task, completed=sum(done.values()), now=f"{shortened(what, room)} {score}")

        yield seen


def shortened(text: str, room: int) -> str:
    """A text without its middle where it is longer than there is room: a method's name begins it, the seed ends it."""
    end = max(0, room - 1) // 2
    return text if len(text) <= room else f"{text[: max(0, room - 1 - end)]}…{text[len(text) - end :]}"


class _Lines:
    def __init__(self, total: int, title: str):
        self.total, self.title, self.last = total, title, 0.0
        self.done: dict[str, int] = {}

    def __call__(self, row: Row, what: str = "") -> None:
        self.done[what] = row["round"]
        count = sum(self.done.values())
        if count == self.total or time.monotonic() - self.last > QUIET_SECONDS:
            self.last = time.monotonic()
            print(
                f"{self.title}: {count}/{self.total} rounds {what} {headline(row)}".rstrip(),
                file=sys.stderr,
                flush=True,
            )


def headline(row: Row) -> str:
    """`accuracy 0.812`: the first metric of a row that is a number."""
    names = ("accuracy", "rmse", "personal_accuracy", "personal_rmse", "loss")
    found = next((n for n in names if row.get(n) is not None and row[n] == row[n]), None)
    return "" if found is None else f"{found.replace('_', ' ')} {row[found]:.3f}"
