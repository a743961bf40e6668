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
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

LENGTH_BYTES = 8
"""Size of the number at the beginning of a message: the length of its header."""

NESTED_TYPES = (Tensor, dict, list, tuple)
"""Types of the items for which a list is written item by item."""

ALIGNMENT_BYTES = 64
"""Every tensor of a piece starts at a multiple of so many bytes."""
SHARED_PIECE_BYTES = 2**18
"""The largest piece that several tensors share."""


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
    length = len(header).to_bytes(LENGTH_BYTES, "little")
    data = [_raw(t).numpy().data for t in tensors.values()]
    return b"".join([length, header, *data])


def unpack(data: bytes | memoryview, limits: Limits = Limits()) -> tuple[Facts, Tree]:
    """Decode what `pack` encoded. Raises `Malformed` for anything else, before memory is allocated for it."""
    if len(data) > limits.bytes:
        raise Malformed(f"{len(data)} bytes; expected at most {limits.bytes}")
    if len(data) < LENGTH_BYTES:
        raise Malformed(f"{len(data)} bytes; expected at least the {LENGTH_BYTES} of a length")
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    max_length = min(limits.header, len(data) - LENGTH_BYTES)
    if length > max_length:
        raise Malformed(f"a header of {length} bytes; expected at most {max_length}")

    # the header is checked as a whole before the first tensor is made
    start = LENGTH_BYTES + length
    header = read_json(bytes(data[LENGTH_BYTES:start]))
    facts, entries = _read_header(header, limits)
    declared = sum(entry.nbytes for entry in entries)
    if declared != len(data) - start:
        raise Malformed(
            f"tensors of {str(declared)[:40]} bytes in {len(data) - start} bytes of data"
        )

    # every tensor gets memory of its own, so that none of them keeps the whole message alive
    whole = memoryview(data)
    tensors: Tree = {}
    for entry in entries:
        stop = start + entry.nbytes
        raw = _bytes_as_tensor(bytearray(whole[start:stop]))
        tensors[entry.name] = _tensor(raw, entry)
        start = stop
    return facts, tensors


def checksum(tensors: Tree) -> str:
    """Digest of the tensors' names, types, shapes and values; "" if there are none."""
    if not tensors:
        return ""
    return hashlib.sha256(pack({}, tensors)).hexdigest()


def to_pieces(nest: Any, device: torch.device | None = None) -> Iterator[Tensor]:
    """The vectors of a nest: length of the header, header, pieces on the `device` of what lies there, else on the CPU.

    A nest is made of dicts, lists, tensors, strings, numbers, booleans and None.
    """
    # the header says how the nest is made, and its tensors are numbered
    tensors: list[Tensor] = []
    structure = _structure(nest, tensors)
    on_device = [t.device == device for t in tensors]
    facts = {"nest": structure, "on_device": on_device}
    numbered = {str(i): t for i, t in enumerate(tensors)}
    header = _header(facts, numbered, allow_nan=True)
    yield torch.tensor([len(header)])
    yield torch.frombuffer(bytearray(header), dtype=torch.uint8)

    # the receiver derives the same pieces from the sizes in the header
    sizes = [t.nbytes for t in tensors]
    for places in _pieces(sizes, on_device):
        yield _piece([tensors[i] for i in places], device)


def from_pieces(take: Callable[[Tensor], None], device: torch.device | None = None) -> Any:
    """The nest again. Raises `Malformed` for a header that is beyond the limits, before memory is allocated for what it states.

    `take` writes the next vector into the one that it is given, on the `device` if the piece was on its sender's. Tensors share the
    memory of their piece.
    """
    length_vector = torch.empty(1, dtype=torch.int64)
    take(length_vector)
    length = int(length_vector)
    if not 0 < length <= BETWEEN_PROCESSES.header:
        raise Malformed(f"a header of {length} bytes; expected at most {BETWEEN_PROCESSES.header}")
    header = torch.empty(length, dtype=torch.uint8)
    take(header)
    facts, entries = _read_header(json.loads(header.numpy().tobytes()), BETWEEN_PROCESSES)

    # the pieces follow from the sizes, as at the sender; the tensors are views of them
    on_device = facts["on_device"]
    sizes = [entry.nbytes for entry in entries]
    tensors: list[Tensor] = []
    for places in _pieces(sizes, on_device):
        *starts, end = _offsets([sizes[i] for i in places])
        piece_device = device if on_device[places[0]] else None
        piece = torch.empty(end, dtype=torch.uint8, device=piece_device)
        take(piece)
        for i, start in zip(places, starts, strict=True):
            raw = piece[start : start + sizes[i]]
            tensors.append(_tensor(raw, entries[i]))
    return _nest(facts["nest"], tensors)


# The header.


def _header(facts: Facts, tensors: Mapping[str, Tensor], allow_nan: bool) -> bytes:
    rows = [[name, DTYPE_NAMES[t.dtype], list(t.shape)] for name, t in tensors.items()]
    header = {"facts": facts, "tensors": rows}
    return json.dumps(header, allow_nan=allow_nan, separators=(",", ":")).encode()


