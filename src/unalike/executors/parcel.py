"""Nests of plain values and tensors as two buffers of bytes: what processes of a team tell each other. Nothing is ever executed."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

NESTED = (Tensor, dict, list, tuple)
ALIGNED = 64
"""Every tensor starts at a multiple of so many bytes."""


def packed(nest: Any) -> tuple[Tensor, Tensor]:
    """Header and body, uint8 vectors. A nest is made of dicts, lists, tensors, strings, numbers, booleans and None."""
    tensors: list[Tensor] = []
    plan = _plan(nest, tensors)
    kinds = [(str(t.dtype).removeprefix("torch."), list(t.shape)) for t in tensors]
    header = json.dumps([plan, kinds]).encode()
    sizes = [_room(t.numel() * t.element_size()) for t in tensors]
    body = torch.empty(sum(sizes), dtype=torch.uint8)
    for part, t in zip(body.split(sizes), tensors, strict=True):
        part[: t.numel() * t.element_size()].view(t.dtype).copy_(t.reshape(-1)) if t.numel() else None
    return torch.frombuffer(bytearray(header), dtype=torch.uint8), body


def unpacked(header: Tensor, body: Tensor) -> Any:
    """The nest again; its tensors share the memory of `body`."""
    plan, kinds = json.loads(bytes(header.numpy()))
    tensors, start = [], 0
    for name, shape in kinds:
        dtype = getattr(torch, name)
        size = torch.Size(shape).numel() * dtype.itemsize
        tensors.append(body[start : start + size].view(dtype).reshape(shape))
        start += _room(size)
    return _nest(plan, tensors)


def _plan(nest: Any, tensors: list[Tensor]) -> Any:
    if isinstance(nest, Tensor):
        tensors.append(nest.detach().cpu())
        return {"t": len(tensors) - 1}
    if isinstance(nest, dict):
        return {"d": [[key, _plan(value, tensors)] for key, value in nest.items()]}
    if isinstance(nest, list | tuple) and any(isinstance(value, NESTED) for value in nest):
        return {"l": [_plan(value, tensors) for value in nest]}
    return {"v": nest}


def _nest(plan: Any, tensors: list[Tensor]) -> Any:
    [(kind, value)] = plan.items()
    if kind == "t":
        return tensors[value]
    if kind == "d":
        return {key: _nest(inner, tensors) for key, inner in value}
    if kind == "l":
        return [_nest(inner, tensors) for inner in value]
    return value


def _room(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
