"""Checks of the values that hooks of parts return: a user's own part may return something else than its role asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from typing import Any

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree
from unalike.methods.part import Part


def named(part: Part, verb: str, value: Any, expected: Tree) -> Tree:
    """`value`, if it is a tree of the names of `expected`. Raises `UnalikeError` otherwise."""
    if not isinstance(value, dict):
        raise _wrong(
            part,
            verb,
            f"gives {type(value).__name__}",
            f"a tensor for each of {', '.join(expected)}",
        )
    if different := [str(name) for name in value.keys() ^ expected.keys()]:
        names = ", ".join(sorted(different)[:5])
        raise _wrong(
            part,
            verb,
            f"was given {', '.join(expected)} and differs in {names}",
            "a tensor for each of them",
        )
    if odd := next((name for name, t in value.items() if not isinstance(t, Tensor)), None):
        raise _wrong(part, verb, f"gives {type(value[odd]).__name__} for {odd}", "a tensor")
    return value


def like(part: Part, verb: str, value: Any, expected: Tree) -> Tree:
    """The same, if it has the shapes and types of `expected` as well: solvers would read beyond the end of a smaller tensor."""
    for name, t in named(part, verb, value, expected).items():
        must = expected[name]
        if (t.shape, t.dtype) != (must.shape, must.dtype):
            raise _wrong(part, verb, f"gives {name} as {_kind(t)}", _kind(must))
    return value


def scalar(part: Part, verb: str, value: Any) -> Tensor:
    """`value`, if it is a scalar."""
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    found = (
        f"a tensor of shape {list(value.shape)}"
        if isinstance(value, Tensor)
        else type(value).__name__
    )
    raise _wrong(part, verb, f"gives {found}", "a scalar, such as batch.mean(per_sample)")


@contextmanager
def noted(part: Part, verb: str) -> Iterator[None]:
    """Add the part's name to an error inside. Raises `UnalikeError` for a missing name and a change of the part."""
    try:
        yield
    except FrozenInstanceError as error:
        expected = "no change: a part is frozen, and what lasts is returned as state, such as finish(client) gives it"
        raise _wrong(part, verb, f"sets an attribute of its part ({error})", expected) from error
    except KeyError as error:
        expected = (
            "one that client_init or server_init makes, for a state, or broadcast, for a message"
        )
        raise _wrong(
            part, verb, f"looks for the name {error}, which is not there", expected
        ) from error
    except Exception as error:
        error.add_note(f"in the {verb} of the part {part.name}")
        raise


def two(part: Part, verb: str, value: Any) -> tuple[Any, Any]:
    """`value`, if it is a pair. Raises `UnalikeError`: unpacking a tree of two names would give two strings."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise _wrong(part, verb, f"gives {type(value).__name__}", "two trees, as in (tree, {})")
    return value


def weights(part: Part, verb: str, value: Any, count: int) -> Tensor:
    """`value`, if it is a weight for each of `count` client updates; finiteness is checked later, in the result."""
    if not isinstance(value, Tensor) or value.shape != (count,):
        what = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise _wrong(
            part,
            verb,
            f"gives {what}",
            f"a tensor of shape [{count}], one weight for each client update",
        )
    if bool((value < 0).any()):
        raise _wrong(
            part, verb, f"gives a weight of {value[value < 0].min().item():g}", "0 or more"
        )
    return value


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
