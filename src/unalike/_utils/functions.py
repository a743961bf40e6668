"""Functions and classes that users give: the texts by which the record of a run names them."""

import hashlib
import inspect
import re
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError

if TYPE_CHECKING:
    from torch.nn import Module

LIBRARY_PACKAGES = {"unalike", "unalike_studies", "torch", *sys.stdlib_module_names}
"""Packages whose code is not the user's."""


def text_of_function(value: Any) -> Any:
    """The text of a function, such as `<focal 1f0c9a77>`: its name, and a hash of its code and of the values it uses.

    Another value is returned as it is.
    """
    if isinstance(value, MissingFunction):
        return value.text
    if not callable(value):
        return value
    inner = value.func if isinstance(value, partial) else value
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    content = repr(_content(value))
    return f"<{name} {_hash(content)}>"


def source_hashes(values: Iterable[Any]) -> dict[str, str]:
    """Name -> a hash of the source of each function and class of the user's own among these values, their classes and the bases.

    What was typed at a prompt has no source, and is left out.
    """
    # Each definition once, in the order in which the values lead to it: a dictionary keeps that order.
    definitions: dict[Any, None] = {}
    for value in values:
        inner = value.func if isinstance(value, partial) else value
        definition = inner if isinstance(inner, FunctionType | type) else type(inner)
        bases = getattr(definition, "__mro__", [definition])
        definitions |= dict.fromkeys(bases)
    hashes: dict[str, str] = {}
    for definition in definitions:
        name = definition.__qualname__
        package = definition.__module__.partition(".")[0]
        if package in LIBRARY_PACKAGES:
            continue
        # definitions of one name, as in two modules, share a hash
        with suppress(OSError, TypeError):
            hashes[name] = _hash(hashes.get(name, "") + inspect.getsource(definition))
    return hashes


def structure_hash(module: "Module") -> str:
    """A hash of a module's layers, and of the numbers and texts among their attributes."""
    kinds = bool | int | float | str | tuple
    attributes = []
    for layer in module.modules():
        attributes.append(
            {name: value for name, value in vars(layer).items() if isinstance(value, kinds)}
        )
    text = repr((module, attributes))
    # addresses in memory differ from process to process
    return _hash(re.sub(" at 0x[0-9a-f]+", "", text))


def is_text_of_function(value: object) -> bool:
    """Whether it is the text that stands for a function in a record."""
    return isinstance(value, str) and value.startswith("<")


@dataclass(frozen=True)
class MissingFunction:
    """A function of which only the text in a record is known."""

    text: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UnalikeError(
            f"{self.text} is a function of the program that made the run, and is not known here; run it there"
        )


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _content_of_collection(value: Collection[Any]) -> Any:
    if isinstance(value, dict):
        return {str(name): _content(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        # their order differs from process to process
        return sorted(map(repr, value))
    return [_content(item) for item in value]


def _content(value: Any) -> Any:
    """Numbers, texts and collections of them that differ where two functions or values differ."""
    # here, because options are read without them
    import numpy as np
    import torch

    match value:
        case partial():
            return _content(value.func), _content(value.args), _content(value.keywords)
        case MethodType():
            return _content(value.__func__), _content(value.__self__)
        case FunctionType():
            global_values = {name: value.__globals__.get(name) for name in value.__code__.co_names}
            closure = [cell.cell_contents for cell in value.__closure__ or ()]
            return (
                _content(value.__code__),
                _content(value.__defaults__),
                _content(value.__kwdefaults__),
                _content(closure),
                _contents_of_data(global_values),
            )
        case CodeType():
            return value.co_code.hex(), value.co_names, _content(value.co_consts)
        case torch.nn.Module():
            return repr(value), _content(value.state_dict()), _contents_of_data(vars(value))
        case torch.Tensor():
            return _content(np.asarray(value.detach().cpu()))
        case np.ndarray() as array:
            return array.shape, str(array.dtype), array.tobytes().hex()
        case tuple() | list() | dict() | set() | frozenset():
            return _content_of_collection(value)
        case bool() | int() | float() | complex() | str() | bytes() | None:
            return value
    if hasattr(value, "__qualname__"):
        return value.__module__, value.__qualname__
    return type(value).__qualname__, _contents_of_data(getattr(value, "__dict__", {}))


def _contents_of_data(values: dict[str, Any]) -> dict[str, Any]:
    """The contents of the numbers, texts, tuples and tensors among named values that a function may use."""
    import torch

    kinds = bool | int | float | str | tuple | torch.Tensor
    return {name: _content(value) for name, value in values.items() if isinstance(value, kinds)}
