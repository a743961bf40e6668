"""Named regions for torch's profiler. They cost almost nothing while the profiler is off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from torch.autograd import profiler

P = ParamSpec("P")
R = TypeVar("R")

Region = Literal["data", "forward and backward", "step", "aggregation", "evaluation", "waiting", "bookkeeping"]
PREFIX = "unalike: "
_NOTHING = nullcontext()


def profiled(name: Region) -> AbstractContextManager[Any]:
    """A context; the profiler counts its time for the region `name`."""
    return profiler.record_function(PREFIX + name) if profiler._is_profiler_enabled else _NOTHING


def profiled_function(name: Region) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: the profiler counts the function's time for the region `name`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with profiled(name):
                return function(*args, **kwargs)

        return run

    return decorate
