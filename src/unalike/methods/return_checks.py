"""Checks of the values that hooks of parts return: a user's own part may return something else than its role asks for.

`part` and `hook` name the part and its hook in the errors.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from unalike._utils.errors import UnalikeError
from unalike.core.types import Batch, Tree
from unalike.core.views import ServerView
from unalike.methods.part import Part

WATCHED_ROUNDS = 2
"""Rounds in which it is watched whether hooks write over what they are shown; every tensor that is watched takes time."""
MAX_LISTED_NAMES = 5
"""Number of names that an error lists of those that differ."""


def check_names(part: Part, hook: str, value: Any, expected: Tree) -> Tree:
    """`value`, if it is a tree of the names of `expected`. Raises `UnalikeError` otherwise."""
    if not isinstance(value, dict):
        raise _wrong(
            part,
            hook,
            found=f"gives {type(value).__name__}",
            expected=f"a tensor for each of {', '.join(expected)}",
        )
    different = sorted(str(name) for name in value.keys() ^ expected.keys())
    if different:
        names = ", ".join(different[:MAX_LISTED_NAMES])
        raise _wrong(
            part,
            hook,
            found=f"was given {', '.join(expected)} and differs in {names}",
            expected="a tensor for each of them",
        )
    for name, t in value.items():
        if not isinstance(t, Tensor):
            found = f"gives {type(t).__name__} for {name}"
            raise _wrong(part, hook, found, expected="a tensor")
    return value


def check_shapes(part: Part, hook: str, value: Any, expected: Tree) -> Tree:
    """`value`, if it also has the shapes and types of `expected`: solvers would read beyond the end of a smaller tensor."""
    for name, t in check_names(part, hook, value, expected).items():
        must = expected[name]
        if (t.shape, t.dtype) != (must.shape, must.dtype):
            found = f"gives {name} as {_type_and_shape(t)}"
            raise _wrong(part, hook, found, expected=_type_and_shape(must))
    return value


def check_scalar(part: Part, hook: str, value: Any) -> Tensor:
    """`value`, if it is a scalar."""
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    kind = type(value).__name__
    if isinstance(value, Tensor):
        kind = f"a tensor of shape {list(value.shape)}"
    raise _wrong(part, hook, f"gives {kind}", expected="a scalar, such as batch.mean(per_sample)")


@contextmanager
def errors_name_hook(part: Part, hook: str) -> Iterator[None]:
    """Let an error inside name the part and the hook.

    A missing name and a change of the part, which are mistakes of who wrote the part, become an `UnalikeError` that says what
    to do; other errors get a note.
    """
    try:
        yield
    except FrozenInstanceError as error:
        expected = "no change: a part is frozen, and what lasts is returned as state, such as finish(client) gives it"
        raise _wrong(part, hook, f"sets an attribute of its part ({error})", expected) from error
    except KeyError as error:
        found = f"looks for the name {error}, which is not there"
        expected = "one that client_init or server_init makes, for a state, broadcast, for a message, or `shares` names, for a fact"
        raise _wrong(part, hook, found, expected) from error
    except Exception as error:
        error.add_note(f"in the {hook} of the part {part.name}")
        raise


def check_pair(part: Part, hook: str, value: Any) -> tuple[Any, Any]:
    """`value`, if it is a pair, of whose trees the values are tensors.

    Raises `UnalikeError` otherwise: unpacking a tree of two names would give two strings.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        found = f"gives {type(value).__name__}"
        raise _wrong(part, hook, found, expected="two trees, as in (tree, {})")
    for tree in value:
        check_tensors(part, hook, tree)
    return value


def check_tensors(part: Part, hook: str, tree: Any) -> Any:
    """`tree`, if it is empty or holds tensors by name. Raises `UnalikeError` for numbers and arrays."""
    if tree and not isinstance(tree, dict):
        raise _wrong(
            part, hook, f"gives {type(tree).__name__}", expected="a tree, such as {'c': c}"
        )
    for name, t in (tree or {}).items():
        if not isinstance(t, Tensor | dict | tuple):
            found = f"gives {type(t).__name__} for {name!r}"
            raise _wrong(part, hook, found, expected="a tensor, such as torch.tensor(3.0)")
    return tree


def returned_pair(part: Part, hook: str, call: Callable[..., Any], *inputs: Any) -> tuple[Any, Any]:
    """The two trees that a hook returns for these inputs. An error in it names part and hook; raises `UnalikeError` for no pair."""
    with errors_name_hook(part, hook):
        result = call(*inputs)
    return check_pair(part, hook, result)