def _read_header(header: Any, limits: Limits) -> tuple[Facts, list[TensorEntry]]:
    """Facts and entries of a header that was read as JSON. Raises `Malformed` for what is beyond the limits."""
    facts = header.get("facts")
    rows = header.get("tensors")
    has_both = isinstance(facts, dict) and isinstance(rows, list)
    if not has_both or set(header) != {"facts", "tensors"}:
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
        value = json.loads(
            data,
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
            parse_float=_finite_float,
        )
        # raises for half a surrogate pair, which no table can store
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(f"invalid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise Malformed(f"JSON of type {type(value).__name__}; expected an object")
    return value


def _refuse_constant(text: str) -> NoReturn:
    """Refuse NaN and infinities, which Python reads as an extension of JSON."""
    raise ValueError(f"{text} is not a number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is out of range")
    return number


def _object(pairs: list[tuple[str, Any]]) -> Facts:
    """A JSON object of these pairs. Raises `ValueError` for a repeated name, of which Python keeps the last value alone."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _entry(row: Any, limits: Limits) -> TensorEntry:
    """The entry of a tensor, checked against the limits."""
    if not isinstance(row, list) or len(row) != 3:
        raise Malformed("a tensor's entry is not [name, dtype, shape]")
    name, kind, shape = row
    if not _is_valid_name(name, limits):
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
    # without the zeros: torch also multiplies the other sizes of an empty tensor
    if math.prod(n or 1 for n in shape) > limits.bytes:
        raise Malformed(
            f"tensor {name!r} of a shape whose sizes multiply to more than {limits.bytes}"
        )
    dtype = DTYPES[kind]
    return TensorEntry(name, dtype, shape, nbytes=math.prod(shape) * dtype.itemsize)


def _is_valid_name(name: Any, limits: Limits) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= limits.name:
        return False
    return name.isascii() and name.isprintable()


# Tensors as bytes.


def _raw(t: Tensor, device: torch.device | None = None) -> Tensor:
    """The bytes of a tensor [nbytes], on the `device` if it is there, else on the CPU; without a copy where possible."""
    t = t.detach()
    if t.device != device:
        t = t.cpu()
    t = t.contiguous()
    # of up to one number the strides may be anything, and no view takes those of 0 (NumPy's, and what was expanded)
    return t.as_strided([t.numel()], [1]).view(torch.uint8)


def _tensor(raw: Tensor, entry: TensorEntry) -> Tensor:
    """The tensor of an entry from its bytes [nbytes], whose memory it shares."""
    if entry.dtype == torch.bool and bool((raw > 1).any()):
        raise Malformed(f"tensor {entry.name!r} holds bytes that are neither true nor false")
    return raw.view(entry.dtype).reshape(entry.shape)


def _bytes_as_tensor(data: bytearray) -> Tensor:
    # torch makes no tensor of an empty buffer
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(data, dtype=torch.uint8)


# Nests and pieces.


def _structure(nest: Any, tensors: list[Tensor]) -> Any:
    """The nest as JSON: {"t": a tensor's place}, {"d": a dict's items}, {"l": a list with tensors}, {"v": a plain value}.

    Its tensors are appended to `tensors`.
    """
    if isinstance(nest, Tensor):
        tensors.append(nest)
        return {"t": len(tensors) - 1}
    if isinstance(nest, dict):
        return {"d": [[key, _structure(value, tensors)] for key, value in nest.items()]}
    # a list of numbers or strings is JSON as it is
    if isinstance(nest, list | tuple) and any(isinstance(value, NESTED_TYPES) for value in nest):
        return {"l": [_structure(value, tensors) for value in nest]}
    return {"v": nest}


def _nest(structure: Any, tensors: list[Tensor]) -> Any:
    """The nest of a `_structure`."""
    [(kind, value)] = structure.items()
    if kind == "t":
        return tensors[value]
    if kind == "d":
        return {key: _nest(inner, tensors) for key, inner in value}
    if kind == "l":
        return [_nest(inner, tensors) for inner in value]
    return value


def _pieces(sizes: Sequence[int], on_device: Sequence[bool]) -> list[list[int]]:
    """The tensors of each piece by their places, in order; those on the device share no piece with the others."""
    pieces: list[list[int]] = []
    free_bytes = 0
    for place, size in enumerate(sizes):
        has_moved = on_device[place] != on_device[place - 1]
        if not pieces or size > free_bytes or has_moved:
            pieces.append([])
            free_bytes = SHARED_PIECE_BYTES
        pieces[-1].append(place)
        free_bytes -= _aligned(size)
    return pieces


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Offsets of tensors of these sizes in their piece, and the end of the last one, after which nothing is padded."""
    aligned_sizes = [_aligned(size) for size in sizes[:-1]]
    starts = [*accumulate(aligned_sizes, initial=0)]
    end = starts[-1] + sizes[-1]
    return [*starts, end]


def _piece(tensors: Sequence[Tensor], device: torch.device | None) -> Tensor:
    """The bytes of tensors on one device, as one vector."""
    # one tensor is sent from its own memory
    if len(tensors) == 1:
        return _raw(tensors[0], device)
    *starts, end = _offsets([t.nbytes for t in tensors])
    piece_device = device if tensors[0].device == device else None
    # zeros between the tensors: no bytes of this process's memory leave it
    piece = torch.zeros(end, dtype=torch.uint8, device=piece_device)
    for t, start in zip(tensors, starts, strict=True):
        piece[start : start + t.nbytes] = _raw(t, device)
    return piece


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
