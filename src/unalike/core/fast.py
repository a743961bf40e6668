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

T = TypeVar("T")
R = TypeVar("R")

SLICES = 2
"""Slices of the work that each thread gets: one that another program slows down leaves the rest to the others."""


@cache
def loops(module: str) -> ModuleType | None:
    """A module of compiled loops, where the extra `fast` is installed. Warns where it is and does not work."""
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # of another numpy, without a folder for what it compiles
        if getattr(error, "name", None) != "numba":
            text = f"numba cannot be used ({error}); what it would compile takes longer, small dense models two to five times"
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


def share_out(function: Callable[[int, int], R], count: int, slices: int | None = None) -> list[R]:
    """`function(first, end)` of `count` things, a few at a time, on all threads of the run at once.

    `slices`: into how many the things are cut where the run has no more threads than that.
    """
    crew = _crew.get()
    size, run = (1, map) if crew is None else (crew.size, crew.pool.map)
    slices = min(count, max(slices, size) if slices else SLICES * size if crew else 1)
    # a longer slice before a shorter one, so that threads end together
    bounds = [-(-count * i // slices) for i in range(slices + 1)]
    return list(run(function, bounds, bounds[1:]))  # waits for all, and raises what one of them raised


def each(function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
    """`function` of each thing, in their order, on all threads of the run at once."""
    crew = _crew.get()
    return map(function, things) if crew is None or len(things) == 1 else crew.pool.map(function, things)
