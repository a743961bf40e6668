"""The inputs of samples: one tensor [N, ...], or a tree of tensors (tuples and dictionaries) with N rows each.

Code that handles samples of any kind goes through these functions; one tensor takes the first branch of each and costs nothing
more. Code for images or tables alone, and compiled loops, ask `is_one_tensor` first. Where only the number of samples or their
device is wanted, the labels tell it.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike.core.nests import join_nests, map_tensors, tensors_of

Inputs = Any
"""A tensor [N, ...], or a tuple or dictionary of such, however deep. A model is called with it as it is.

The names of a dictionary are in alphabetical order, so that all who have the same arrays have the same tree.
"""
ARRAY_PATTERN = re.compile(r"(float32|int64) \[[1-9]\d*(, [1-9]\d*)*\]")
"""A tensor in the layout of a tree: its type and the lengths of one sample."""


def is_one_tensor(x: Inputs) -> bool:
    """Whether the inputs are one tensor."""
    return isinstance(x, Tensor)


def one_tensor(x: Inputs, owner: str) -> Tensor:
    """The inputs, which are one tensor. Raises `UnalikeError`, in the name of `owner`, for a tree."""
    if not isinstance(x, Tensor):
        raise UnalikeError(
            f"{owner} is defined for samples of one array, found {layout_of(x)}; leave it out, or join the arrays to one "
            f"({Limit.INPUTS})"
        )
    return x


def map_inputs(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The inputs with `function` applied to every tensor."""
    return function(x) if isinstance(x, Tensor) else map_tensors(function, x)


def take_rows(x: Inputs, index: Tensor) -> Inputs:
    """The rows `index` [n], on any device, in that order: [n, ...]."""
    return map_inputs(lambda t: t.index_select(0, index.to(t.device)), x)


def first_rows(x: Inputs, count: int) -> Inputs:
    """The first rows, at most `count`."""
    return map_inputs(lambda t: t[:count], x)


def split_rows(x: Inputs, sizes: int | list[int]) -> Sequence[Inputs]:
    """The rows cut into pieces of these sizes, as `torch.split` does."""
    if isinstance(x, Tensor):
        return x.split(sizes)
    pieces = [t.split(sizes) for t in tensors_of(x)]
    # each piece takes the place of its tensor in the tree
    return [_with_tensors(x, tensors) for tensors in zip(*pieces, strict=True)]


def join_rows(parts: Sequence[Inputs]) -> Inputs:
    """The rows of several inputs, one after the other."""
    return join_nests(parts, torch.cat)


def row_count(x: Inputs) -> int:
    """The number of rows N."""
    return len(x) if isinstance(x, Tensor) else len(tensors_of(x)[0])


def sample_bytes(x: Inputs) -> int:
    """Bytes of one sample."""
    return sum(t.shape[1:].numel() * t.element_size() for t in tensors_of(x))


def sample_shape(x: Inputs) -> tuple[Any, ...]:
    """The shape of one sample; of a tree, that of each of its tensors."""
    if isinstance(x, Tensor):
        return tuple(x.shape[1:])
    return tuple(tuple(t.shape[1:]) for t in tensors_of(x))


def tensors_by_place(x: Inputs, place: str = "x") -> dict[str, Tensor]:
    """The tensors by their places: `x` of one tensor, `x['image']` of a dictionary, `x[0]` of a tuple."""
    if isinstance(x, Tensor):
        return {place: x}
    tensors: dict[str, Tensor] = {}
    for key, branch in x.items() if isinstance(x, dict) else enumerate(x):
        tensors |= tensors_by_place(branch, f"{place}[{key!r}]")
    return tensors


def with_tensors_by_place(x: Inputs, tensors: dict[str, Tensor]) -> Inputs:
    """The tree `x` with other tensors, which are given by its places."""
    return _with_tensors(x, [tensors[place] for place in tensors_by_place(x)])


def layout_of(x: Inputs) -> Any:
    """The shape of one sample in plain values, for files and messages.

    Of one tensor its lengths, [1, 28, 28]; a tree has the type and the lengths in the place of each tensor, as
    {"image": "float32 [1, 28, 28]", "tokens": "int64 [20]"}; a tuple is a list.
    """
    return list(x.shape[1:]) if isinstance(x, Tensor) else _layout_of_tree(x)


def is_layout_of_one_tensor(layout: Any) -> bool:
    """Whether samples of this layout are one tensor."""
    return isinstance(layout, list) and all(isinstance(length, int) for length in layout)


def check_layout_of_tree(layout: Any, place: str = "x") -> None:
    """Raise `ValueError`, with the place of the fault, for what is no layout of several tensors."""
    if isinstance(layout, str) and ARRAY_PATTERN.fullmatch(layout):
        return
    branches: dict[Any, Any] = {}
    if isinstance(layout, dict):
        branches = layout
    elif isinstance(layout, list | tuple):
        branches = dict(enumerate(layout))
    if not branches:
        raise ValueError(
            f"found {layout!r} at {place}; expected the type and the lengths of an array, such as 'float32 [1, 28, 28]' or "
            "'int64 [20]', or arrays by their names"
        )
    for key, branch in branches.items():
        check_layout_of_tree(branch, f"{place}[{key!r}]")


def zeros_of(layout: Any, count: int) -> Inputs:
    """Samples of zeros with this layout; one tensor is of floats."""
    if is_layout_of_one_tensor(layout):
        return torch.zeros(count, *layout)
    if isinstance(layout, dict):
        return {name: zeros_of(layout[name], count) for name in sorted(layout)}
    if isinstance(layout, list):
        return tuple(zeros_of(branch, count) for branch in layout)
    kind, _, lengths = layout.partition(" ")
    return torch.zeros(count, *json.loads(lengths), dtype=getattr(torch, kind))


def _layout_of_tree(x: Inputs) -> Any:
    """`layout_of`, with the type of each tensor."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape[1:])}"
    if isinstance(x, dict):
        return {name: _layout_of_tree(branch) for name, branch in x.items()}
    return [_layout_of_tree(branch) for branch in x]


def _with_tensors(x: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """The tree with other tensors, in the order of `tensors_of`."""
    remaining = iter(tensors)
    return map_tensors(lambda _: next(remaining), x)
