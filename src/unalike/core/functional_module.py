"""A module called with other tensors than its own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from unalike.core.types import Tree


class FunctionalModule:
    """A module called with other parameters and buffers than its own, by several threads at once if need be.

    The same as `torch.func.functional_call`, with the places of the tensors looked up once instead of in every call, which
    matters for small models. Tied tensors have several places. Buffers that the module assigns anew are written to `state`.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._idle: list[_Places] = []

    def __call__(self, state: Tree, x: Tensor, extra: dict[str, Any]) -> Any:
        try:
            mine = self._idle.pop()
        except IndexError:  # the first call, or other threads are calling it
            same = {id(t): t for t in [*self.module.parameters(), *self.module.buffers()]}
            mine = _Places(copy.deepcopy(self.module, same))
        try:
            return mine.call(state, x, extra)
        finally:
            self._idle.append(mine)

    def to(self, device: torch.device | str) -> FunctionalModule:
        return FunctionalModule(copy.deepcopy(self.module).to(device))


class _Places:
    """Where a module keeps its tensors."""

    def __init__(self, module: nn.Module):
        self.module = module
        first: dict[Tensor, str] = {}
        self.places: list[tuple[dict[str, Any], str, str]] = []
        for path, owner in module.named_modules():
            for held in (owner._parameters, owner._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        full = first.setdefault(tensor, f"{path}.{name}" if path else name)
                        self.places.append((held, name, full))
        self.own = [held[name] for held, name, _ in self.places]

    def call(self, state: Tree, x: Tensor, extra: dict[str, Any]) -> Any:
        try:
            for held, name, full in self.places:
                held[name] = state[full]
            result = self.module(x, **extra)
            for held, name, full in self.places:
                state[full] = held[name]
        finally:
            for (held, name, _), own in zip(self.places, self.own, strict=True):
                held[name] = own
        return result
