"""Progress of long computations: a live bar on a terminal, plain lines elsewhere, or a user's function."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from unalike._utils.errors import UnalikeError
from unalike._utils.notebook import in_notebook, notebook_bar

Row = dict[str, Any]

BAR_AND_TIMES_WIDTH = 38
"""Width of the bar, the counts and the times, in characters."""
QUIET_SECONDS = 5.0
"""Without a terminal, the least time between two lines."""
DRAW_SECONDS = 0.2
"""In a notebook, the least time between two drawings of the bar."""


class ProgressCallback(Protocol):
    """Called with every new row of a history, and with the last row of a run that is only read; `what` names the run.

    The row has its score as text under `headline`: `accuracy 34.1 %`.
    """

    def __call__(self, row: Row, what: str = "") -> None: ...


UserProgress = Callable[[Row], object] | bool | None
"""The argument `progress` of `ua.run`, `ua.compare`, ...: a function of each new row, False for no bar, or the usual bar."""


@contextmanager
def progress_reporting(
    progress: UserProgress, total: int, title: str
) -> Iterator[ProgressCallback]:
    """Choose the callback for `total` rounds: `progress` if it is a function, none if it is False, else a bar on a terminal.

    A function is called with each row alone; where there are several runs, `row["run"]` names the run. Raises `UnalikeError` for
    any other value.
    """
    if progress is None or progress is True:
        with progress_bar(total, title, lines=False) as bar:
            yield bar
    elif progress is False:
        yield _ignore
    elif callable(progress):

        def call_user(row: Row, what: str = "") -> None:
            named_row = row | {"run": what} if what else row
            progress(named_row)

        yield call_user
    else:
        raise UnalikeError(
            f"progress: found {progress!r}, expected a function of a row, or False for no bar"
        )


@contextmanager
def progress_bar(total: int, title: str, *, lines: bool) -> Iterator[ProgressCallback]:
    """Show the progress of `total` rounds on standard error. `lines`: without a terminal, print plain lines."""
    if sys.stderr.isatty():
        with _bar(total, title) as update:
            yield update
    elif in_notebook():
        with notebook_bar(total, title) as draw:
            yield _Throttled(total, DRAW_SECONDS, draw)
    elif lines:
        yield printed_lines(total, title)
    else:
        yield _ignore


def _ignore(row: Row, what: str = "") -> None:
    """Show no progress."""


@contextmanager
def _bar(total: int, title: str) -> Iterator[ProgressCallback]:
    """Show a bar on a terminal while the block runs."""
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
    columns = (
        text,
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(title, total=total, now="")
        rounds_of_run: dict[str, int] = {}

        def update(row: Row, what: str = "") -> None:
            # set, not counted: a resumed run does not start at 0
            rounds_of_run[what] = row["round"]
            score = row.get("headline", "")
            room = screen.width - BAR_AND_TIMES_WIDTH - len(f"{title} {score}")
            now = f"{shortened(what, room)} {score}"
            progress.update(task, completed=sum(rounds_of_run.values()), now=now)

        yield update


def shortened(text: str, room: int) -> str:
    """Cut the middle out of a long text, so that the method's name at its start and the seed at its end stay."""
    if len(text) <= room:
        return text
    # one character is left for the ellipsis; an odd one goes to the start
    end = max(0, room - 1) // 2
    start = max(0, room - 1 - end)
    return f"{text[:start]}…{text[len(text) - end :]}"


class _Throttled:
    """Shows how many rounds are done, what runs and its score: at the first and the last round, and every `seconds` between."""

    def __init__(self, total: int, seconds: float, draw: Callable[[int, str], None]):
        self.total = total
        self.seconds = seconds
        self.draw = draw
        self.last_drawing = 0.0
        self.rounds_of_run: dict[str, int] = {}

    def __call__(self, row: Row, what: str = "") -> None:
        self.rounds_of_run[what] = row["round"]
        count = sum(self.rounds_of_run.values())
        if count == self.total or time.monotonic() - self.last_drawing > self.seconds:
            self.last_drawing = time.monotonic()
            score = row.get("headline", "")
            self.draw(count, f"{what} {score}".strip())


def printed_lines(total: int, title: str) -> _Throttled:
    """Prints a line from time to time."""

    def draw(count: int, text: str) -> None:
        print(f"{title}: {count}/{total} rounds {text}".rstrip(), file=sys.stderr, flush=True)

    return _Throttled(total, QUIET_SECONDS, draw)
