"""Pickles of other programs that hold plain values and NumPy arrays only, read without running anything that they name."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError, reading

# The names that a pickled array needs, for NumPy 1 and NumPy 2. Reducing an empty array yields the function itself.
RECONSTRUCT = np.empty(0).__reduce__()[0]
ARRAYS = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
}


class ArraysOnly(pickle.Unpickler):
    """Unpickler for lists, dicts, texts, numbers and NumPy arrays; it refuses a file that names anything else, and runs none of it.

    Some files are published as pickles only, and an ordinary unpickler runs any code that a file names. `kind` says what the file
    should be.
    """

    def __init__(self, data: bytes, path: Path, kind: str):
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.path = path
        self.kind = kind

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise UnalikeError(
                f"{self.path} asks for {module}.{name}, expected plain lists and "
                f"arrays only; nothing of it was run: it is not {self.kind}, do not "
                "trust it"
            )
        return ARRAYS[module, name]


def read_plain_pickle(data: bytes, path: Path, kind: str) -> Any:
    """The values in a pickle from the file `path`, which should be `kind`. Raises `UnalikeError` for anything but plain values."""
    with reading(path, kind, pickle.UnpicklingError, TypeError, AttributeError, OverflowError):
        return ArraysOnly(data, path, kind).load()
