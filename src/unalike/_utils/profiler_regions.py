"""Named regions for torch's profiler, and their seconds. They cost almost nothing while nobody measures."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch.autograd import profiler

P = ParamSpec("P")
R = TypeVar("R")

Region = Literal[
    "data", "forward and backward", "step", "aggregation", "evaluation", "waiting", "bookkeeping"
]
PREFIX = "unalike: "
_NOTHING = nullcontext()
_SECONDS: ContextVar[dict[str, float] | None] = ContextVar("seconds", default=None)


def profiled(name: Region) -> AbstractContextManager[Any]:
    """A context; the profiler counts its time for the region `name`."""
    if profiler._is_profiler_enabled:
        return profiler.record_function(PREFIX + name)
    return _NOTHING


def profiled_function(name: Region) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: the profiler counts the function's time for the region `name`, and so does `timed`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            seconds = _SECONDS.get()
            region = profiled(name) if seconds is None else _counted(name, seconds)
            with region:
                return function(*args, **kwargs)

        return run

    return decorate


@contextmanager
def timed(seconds: dict[str, float]) -> Iterator[None]:
    """Add the seconds of the decorated functions that are called in this block to `seconds`, region by region.

    A function that another one calls counts once, for the outer one.
    """
    token = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(token)


@contextmanager
def _counted(name: Region, seconds: dict[str, float]) -> Iterator[None]:
    """Count the block's seconds; functions that are called in it are not counted once more."""
    token = _SECONDS.set(None)
    started = _now()
    try:
        with profiled(name):
            yield
    finally:
        _SECONDS.reset(token)
        seconds[name] = seconds.get(name, 0.0) + _now() - started


def _now() -> float:
    """The time in seconds, read when an accelerator has computed what it was given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()
