"""The codec of plain values and tensors, decoded under limits. Nothing is unpickled, decompressed or executed.

A header in JSON states what follows: {"facts": {...}, "tensors": [[name, dtype, shape], ...]}. The data are the tensors' bytes in
the header's order. There are no offsets that could be wrong, and a tensor's size in bytes follows from its type and shape. All of
this is checked before any memory is allocated for tensors. There are two forms:

- a message, as in a federation (`pack`, `unpack`): length of the header (8 bytes, little endian), header, data.
- pieces, as between worker processes (`to_pieces`, `from_pieces`): length of the header, header, and vectors of bytes. Small
  tensors share a piece. A large one is a piece of its own and is sent from its own memory, so that nothing is copied, and the
  receiver can free one layer after the other.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

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

NESTED = (Tensor, dict, list, tuple)
ALIGNED = 64
"""Every tensor of a piece starts at a multiple of so many bytes."""
SHARED = 2**18
"""Bytes of the largest piece that several tensors share."""


class Malformed(UnalikeError):
    """Bytes that are not a valid message: truncated, oversized, forged or meaningless."""


@dataclass(frozen=True)
class Limits:
    """Maximum `bytes` of all tensors, or of a message; of its header; number of tensors, of dimensions, and length of a name."""

    bytes: int = 2**30
    header: int = 2**20
    tensors: int = 10_000
    dimensions: int = 8
    name: int = 512


BETWEEN_PROCESSES = Limits(bytes=2**43, header=2**31, tensors=2**24, dimensions=64)
"""Limits between the processes of one run, which trust each other: those of the largest machines."""


class TensorEntry(NamedTuple):
    """A tensor as a header states it; `nbytes` follows from type and shape."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    nbytes: int


def pack(facts: Facts, tensors: Tree) -> bytes:
    """Encode facts (JSON without NaN and infinities) and tensors. Equal contents give equal bytes."""
    header = _header(facts, tensors, allow_nan=False)
    return b"".join(
        [
            len(header).to_bytes(8, "little"),
            header,
            *(_raw(t).numpy().data for t in tensors.values()),
        ]
    )


def unpack(data: bytes | memoryview, limits: Limits = Limits()) -> tuple[Facts, Tree]:
    """Decode what `pack` encoded. Raises `Malformed` for anything else, before memory is allocated for it."""
    if len(data) > limits.bytes:
        raise Malformed(f"{len(data)} bytes; expected at most {limits.bytes}")
    if len(data) < 8:
        raise Malformed(f"{len(data)} bytes; expected at least the 8 of a length")
    length = int.from_bytes(data[:8], "little")
    if length > min(limits.header, len(data) - 8):
        raise Malformed(
            f"a header of {length} bytes; expected at most {min(limits.header, len(data) - 8)}"
        )
    facts, entries = _read_header(read_json(bytes(data[8 : 8 + length])), limits)
    start, declared = 8 + length, sum(entry.nbytes for entry in entries)
    if declared != len(data) - start:
        raise Malformed(
            f"tensors of {str(declared)[:40]} bytes in {len(data) - start} bytes of data"
        )
    whole, tensors = memoryview(data), Tree()
    for entry in entries:
        part = bytearray(whole[start : start + entry.nbytes])
        tensors[entry.name] = _tensor(
            torch.frombuffer(part, dtype=torch.uint8) if part else _nothing(), entry
        )
        start += entry.nbytes
    return facts, tensors


def checksum(tensors: Tree) -> str:
    """Digest of the tensors' names, types, shapes and values; "" if there are none."""
    return hashlib.sha256(pack({}, tensors)).hexdigest() if tensors else ""


def to_pieces(nest: Any, device: torch.device | None = None) -> Iterator[Tensor]:
    """The vectors of a nest: length of the header, header, pieces on the `device` of what lies there, else on the CPU.

    A nest is made of dicts, lists, tensors, strings, numbers, booleans and None.
    """
    tensors: list[Tensor] = []
    plan = _plan(nest, tensors)
    on_device = [t.device == device for t in tensors]
    header = _header(
        {"nest": plan, "on_device": on_device},
        {str(i): t for i, t in enumerate(tensors)},
        allow_nan=True,
    )
    yield torch.tensor([len(header)])
    yield torch.frombuffer(bytearray(header), dtype=torch.uint8)
    for places in _places([t.nbytes for t in tensors], on_device):
        yield _piece([tensors[i] for i in places], device)


def from_pieces(take: Callable[[Tensor], None], device: torch.device | None = None) -> Any:
    """The nest again. Raises `Malformed` for a header that is beyond the limits, before memory is allocated for what it states.

    `take` writes the next vector into the one that it is given, on the `device` if the piece was on its sender's. Tensors share the
    memory of their piece.
    """
    take(length := torch.empty(1, dtype=torch.int64))
    if not 0 < int(length) <= BETWEEN_PROCESSES.header:
        raise Malformed(
            f"a header of {int(length)} bytes; expected at most {BETWEEN_PROCESSES.header}"
        )
    take(header := torch.empty(int(length), dtype=torch.uint8))
    facts, entries = _read_header(json.loads(header.numpy().tobytes()), BETWEEN_PROCESSES)
    sizes, on_device, tensors = (
        [entry.nbytes for entry in entries],
        facts["on_device"],
        list[Tensor](),
    )
    for places in _places(sizes, on_device):
        starts = _starts([sizes[i] for i in places])
        take(
            piece := torch.empty(
                starts[-1], dtype=torch.uint8, device=device if on_device[places[0]] else None
            )
        )
        tensors += [
            _tensor(piece[at : at + sizes[i]], entries[i])
            for i, at in zip(places, starts, strict=False)
        ]
    return _nest(facts["nest"], tensors)


