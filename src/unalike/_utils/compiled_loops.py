"""Compiled loops (numba, the extra `fast`), and the threads of a run that they and others are shared out to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")
R = TypeVar("R")

SLICES = 4
"""Pieces of the work for each thread: one that another program slows down leaves the rest to the others."""


@cache
def loops(module: str) -> ModuleType | None:
    """A module of compiled loops, where the extra `fast` is installed. Warns where it is and does not work."""
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # of another numpy, without a folder for what it compiles
        if getattr(error, "name", None) != "numba":
            text = (
                f"numba cannot be used ({error}); what it would compile takes longer, dense models two to eight times"
            )
            warnings.warn(text, stacklevel=3)
        return None


class Crew(NamedTuple):
    """Threads of a run."""

    size: int
    pool: ThreadPoolExecutor


_crew: ContextVar[Crew | None] = ContextVar("crew", default=None)


@contextmanager
def crew_of(size: int) -> Iterator[None]:
    """So many threads for what is shared out; one is the thread itself."""
    crew = Crew(size, ThreadPoolExecutor(size, "crew")) if size > 1 else None
    token = _crew.set(crew)
    try:
        yield
    finally:
        _crew.reset(token)
        if crew is not None:
            crew.pool.shutdown()


def threads() -> int:
    """Those of the run."""
    crew = _crew.get()
    return 1 if crew is None else crew.size


def pieces() -> int:
    """Into how many the work of the run's threads is cut."""
    return 1 if threads() == 1 else SLICES * threads()


def bounds(count: int, slices: int) -> list[int]:
    """Where so many things are cut into at most so many slices, none of them empty, the first three times as long as the last.

    Threads that take one after the other end together, and who is held up at the end is so for a short one.
    """
    if count <= slices:
        return [*range(count + 1)]
    parts = [i / slices for i in range(slices + 1)]
    return sorted({round(count * part * (3 - part) / 2) for part in parts})


def share_out(loop: Callable[[np.ndarray], object], count: int) -> None:
    """`loop(turns)` on all threads of the run at once: a compiled loop that takes one of so many pieces after the other, by
    `vectors.turn`, until none is left. Threads that came back to Python for each would wait for each other there.

    This one takes part, since it takes a thread longer to wake up than to train some small models.
    """
    turns, crew = np.zeros(1, np.int64), _crew.get()
    others = [] if crew is None else [crew.pool.submit(loop, turns) for _ in range(min(crew.size, count) - 1)]
    try:
        loop(turns)
    finally:
        turns[0] = count  # where something was raised, nobody begins anything more
        for other in others:
            if not other.cancel():  # who has not woken up by now is not waited for
                other.result()  # raises what was raised there


def each(function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
    """`function` of each thing, in their order, on all threads of the run at once."""
    crew = _crew.get()
    return map(function, things) if crew is None or len(things) == 1 else crew.pool.map(function, things)
