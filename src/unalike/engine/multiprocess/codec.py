"""The encoding of messages between worker processes: nests of plain values and tensors as vectors of bytes, without pickle.

A nest travels as a header and pieces. Small tensors share a piece. A large tensor is a piece of its own and is sent from its own
memory, so that nothing is copied, and the receiver can free one layer after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

NESTED = (Tensor, dict, list, tuple)
ALIGNED = 64
"""Every tensor of a piece starts at a multiple of so many bytes."""
SHARED = 2**18
"""Bytes of the largest piece that several tensors share."""


def packed(nest: Any, device: torch.device | None = None) -> tuple[Tensor, Iterator[Tensor]]:
    """Header and pieces, uint8 vectors: on the `device` of what lies there, else on the CPU.

    A nest is made of dicts, lists, tensors, strings, numbers, booleans and None.
    """
    tensors: list[Tensor] = []
    plan = _plan(nest, tensors)
    kinds = [(str(t.dtype).removeprefix("torch."), list(t.shape), t.device == device) for t in tensors]
    header = json.dumps([plan, kinds]).encode()
    shared = _shared([t.nbytes for t in tensors], [there for *_, there in kinds])
    return torch.frombuffer(bytearray(header), dtype=torch.uint8), (
        _piece([tensors[i] for i in s], device) for s in shared
    )


def unpacked(header: Tensor, take: Callable[[Tensor], None], device: torch.device | None = None) -> Any:
    """The nest again; `take` writes the next piece into the vector that it is given, on the `device` if the piece was on its
    sender's. Tensors share the memory of their piece."""
    plan, kinds = json.loads(bytes(header.numpy()))
    sizes, tensors = [_size(name, shape) for name, shape, _ in kinds], []
    for shared in _shared(sizes, [there for *_, there in kinds]):
        starts = _starts([sizes[i] for i in shared])
        take(piece := torch.empty(starts[-1], dtype=torch.uint8, device=device if kinds[shared[0]][2] else None))
        for place, start in zip(shared, starts, strict=False):
            name, shape, _ = kinds[place]
            tensors.append(piece[start : start + sizes[place]].view(getattr(torch, name)).reshape(shape))
    return _nest(plan, tensors)


def _shared(sizes: Sequence[int], there: Sequence[bool]) -> list[list[int]]:
    """The tensor indices of each piece, in order; tensors on the device (`there`) share no piece with the others."""
    pieces: list[list[int]] = []
    free = 0
    for place, size in enumerate(sizes):
        if not pieces or size > free or there[place] != there[place - 1]:
            pieces.append([])
            free = SHARED
        pieces[-1].append(place)
        free -= _aligned(size)
    return pieces


def _starts(sizes: Sequence[int]) -> list[int]:
    """Offsets of tensors of these sizes in their piece, and the end of the last one."""
    starts = [*accumulate(map(_aligned, sizes), initial=0)]
    return [*starts[:-1], starts[-2] + sizes[-1]]


def _piece(tensors: Sequence[Tensor], device: torch.device | None) -> Tensor:
    if len(tensors) == 1:
        return _bytes(tensors[0], device)
    starts = _starts([t.nbytes for t in tensors])
    piece = torch.zeros(starts[-1], dtype=torch.uint8, device=device if tensors[0].device == device else None)
    for t, start in zip(tensors, starts, strict=False):
        piece[start : start + t.nbytes] = _bytes(t, device)
    return piece


def _bytes(t: Tensor, device: torch.device | None) -> Tensor:
    t = (t.detach() if t.device == device else t.detach().cpu()).contiguous()
    # of up to one number the strides may be anything, and no view takes those of 0 (NumPy's, and what was expanded)
    return t.as_strided([t.numel()], [1]).view(torch.uint8)


def _size(name: str, shape: list[int]) -> int:
    size: int = torch.Size(shape).numel() * getattr(torch, name).itemsize
    return size


def _plan(nest: Any, tensors: list[Tensor]) -> Any:
    if isinstance(nest, Tensor):
        tensors.append(nest)
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


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
