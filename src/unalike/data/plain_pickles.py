"""Pickles of other programs that hold plain values and NumPy arrays only, read without running anything that they name."""

import io
import math
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError, reading

TYPE_CODE = re.compile(r"[biufSUO][1-9][0-9]{0,8}")
"""The codes of plain types: booleans, numbers, texts and objects, with their bytes or letters."""
FUNCTIONS = {
    ("numpy", "dtype"): "_type",
    ("numpy.core.multiarray", "_reconstruct"): "_array",
    ("numpy._core.multiarray", "_reconstruct"): "_array",
}
"""The functions that a pickled array names, for NumPy 1 and NumPy 2, and the methods of `ArraysOnly` in their place."""
BROKEN_PICKLE = (
    pickle.UnpicklingError,
    TypeError,
    AttributeError,
    OverflowError,
    AssertionError,
    struct.error,
)
"""What Python's unpickler raises of a damaged file, beside the errors of any decoder."""
ARRAY_CLASS = ("numpy", "ndarray")
"""The name of the class of arrays, which a pickle gives to `_reconstruct` and has no other use for."""


class PlainType:
    """The type of a pickled array: what its code says, and of its state the byte order alone.

    NumPy believes the rest of a state. One that hides objects makes NumPy follow numbers in the file as addresses in memory.
    """

    def __init__(self, code: str | bytes):
        text = _text(code)
        if not TYPE_CODE.fullmatch(text):
            raise pickle.UnpicklingError(f"an array of the type {text[:40]!r}")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(_text(state[1]))  # type: ignore[arg-type]


class PlainArray(np.ndarray):
    """A pickled array, whose state is checked: a plain type, and as many values as its shape says."""

    def __setstate__(self, state: Any) -> None:
        shape, kind, is_fortran, content = state[-4:]
        if not isinstance(kind, PlainType) or not all(type(n) is int and n >= 0 for n in shape):
            raise pickle.UnpicklingError("an array without a plain type or a shape")
        holds_objects = kind.dtype.hasobject
        found = len(content) if holds_objects else len(content) / kind.dtype.itemsize
        if type(content) is not (list if holds_objects else bytes) or found != math.prod(shape):
            raise pickle.UnpicklingError(f"an array of the shape {shape} with other values")
        super().__setstate__((1, shape, kind.dtype, is_fortran, content))


class ArraysOnly(pickle._Unpickler):
    """Unpickler for lists, dicts, texts, numbers and NumPy arrays; it refuses a file that names anything else, and runs none of it.

    Some files are published as pickles only, and an ordinary unpickler runs any code that a file names. `kind` says what the file
    should be. It is Python's own unpickler that is written in Python: the one in C takes gigabytes of memory for a file of some
    bytes that numbers its values from two billion.
    """

    def __init__(self, data: bytes, path: Path, kind: str):
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.path = path
        self.kind = kind

    def find_class(self, module: str, name: str) -> Callable[..., Any] | None:
        if (module, name) == ARRAY_CLASS:
            return None
        if (module, name) not in FUNCTIONS:
            raise UnalikeError(
                f"{self.path} asks for {module}.{name}, expected plain lists and "
                f"arrays only; nothing of it was run: it is not {self.kind}, do not "
                "trust it"
            )
        # a bound method: unlike a class or a function it has no attributes that a pickle could set
        method: Callable[..., Any] = getattr(self, FUNCTIONS[module, name])
        return method

    def _type(self, code: str | bytes, *_: Any) -> PlainType:
        return PlainType(code)

    def _array(self, *_: Any) -> PlainArray:
        return PlainArray(0, np.int8)


def _text(value: str | bytes) -> str:
    """A text; those of old pickles are bytes."""
    return value.decode() if isinstance(value, bytes) else value


def read_plain_pickle(data: bytes, path: Path, kind: str) -> Any:
    """The values in a pickle from the file `path`, which should be `kind`. Raises `UnalikeError` for anything but plain values."""
    with reading(path, kind, *BROKEN_PICKLE):
        return ArraysOnly(data, path, kind).load()
