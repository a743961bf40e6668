"""Functions that users give: the text by which the record of a run names them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from unalike._utils.errors import UnalikeError

PLAIN = (bool, int, float, str, tuple)
"""Values of a function's surroundings that decide what it computes."""


def recorded(value: Any) -> Any:
    """`value`; of a function a text such as `<focal 1f0c9a77>`, its name and a hash of its code and of the values it uses."""
    if not callable(value) or isinstance(value, MissingFunction):
        return value.text if isinstance(value, MissingFunction) else value
    inner = value.func if isinstance(value, partial) else value
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"<{name} {hashlib.blake2b(repr(_content(value)).encode(), digest_size=4).hexdigest()}>"


def is_recorded(value: object) -> bool:
    """Whether it is the text that stands for a function in a record."""
    return isinstance(value, str) and value.startswith("<")


@dataclass(frozen=True)
class MissingFunction:
    """A function of which only the text in a record is known."""

    text: str

    def __call__(self, *given: Any, **named: Any) -> Any:
        raise UnalikeError(
            f"{self.text} is a function of the program that made the run, and is not known here; run it there"
        )


def _content(value: Any) -> Any:
    """Plain values that differ where two functions or values differ."""
    import numpy as np  # here, because options are read without them
    import torch

    match value:
        case partial():
            return _content(value.func), _content(value.args), _content(value.keywords)
        case FunctionType():
            held = [cell.cell_contents for cell in value.__closure__ or ()]
            used = [value.__globals__.get(name) for name in value.__code__.co_names]
            plain = [v for v in used if isinstance(v, (*PLAIN, torch.Tensor))]
            return _content(value.__code__), *map(_content, (value.__defaults__, value.__kwdefaults__, held, plain))
        case CodeType():
            return value.co_code.hex(), value.co_names, _content(value.co_consts)
        case torch.nn.Module():
            return (
                repr(value),
                _content(value.state_dict()),
                {n: v for n, v in vars(value).items() if isinstance(v, PLAIN)},
            )
        case torch.Tensor():
            return _content(value.numpy(force=True))
        case np.ndarray():
            return value.shape, str(value.dtype), value.tobytes().hex()
        case tuple() | list():
            return [_content(item) for item in value]
        case dict():
            return {str(name): _content(item) for name, item in value.items()}
        case bool() | int() | float() | str() | None:
            return value
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__module__, value.__qualname__, _content(getattr(value, "__self__", None))
    return type(value).__qualname__, _content(getattr(value, "__dict__", None))
