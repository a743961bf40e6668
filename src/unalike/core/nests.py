"""Functions of nests: dictionaries, named tuples and tensors inside each other, such as a client update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

Nest = TypeVar("Nest")


def map_tensors(function: Callable[[Tensor], Tensor], nest: Nest) -> Nest:
    """`function` of every tensor in a nest of reports, drawers and trees."""
    if isinstance(nest, Tensor):
        return function(nest)  # type: ignore[return-value]
    if isinstance(nest, dict):
        return {name: map_tensors(function, value) for name, value in nest.items()}  # type: ignore[return-value]
    return type(nest)(*(map_tensors(function, field) for field in nest))  # type: ignore[attr-defined]


def tensors_of(nest: Any) -> list[Tensor]:
    """The tensors of a nest, in the order in which `map_tensors` comes to them."""
    found: list[Tensor] = []

    def take(t: Tensor) -> Tensor:
        found.append(t)
        return t

    map_tensors(take, nest)
    return found


def join_nests(values: Sequence[Any], how: Callable[[list[Tensor]], Tensor]) -> Any:
    """Equal nests of reports, drawers and trees as one, their tensors joined by `torch.stack` or `torch.cat`."""
    first = values[0]
    if isinstance(first, Tensor):
        return how(list(values))
    if isinstance(first, dict):
        return {name: join_nests([v[name] for v in values], how) for name in first}
    return type(first)(*(join_nests(fields, how) for fields in zip(*values, strict=True)))


def select_rows(nest: Nest, keep: Tensor) -> Nest:
    """Some rows of stacked tensors."""
    return map_tensors(lambda t: t[keep.to(t.device)], nest)
