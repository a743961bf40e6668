"""Call a module with parameters and buffers given by name."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from unalike.core.inputs import Inputs
from unalike.core.types import Tree


class FunctionalModule:
    """`torch.func.functional_call` for one module, faster and safe for several threads at once.

    The places of the tensors are looked up once instead of in every call, which matters for small models. Tied tensors have
    several places. Buffers that the module assigns anew are written to `state`. Each thread calls a copy of its own.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._idle: list[_Places] = []

    def __call__(self, state: Tree, x: Inputs, extra: dict[str, Any]) -> Any:
        # a copy without work; `pop` is safe between threads, a look at the list before it would not be
        try:
            places = self._idle.pop()
        except IndexError:
            places = self._new_places()
        try:
            return places.call(state, x, extra)
        finally:
            self._idle.append(places)

    def to(self, device: torch.device | str) -> FunctionalModule:
        """The same module on another device."""
        return FunctionalModule(copy.deepcopy(self.module).to(device))

    def _new_places(self) -> _Places:
        """Another copy of the module, which shares its parameters and buffers."""
        shared = {id(t): t for t in [*self.module.parameters(), *self.module.buffers()]}
        return _Places(copy.deepcopy(self.module, shared))


class _Places:
    """The dictionaries in which a module and its submodules hold their parameters and buffers.

    A place is such a dictionary, the tensor's name in it, and its name in a state.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        first_name: dict[Tensor, str] = {}
        self.places: list[tuple[dict[str, Any], str, str]] = []
        for path, owner in module.named_modules():
            prefix = f"{path}." if path else ""
            for tensors in (owner._parameters, owner._buffers):
                for name, tensor in tensors.items():
                    if tensor is None:
                        continue
                    # a tied tensor is in a state by the first of its names
                    name_in_state = first_name.setdefault(tensor, prefix + name)
                    self.places.append((tensors, name, name_in_state))
        self.module_tensors = [tensors[name] for tensors, name, _ in self.places]

    def call(self, state: Tree, x: Inputs, extra: dict[str, Any]) -> Any:
        """The result of the module with the tensors of `state`, into which what it assigns anew is written."""
        try:
            for tensors, name, name_in_state in self.places:
                tensors[name] = state[name_in_state]
            result = self.module(x, **extra)
            for tensors, name, name_in_state in self.places:
                state[name_in_state] = tensors[name]
        finally:
            # the module holds on to no tensor of a state, also after an error
            for (tensors, name, _), tensor in zip(self.places, self.module_tensors, strict=True):
                tensors[name] = tensor
        return result
