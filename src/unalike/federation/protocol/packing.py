"""Codec for facts and tensors, decoded under strict limits. Nothing is unpickled, decompressed or executed.

    length of the header (8 bytes, little endian) | header, JSON: {"facts": {...}, "tensors": [[name, dtype, shape], ...]} | data

The data are the tensors one after the other, in the header's order and without gaps. There are no offsets that could be wrong, and
a tensor's size in bytes follows from its type and shape. All of this is checked before any memory is allocated for tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree

Facts = dict[str, Any]

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Malformed(UnalikeError):
    """Bytes that are not a valid message: truncated, oversized, forged or meaningless."""


@dataclass(frozen=True)
class Limits:
    """Maximum `bytes` of a message and of its header, number of tensors, of dimensions, and length of a name."""

    bytes: int = 2**30
    header: int = 2**20
    tensors: int = 10_000
    dimensions: int = 8
    name: int = 512


def pack(facts: Facts, tensors: Tree) -> bytes:
    """Encode facts (JSON without NaN and infinities) and tensors. Equal contents give equal bytes."""
    rows = [[name, NAMES[t.dtype], list(t.shape)] for name, t in tensors.items()]
    header = json.dumps({"facts": facts, "tensors": rows}, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *map(_bytes, tensors.values())])


def unpack(data: bytes | memoryview, limits: Limits = Limits()) -> tuple[Facts, Tree]:
    """Decode what `pack` encoded. Raises `Malformed` for anything else, before memory is allocated for it."""
    if len(data) > limits.bytes:
        raise Malformed(f"{len(data)} bytes; expected at most {limits.bytes}")
    if len(data) < 8:
        raise Malformed(f"{len(data)} bytes; expected at least the 8 of a length")
    length = int.from_bytes(data[:8], "little")
    if length > min(limits.header, len(data) - 8):
        raise Malformed(f"a header of {length} bytes; expected at most {min(limits.header, len(data) - 8)}")
    header = read_json(bytes(data[8 : 8 + length]))
    facts, rows = header.get("facts"), header.get("tensors")
    if set(header) != {"facts", "tensors"} or not isinstance(facts, dict) or not isinstance(rows, list):
        raise Malformed("the header is not an object of `facts` and `tensors`")
    if len(rows) > limits.tensors:
        raise Malformed(f"{len(rows)} tensors; expected at most {limits.tensors}")
    return facts, _tensors(data, 8 + length, [_row(row, limits) for row in rows])


def read_json(data: bytes) -> Facts:
    """Decode a JSON object. NaN, infinities, repeated names and invalid Unicode are refused. Raises `Malformed`."""
    try:
        found = json.loads(data, parse_constant=_constant, object_pairs_hook=_object, parse_float=_float)
        json.dumps(found, ensure_ascii=False).encode()  # raises for half a surrogate pair, which no table can store
    except (ValueError, RecursionError) as error:
        raise Malformed(f"invalid JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise Malformed(f"JSON of type {type(found).__name__}; expected an object")
    return found


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:40]} is out of range")
    return found


def _object(pairs: list[tuple[str, Any]]) -> Facts:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _row(row: Any, limits: Limits) -> tuple[str, torch.dtype, list[int], int]:
    """The name, type, shape and size in bytes of a tensor, checked against the limits."""
    if not isinstance(row, list) or len(row) != 3:
        raise Malformed("a tensor's entry is not [name, dtype, shape]")
    name, kind, shape = row
    if not isinstance(name, str) or not 0 < len(name) <= limits.name or not (name.isascii() and name.isprintable()):
        raise Malformed(f"a tensor's name {str(name)[:80]!a}; expected 1 to {limits.name} printable ASCII characters")
    if not isinstance(kind, str) or kind not in DTYPES:
        raise Malformed(f"tensor {name!r} of type {str(kind)[:40]!a}; expected one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > limits.dimensions:
        raise Malformed(f"tensor {name!r} without a shape of at most {limits.dimensions} dimensions")
    if not all(type(n) is int and 0 <= n <= limits.bytes for n in shape):
        raise Malformed(f"tensor {name!r} of a shape that is no list of sizes from 0 to {limits.bytes}")
    if math.prod(n or 1 for n in shape) > limits.bytes:  # torch also multiplies the sizes of an empty tensor
        raise Malformed(f"tensor {name!r} of a shape whose sizes multiply to more than {limits.bytes}")
    return name, DTYPES[kind], shape, math.prod(shape) * DTYPES[kind].itemsize


def _tensors(data: bytes | memoryview, start: int, rows: list[tuple[str, torch.dtype, list[int], int]]) -> Tree:
    declared, found = sum(size for *_, size in rows), len(data) - start
    if declared != found:
        raise Malformed(f"tensors of {str(declared)[:40]} bytes in {found} bytes of data")
    if len({name for name, *_ in rows}) < len(rows):
        raise Malformed("two tensors have one name")
    tensors: Tree = {}
    whole = memoryview(data)
    for name, dtype, shape, size in rows:
        values = torch.frombuffer(bytearray(whole[start : start + size]), dtype=torch.uint8) if size else _nothing()
        if dtype == torch.bool and bool((values > 1).any()):
            raise Malformed(f"tensor {name!r} holds bytes that are neither true nor false")
        tensors[name] = values.view(dtype).reshape(shape)
        start += size
    return tensors


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


def checksum(tensors: Tree) -> str:
    """Digest of the tensors' names, types, shapes and values; "" if there are none."""
    return hashlib.sha256(pack({}, tensors)).hexdigest() if tensors else ""


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
