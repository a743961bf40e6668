"""Functions and classes that users give: the texts by which the record of a run names them."""

import hashlib
import inspect
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError

if TYPE_CHECKING:
    from torch.nn import Module

INSTALLED = {"unalike", "unalike_studies", "torch", *sys.stdlib_module_names}
"""Packages whose code is not the user's."""


def recorded(value: Any) -> Any:
    """`value`; of a function a text such as `<focal 1f0c9a77>`, its name and a hash of its code and of the values it uses."""
    if not callable(value) or isinstance(value, MissingFunction):
        return value.text if isinstance(value, MissingFunction) else value
    inner = value.func if isinstance(value, partial) else value
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"<{name} {_hash(repr(_content(value)))}>"


def sources(used: Iterable[Any]) -> dict[str, str]:
    """Name -> a hash of the source of each function and class of the user's own among these values, their classes and the bases.

    What was typed at a prompt has no source, and is left out.
    """
    found: dict[str, str] = {}
    inner = [value.func if isinstance(value, partial) else value for value in used]
    kinds = [v if isinstance(v, FunctionType | type) else type(v) for v in inner]
    for own in dict.fromkeys(base for kind in kinds for base in getattr(kind, "__mro__", [kind])):
        if own.__module__.partition(".")[0] not in INSTALLED:
            with suppress(OSError, TypeError):
                found[own.__qualname__] = _hash(
                    found.get(own.__qualname__, "") + inspect.getsource(own)
                )
    return found


def structure(module: "Module") -> str:
    """A hash of a module's layers, and of the numbers and texts among their attributes."""
    kinds = bool | int | float | str | tuple
    held = [
        {name: value for name, value in vars(m).items() if isinstance(value, kinds)}
        for m in module.modules()
    ]
    return _hash(re.sub(" at 0x[0-9a-f]+", "", repr((module, held))))


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


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _content(value: Any) -> Any:
    """Plain values that differ where two functions or values differ."""
    import numpy as np  # here, because options are read without them
    import torch

    match value:
        case partial():
            return _content(value.func), _content(value.args), _content(value.keywords)
        case MethodType():
            return _content(value.__func__), _content(value.__self__)
        case FunctionType():
            used = {name: value.__globals__.get(name) for name in value.__code__.co_names}
            held = [cell.cell_contents for cell in value.__closure__ or ()]
            parts = (value.__code__, value.__defaults__, value.__kwdefaults__, held)
            return *map(_content, parts), _plain(used)
        case CodeType():
            return value.co_code.hex(), value.co_names, _content(value.co_consts)
        case torch.nn.Module():
            return repr(value), _content(value.state_dict()), _plain(vars(value))
        case torch.Tensor() | np.ndarray():
            array = np.asarray(value.detach().cpu()) if isinstance(value, torch.Tensor) else value
            return array.shape, str(array.dtype), array.tobytes().hex()
        case tuple() | list():
            return [_content(item) for item in value]
        case dict():
            return {str(name): _content(item) for name, item in value.items()}
        case set() | frozenset():
            return sorted(map(repr, value))
        case bool() | int() | float() | complex() | str() | bytes() | None:
            return value
    named = hasattr(value, "__qualname__")
    return (
        (value.__module__, value.__qualname__)
        if named
        else (type(value).__qualname__, _plain(getattr(value, "__dict__", {})))
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """The numbers, texts, tuples and tensors among values that a function may use."""
    import torch

    kinds = bool | int | float | str | tuple | torch.Tensor
    return {name: _content(value) for name, value in values.items() if isinstance(value, kinds)}
