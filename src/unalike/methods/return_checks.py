"""Checks of the values that hooks of parts return: a user's own part may return something else than its role asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree
from unalike.methods.part import Part


def named(part: Part, verb: str, found: Any, wanted: Tree) -> Tree:
    """`found`, if it is a tree of the names of `wanted`. Raises `UnalikeError` otherwise."""
    if not isinstance(found, dict):
        raise _wrong(part, verb, f"gives {type(found).__name__}", f"a tensor for each of {', '.join(wanted)}")
    if different := [str(name) for name in found.keys() ^ wanted.keys()]:
        names = ", ".join(sorted(different)[:5])
        raise _wrong(part, verb, f"was given {', '.join(wanted)} and differs in {names}", "a tensor for each of them")
    if odd := next((name for name, t in found.items() if not isinstance(t, Tensor)), None):
        raise _wrong(part, verb, f"gives {type(found[odd]).__name__} for {odd}", "a tensor")
    return found


def like(part: Part, verb: str, found: Any, wanted: Tree) -> Tree:
    """The same, if it has the shapes and types of `wanted` as well: solvers would read beyond the end of a smaller tensor."""
    for name, t in named(part, verb, found, wanted).items():
        must = wanted[name]
        if (t.shape, t.dtype) != (must.shape, must.dtype):
            raise _wrong(part, verb, f"gives {name} as {_kind(t)}", _kind(must))
    return found


def two(part: Part, verb: str, found: Any) -> tuple[Any, Any]:
    """`found`, if it is a pair. Raises `UnalikeError`: unpacking a tree of two names would give two strings."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise _wrong(part, verb, f"gives {type(found).__name__}", "two trees, as in (tree, {})")
    return found


def weights(part: Part, verb: str, found: Any, count: int) -> Tensor:
    """`found`, if it is a weight for each of `count` reports; finiteness is checked later, in the result."""
    if not isinstance(found, Tensor) or found.shape != (count,):
        what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise _wrong(part, verb, f"gives {what}", f"a tensor of shape [{count}], one weight for each report")
    if bool((found < 0).any()):
        raise _wrong(part, verb, f"gives a weight of {found[found < 0].min().item():g}", "0 or more")
    return found


@contextmanager
def untouched(method: object, values: Tree) -> Iterator[None]:
    """Raise `UnalikeError` where one of the `values` is written over while the block runs."""
    held = [(name, t, t._version) for name, t in values.items()]
    yield
    if written := next((name for name, t, version in held if t._version != version), None):
        raise UnalikeError(
            f"a part of {method!r} writes over {written}, which the server still has; expected new tensors, w + d instead of "
            "w.add_(d)"
        )


def _wrong(part: Part, verb: str, found: str, expected: str) -> UnalikeError:
    return UnalikeError(f"{part.name}.{verb} {found}; expected {expected}")


def _kind(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