# The header.


def _header(facts: Facts, tensors: Mapping[str, Tensor], allow_nan: bool) -> bytes:
    rows = [[name, NAMES[t.dtype], list(t.shape)] for name, t in tensors.items()]
    return json.dumps(
        {"facts": facts, "tensors": rows}, allow_nan=allow_nan, separators=(",", ":")
    ).encode()


def _read_header(header: Any, limits: Limits) -> tuple[Facts, list[TensorEntry]]:
    facts, rows = header.get("facts"), header.get("tensors")
    if (
        set(header) != {"facts", "tensors"}
        or not isinstance(facts, dict)
        or not isinstance(rows, list)
    ):
        raise Malformed("the header is not an object of `facts` and `tensors`")
    if len(rows) > limits.tensors:
        raise Malformed(f"{len(rows)} tensors; expected at most {limits.tensors}")
    entries = [_entry(row, limits) for row in rows]
    if len({entry.name for entry in entries}) < len(entries):
        raise Malformed("two tensors have one name")
    if sum(entry.nbytes for entry in entries) > limits.bytes:
        raise Malformed(f"tensors of more than {limits.bytes} bytes")
    return facts, entries


def read_json(data: bytes) -> Facts:
    """Decode a JSON object. NaN, infinities, repeated names and invalid Unicode are refused. Raises `Malformed`."""
    try:
        found = json.loads(
            data, parse_constant=_constant, object_pairs_hook=_object, parse_float=_float
        )
        json.dumps(
            found, ensure_ascii=False
        ).encode()  # raises for half a surrogate pair, which no table can store
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


def _entry(row: Any, limits: Limits) -> TensorEntry:
    """The entry of a tensor, checked against the limits."""
    if not isinstance(row, list) or len(row) != 3:
        raise Malformed("a tensor's entry is not [name, dtype, shape]")
    name, kind, shape = row
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= limits.name
        or not (name.isascii() and name.isprintable())
    ):
        raise Malformed(
            f"a tensor's name {str(name)[:80]!a}; expected 1 to {limits.name} printable ASCII characters"
        )
    if not isinstance(kind, str) or kind not in DTYPES:
        raise Malformed(
            f"tensor {name!r} of type {str(kind)[:40]!a}; expected one of {', '.join(DTYPES)}"
        )
    if not isinstance(shape, list) or len(shape) > limits.dimensions:
        raise Malformed(
            f"tensor {name!r} without a shape of at most {limits.dimensions} dimensions"
        )
    if not all(type(n) is int and 0 <= n <= limits.bytes for n in shape):
        raise Malformed(
            f"tensor {name!r} of a shape that is no list of sizes from 0 to {limits.bytes}"
        )
    if (
        math.prod(n or 1 for n in shape) > limits.bytes
    ):  # torch also multiplies the sizes of an empty tensor
        raise Malformed(
            f"tensor {name!r} of a shape whose sizes multiply to more than {limits.bytes}"
        )
    return TensorEntry(name, DTYPES[kind], shape, math.prod(shape) * DTYPES[kind].itemsize)


# Tensors as bytes.


def _raw(t: Tensor, device: torch.device | None = None) -> Tensor:
    """The bytes of a tensor [nbytes], on the `device` if it is there, else on the CPU; without a copy where possible."""
    t = (t.detach() if t.device == device else t.detach().cpu()).contiguous()
    # of up to one number the strides may be anything, and no view takes those of 0 (NumPy's, and what was expanded)
    return t.as_strided([t.numel()], [1]).view(torch.uint8)


def _tensor(raw: Tensor, entry: TensorEntry) -> Tensor:
    if entry.dtype == torch.bool and bool((raw > 1).any()):
        raise Malformed(f"tensor {entry.name!r} holds bytes that are neither true nor false")
    return raw.view(entry.dtype).reshape(entry.shape)


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


# Nests and pieces.


def _plan(nest: Any, tensors: list[Tensor]) -> Any:
    """The nest as JSON: {"t": a tensor's place}, {"d": a dict's items}, {"l": a list with tensors}, {"v": a plain value}."""
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


def _places(sizes: Sequence[int], on_device: Sequence[bool]) -> list[list[int]]:
    """The tensors of each piece by their places, in order; those on the device share no piece with the others."""
    pieces: list[list[int]] = []
    free = 0
    for place, size in enumerate(sizes):
        if not pieces or size > free or on_device[place] != on_device[place - 1]:
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
        return _raw(tensors[0], device)
    starts = _starts([t.nbytes for t in tensors])
    piece = torch.zeros(
        starts[-1], dtype=torch.uint8, device=device if tensors[0].device == device else None
    )
    for t, start in zip(tensors, starts, strict=False):
        piece[start : start + t.nbytes] = _raw(t, device)
    return piece


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
