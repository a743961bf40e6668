"""Functions on nests: tensors inside dictionaries, tuples and named tuples, such as a `ClientUpdate`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Nest = TypeVar("Nest")


def map_tensors(function: Callable[[Tensor], Tensor], nest: Nest) -> Nest:
    """The nest with `function` applied to every tensor."""
    if isinstance(nest, Tensor):
        return function(nest)  # type: ignore[return-value]
    if isinstance(nest, dict):
        return {name: map_tensors(function, value) for name, value in nest.items()}  # type: ignore[return-value]
    return _like(nest, [map_tensors(function, field) for field in nest])  # type: ignore[attr-defined]


def tensors_of(nest: Any) -> list[Tensor]:
    """The tensors of a nest, in the order of `map_tensors`."""
    if isinstance(nest, Tensor):
        return [nest]
    values = nest.values() if isinstance(nest, dict) else nest
    return [t for value in values for t in tensors_of(value)]


def join_nests(values: Sequence[Any], how: Callable[[list[Tensor]], Tensor]) -> Any:
    """Nests of equal structure as one: each list of tensors is joined by `how` (`torch.stack` or `torch.cat`)."""
    first = values[0]
    if isinstance(first, Tensor):
        return how(list(values))
    if isinstance(first, dict):
        joined = {}
        for name in first:
            joined[name] = join_nests([value[name] for value in values], how)
        return joined
    fields = [join_nests(field, how) for field in zip(*values, strict=True)]
    return _like(first, fields)


def _like(nest: Any, fields: Sequence[Any]) -> Any:
    """A tuple or named tuple of the type of `nest` with these fields."""
    return type(nest)(*fields) if hasattr(nest, "_fields") else type(nest)(fields)


def select_rows(nest: Nest, keep: Tensor) -> Nest:
    """The rows `keep` [k] of stacked tensors."""
    return map_tensors(lambda t: t[keep.to(t.device)], nest)


def index_of(rows: list[int]) -> Tensor | slice:
    """An index of these rows; a slice if they are consecutive, which is faster."""
    first = rows[0]
    after_last = first + len(rows)
    if rows == [*range(first, after_last)]:
        return slice(first, after_last)
    return torch.tensor(rows)
