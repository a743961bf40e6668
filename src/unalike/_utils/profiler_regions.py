"""Names for stretches of work, seen by torch's profiler while it runs and costing next to nothing while it does not."""

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
    """A context whose time belongs to a part of a round."""
    return profiler.record_function(PREFIX + name) if profiler._is_profiler_enabled else _NOTHING


def profiled_function(name: Region) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose time belongs to it."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with profiled(name):
                return function(*args, **kwargs)

        return run

    return decorate
