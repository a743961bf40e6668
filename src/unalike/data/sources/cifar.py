"""Readers of the published CIFAR-10 and CIFAR-100 files: Python batches and binary batches."""

import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.arrays import images
from unalike.data.sources.registry import content, layouts

IMAGE = (3, 32, 32)
PIXELS = 3 * 32 * 32
TEN = ([f"data_batch_{part}" for part in range(1, 6)], ["test_batch"])
HUNDRED = (["train"], ["test"])

Batch = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Images uint8 [N, 3072], labels [N], and for CIFAR-100 the coarse labels [N]."""


@layouts.register("data_batch_1")
def read_python10(path: Path) -> Dataset:
    """The folder `cifar-10-batches-py`: data_batch_1 to data_batch_5, test_batch and batches.meta."""
    return _dataset(path, TEN, _python_batch, _names(path / "batches.meta", b"label_names"))


@layouts.register("meta")
def read_python100(path: Path) -> Dataset:
    """The folder `cifar-100-python`: train, test and meta; the 20 coarse classes are the group "coarse"."""
    return _dataset(path, HUNDRED, _python_batch, _names(path / "meta", b"fine_label_names"))


@layouts.register("data_batch_1.bin")
def read_binary10(path: Path) -> Dataset:
    """The folder `cifar-10-batches-bin`: records of one label and 3072 bytes."""
    return _dataset(
        path,
        _with_suffix(TEN),
        lambda file: _binary_batch(file, 1),
        _lines(path / "batches.meta.txt"),
    )


@layouts.register("fine_label_names.txt")
def read_binary100(path: Path) -> Dataset:
    """The folder `cifar-100-binary`: records of a coarse label, a fine label and 3072 bytes."""
    names = _lines(path / "fine_label_names.txt")
    return _dataset(path, _with_suffix(HUNDRED), lambda file: _binary_batch(file, 2), names)


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

    CIFAR's Python batches are published as pickles only, and an ordinary unpickler runs any code that a file names.
    """

    def __init__(self, path: Path):
        super().__init__(io.BytesIO(content(path)), encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise UnalikeError(
                f"{self.path} asks for {module}.{name}, expected plain lists and arrays only; nothing of it was run: "
                "it is no CIFAR batch, do not trust it"
            )
        return ARRAYS[module, name]


def _table(path: Path, key: bytes) -> dict[bytes, Any]:
    """Read the dictionary in one Python batch. Raises `UnalikeError` if it lacks `key`."""
    with reading(
        path, "a CIFAR batch", pickle.UnpicklingError, TypeError, AttributeError, OverflowError
    ):
        table = ArraysOnly(path).load()
    if not isinstance(table, dict) or key not in table:
        raise UnalikeError(
            f"{path} holds {type(table).__name__}, expected a table with {key.decode()}: fetch it again"
        )
    return table


def _python_batch(file: Path) -> Batch:
    table = _table(file, b"data")
    fine = _labels(file, table.get(b"fine_labels", table.get(b"labels", ())))
    coarse = _labels(file, table[b"coarse_labels"]) if b"coarse_labels" in table else None
    x = table.get(b"data")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (len(fine), PIXELS):
        kind = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
        raise UnalikeError(
            f"{file}: data is {kind}, expected uint8 [{len(fine)}, {PIXELS}] for its labels"
        )
    return x, fine, coarse


def _labels(file: Path, found: Any) -> np.ndarray:
    with reading(file, "a CIFAR batch"):
        labels = np.asarray(found)
    if labels.ndim != 1:
        raise UnalikeError(
            f"{file}: labels have shape {list(labels.shape)}, expected one for each image: fetch it again"
        )
    return labels


def _binary_batch(file: Path, labels: int) -> Batch:
    data = np.frombuffer(content(file), np.uint8)
    if not len(data) or len(data) % (labels + PIXELS):
        raise UnalikeError(
            f"{file} holds {len(data)} bytes, expected a multiple of {labels + PIXELS}; it is truncated: fetch it again"
        )
    rows = data.reshape(-1, labels + PIXELS)
    return rows[:, labels:], rows[:, labels - 1], rows[:, 0] if labels == 2 else None


def _dataset(
    path: Path,
    parts: tuple[Sequence[str], Sequence[str]],
    read: Callable[[Path], Batch],
    classes: list[str] | None,
) -> Dataset:
    missing = [name for part in parts for name in part if not (path / name).is_file()]
    if missing:
        raise UnalikeError(f"{path} lacks {', '.join(missing)}; unpack the published archive again")
    batches = [[read(path / name) for name in part] for part in parts]
    train, test = (np.concatenate([labels for _, labels, _ in part]) for part in batches)
    flat = [batch for part in batches for batch in part]
    x = images(np.concatenate([pixels for pixels, _, _ in flat]).reshape(-1, *IMAGE))
    coarse = [values for _, _, values in flat if values is not None]
    groups = {"coarse": np.concatenate(coarse)} if coarse else {}
    return Dataset.divided(path.name, x, np.concatenate([train, test]), len(train), classes, groups)


def _with_suffix(parts: tuple[list[str], list[str]]) -> tuple[list[str], list[str]]:
    train, test = ([f"{name}.bin" for name in part] for part in parts)
    return train, test


def _names(file: Path, key: bytes) -> list[str] | None:
    if not file.is_file():
        return None
    names = _table(file, key)[key]
    with reading(file, "CIFAR's class names", TypeError, AttributeError):
        return [name.decode() for name in names]


def _lines(file: Path) -> list[str] | None:
    with reading(file, "a list of class names"):
        return file.read_text(encoding="utf-8").split() if file.is_file() else None
