"""Load modules of compiled loops (numba), and run such loops on all threads of a run."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from multiprocessing import parent_process
from threading import Timer
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np

from unalike._utils.errors import warn
from unalike._utils.notebook import in_notebook

T = TypeVar("T")
R = TypeVar("R")

LOADING_SECONDS = 4.0
"""Importing loops takes longer than this only where they are compiled first, which is once on a machine."""

PIECES_PER_THREAD = 4
"""Pieces of work for each thread: a thread that another program slows down leaves the remaining pieces to the others."""


@cache
def loops(module: str) -> ModuleType | None:
    """A module of compiled loops; None where numba is not installed or does not work, with one warning for all modules."""
    notice = Timer(LOADING_SECONDS, _tell_of_compiling)
    notice.start()
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:
        # also where numba needs another numpy, or finds no folder for compiled code
        if getattr(error, "name", None) in ("numba", "llvmlite"):
            _warn("numba is not installed")
        else:
            _warn("numba cannot be used, `unalike doctor` says why")
        return None
    finally:
        notice.cancel()


def _tell_of_compiling() -> None:
    """Say on standard error why the run waits, in the process that leads it, if somebody may be watching."""
    # while a progress bar is shown, `sys.stderr` is the bar's
    terminal = sys.__stderr__
    on_terminal = terminal is not None and terminal.isatty()
    if _leads() and (in_notebook() or on_terminal):
        print(
            "compiling loops for this processor: about 20 seconds, once on this machine",
            file=sys.stderr,
            flush=True,
        )


def _leads() -> bool:
    """Whether this process leads the run: no other process started it, and it has rank 0."""
    return parent_process() is None and os.environ.get("RANK", "0") == "0"


@cache
def _warn(why: str) -> None:
    """Warn once, in the process that leads the run."""
    if _leads():
        warn(
            f"no compiled loops, {why}: rounds take longer, "
            "with small models two to eight times as long"
        )


class Crew(NamedTuple):
    """The threads of a run: their number (the calling thread included), and a pool."""

    size: int
    pool: ThreadPoolExecutor


_crew: ContextVar[Crew | None] = ContextVar("crew", default=None)


@contextmanager
def crew_of(size: int) -> Iterator[None]:
    """Use this many threads for `share_out` and `each`, the calling thread included."""
    crew = Crew(size, ThreadPoolExecutor(size, "crew")) if size > 1 else None
    token = _crew.set(crew)
    try:
        yield
    finally:
        _crew.reset(token)
        if crew is not None:
            crew.pool.shutdown()


def threads() -> int:
    """The number of threads of the run."""
    crew = _crew.get()
    return 1 if crew is None else crew.size


def pieces() -> int:
    """The number of pieces to cut work into."""
    return 1 if threads() == 1 else PIECES_PER_THREAD * threads()


def bounds(count: int, slices: int) -> list[int]:
    """The bounds of at most `slices` non-empty slices of `count` things; the first slice is three times as long as the last.

    Threads that take the slices in order end almost together: the last slices, which one of them may wait for, are short.
    """
    if count <= slices:
        return [*range(count + 1)]
    shares = [i / slices for i in range(slices + 1)]
    # The share x of the slices holds the share x (3 - x) / 2 of the things: its slope falls from 3/2 to 1/2.
    return sorted({round(count * share * (3 - share) / 2) for share in shares})


def share_out(loop: Callable[[np.ndarray], object], count: int) -> None:
    """Run `loop(turns)` on all threads of the run at once.

    The compiled loop takes one of `count` pieces after the other by `simd.next_piece`, until none is left. Threads that returned to
    Python for every piece would wait for each other there. The calling thread takes part: waking another one can take longer
    than training a small model.
    """
    # the number of the next piece, which all threads count up
    turns = np.zeros(1, np.int64)
    crew = _crew.get()
    others = []
    if crew is not None:
        helpers = min(crew.size, count) - 1
        others = [crew.pool.submit(loop, turns) for _ in range(helpers)]
    try:
        loop(turns)
    finally:
        # after an exception no thread begins another piece
        turns[0] = count
        # cancel threads that have not started, and wait for the others: `result` raises their exceptions
        for other in others:
            if not other.cancel():
                other.result()


def each(function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
    """`function` of each thing, in their order, computed on all threads of the run at once."""
    crew = _crew.get()
    if crew is None or len(things) == 1:
        return map(function, things)
    return crew.pool.map(function, things)
