"""How many threads a run computes with, within torch's operations or over clients, and what becomes of the memory it frees."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

import torch

from unalike.core.model import Model

SLICES = 2
"""Slices of the clients that each thread gets: one that another program slows down leaves the rest to the others."""


class Crew(NamedTuple):
    """Threads over clients."""

    size: int
    pool: ThreadPoolExecutor


_crew: ContextVar[Crew | None] = ContextVar("crew", default=None)


@contextmanager
def threads_for(model: Model, alone: bool = True) -> Iterator[None]:
    """Within operations one thread for models without convolutions, else torch's own number, which is put back afterwards;
    over clients (`share_out`) as many as torch had. Each of several processes has one.

    A dense model's products are too small for several threads to pay, and when anything else runs on the machine they wait for
    each other: rounds become ten times and more slower. Threads that train clients of their own wait once.
    """
    before = torch.get_num_threads()
    keep_freed_memory()
    torch.set_num_threads(before if model.convolutional and alone else 1)
    crew = Crew(before, ThreadPoolExecutor(before, "clients")) if alone and before > 1 else None
    token = _crew.set(crew)
    try:
        yield
    finally:
        _crew.reset(token)
        torch.set_num_threads(before)
        if crew is not None:
            crew.pool.shutdown()


def share_out(function: Callable[[int, int], None], count: int) -> None:
    """`function(first, end)` of `count` clients, a few at a time, on all threads of the run at once."""
    crew = _crew.get()
    if crew is None:
        return function(0, count)
    slices = min(count, SLICES * crew.size)
    bounds = [count * i // slices for i in range(slices + 1)]
    list(crew.pool.map(function, bounds, bounds[1:]))  # waits for all, and raises what one of them raised


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""The C library's numbers of these settings."""
KEPT = 2**25
"""Bytes below which a tensor's memory is kept; the library allows no more."""


@cache
def keep_freed_memory() -> None:
    """Let the process keep what it frees, up to 1 GiB, for its next tensors: stacked gradients come and go in every step.

    Given back to the system, their pages have to be cleared anew each time, which costs a fifth of a stacked step. Only glibc has
    this setting; elsewhere nothing happens.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None:
        set_option(MMAP_THRESHOLD, KEPT)
        set_option(TRIM_THRESHOLD, 2**30)