def check_weights(part: Part, hook: str, value: Any, count: int) -> Tensor:
    """`value`, if it is a weight for each of `count` client updates; finiteness is checked later, in the result."""
    if not isinstance(value, Tensor) or value.shape != (count,):
        kind = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise _wrong(
            part,
            hook,
            found=f"gives {kind}",
            expected=f"a tensor of shape [{count}], one weight for each client update",
        )
    negative = value < 0
    if bool(negative.any()):
        least = value[negative].min().item()
        raise _wrong(part, hook, f"gives a weight of {least:g}", expected="0 or more")
    return value


@contextmanager
def untouched(method: object, values: Tree, round: int) -> Iterator[None]:
    """Raise `UnalikeError` where one of the server's `values` is written over while the block runs.

    Contents are compared in the first rounds alone, since they take as long as reading all `values`.
    """

    def error(what: str) -> UnalikeError:
        return UnalikeError(
            f"a part of {method!r} writes over {what}, which the server still has; expected new tensors, w + d instead of w.add_(d)"
        )

    mark = _content if round < WATCHED_ROUNDS else _version
    with _watched({"server.params": values}, error, mark):
        yield


@contextmanager
def inputs_unchanged(part: Part, hook: str, view: Any, *batches: Batch) -> Iterator[None]:
    """Raise `UnalikeError` where a hook writes over a tensor, or a name of a tree, of those that its view and batches show.

    A round may show the same tensor to several hooks and clients, so executors would differ. Only the first rounds are watched: a
    hook does in each round what it does there.
    """
    if view.round >= WATCHED_ROUNDS:
        yield
        return
    shown = _shown_trees(view)
    for batch in batches:
        tensors = {"x": batch.x, "y": batch.y}
        shown["batch"] = {name: t for name, t in tensors.items() if isinstance(t, Tensor)}

    def error(what: str) -> UnalikeError:
        expected = "a new tensor or tree, such as t + d instead of t += d, and state | {'c': c} instead of state['c'] = c"
        return _wrong(part, hook, f"writes over {what}", expected)

    with _watched(shown, error, _content):
        yield


@contextmanager
def _watched(
    shown: dict[str, Tree], error: Callable[[str], UnalikeError], mark: Callable[[Tensor], object]
) -> Iterator[None]:
    """Raise the error about what is written over in these trees while the block runs: a tensor, by its `mark`, or a name of one."""
    before = []
    for title, tree in shown.items():
        before += [(title, name, t, mark(t)) for name, t in tree.items()]
    sizes = {title: len(tree) for title, tree in shown.items()}
    yield
    for title, name, t, marked in before:
        if mark(t) != marked or shown[title].get(name) is not t:
            raise error(f"{title}[{name!r}]")
    for title, size in sizes.items():
        if len(shown[title]) != size:
            raise error(title)


def _shown_trees(view: Any) -> dict[str, Tree]:
    """The trees of a view of a client or of the server, by what a hook calls them."""
    if isinstance(view, ServerView):
        return {"server.state": view.state, "server.params": view.params}
    shown = {
        "client.state": view.state,
        "client.message": view.message,
        "client.params": view.params,
        "client.received_params": view.received_params,
        "client.initial_params": view.initial_params,
        "client.buffers": view.buffers,
        "client.initial_buffers": view.initial_buffers,
    }
    for name, fact in view.context.items():
        shown[f"client.context[{name!r}]"] = fact
    return shown


def _version(t: Tensor) -> int:
    """The number of times that a tensor was written over. Under `torch.vmap` only the tensor of all clients counts it."""
    while is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    return t._version


def _content(t: Tensor) -> tuple[int, float]:
    """The version of a tensor, and its sum, since torch does not count writes by `.data` and `.numpy()`.

    Under `torch.vmap` both ways of writing are refused, and on an accelerator the sum would wait for it: there it is 0.
    """
    if is_functorch_wrapped_tensor(t) or t.device.type != "cpu":
        return _version(t), 0.0
    return _version(t), t.detach().sum(dtype=torch.float64).nan_to_num().item()


def _wrong(part: Part, hook: str, found: str, expected: str) -> UnalikeError:
    return UnalikeError(f"{part.name}.{hook} {found}; expected {expected}")


def _type_and_shape(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
