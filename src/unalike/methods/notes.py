"""Notes: numbers that a part's server half computed, such as FedLWS's gamma, for the recorder of the run.

`note` does nothing unless a recorder listens, and costs one look-up then. A note changes no result.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

Sink = Callable[[str, str, Any, str, str], None]
"""Called with the group of clients, the quantity, its value, the part and the layer."""
_SINK: ContextVar[Sink | None] = ContextVar("notes", default=None)
_GROUP: ContextVar[str] = ContextVar("group", default="")


def listening() -> bool:
    """Whether a recorder listens. A part asks before it computes a number that only its note needs."""
    return _SINK.get() is not None


def note(quantity: str, value: Tensor | float, *, part: str = "", layer: str = "") -> None:
    """Note a number for the recorder of the run, if there is one (`ua.run(..., record="server")`).

    Call it in `combine`, `step`, `weigh` or another hook of the server.

    Args:
        quantity: the name of the number, such as "gamma".
        value: one number, or a vector with one number per client of the cohort, [K].
        part: the name of the part.
        layer: the layer or tensor that it belongs to; empty for the whole model.
    """
    sink = _SINK.get()
    if sink is not None:
        sink(_GROUP.get(), quantity, value, part, layer)


def notes_to(sink: Sink) -> AbstractContextManager[None]:
    """Pass the notes of this block on to `sink`."""
    return _set(_SINK, sink)


def notes_about(group: str) -> AbstractContextManager[None]:
    """Mark the notes of this block as those of one group of clients."""
    return _set(_GROUP, group)


@contextmanager
def _set(variable: ContextVar[Any], value: object) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
