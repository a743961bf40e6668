"""Readers of the published CIFAR-10 and CIFAR-100 files: Python batches and binary batches."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.plain_pickles import read_plain_pickle
from unalike.data.sources.arrays import images
from unalike.data.sources.registry import content, layouts

IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32
FILES_10 = ([f"data_batch_{part}" for part in range(1, 6)], ["test_batch"])
FILES_100 = (["train"], ["test"])
"""The files of the training set and of the test set."""


class Batch(NamedTuple):
    """Images uint8 [N, 3072], labels [N], and for CIFAR-100 the coarse labels [N]."""

    images: np.ndarray
    labels: np.ndarray
    coarse: np.ndarray | None


@layouts.register("data_batch_1")
def read_python10(path: Path) -> Dataset:
    """The folder `cifar-10-batches-py`: data_batch_1 to data_batch_5, test_batch and batches.meta."""
    names = _names(path / "batches.meta", b"label_names")
    return _dataset(path, FILES_10, _python_batch, names)


@layouts.register("meta")
def read_python100(path: Path) -> Dataset:
    """The folder `cifar-100-python`: train, test and meta; the 20 coarse classes are the group "coarse"."""
    names = _names(path / "meta", b"fine_label_names")
    return _dataset(path, FILES_100, _python_batch, names)


@layouts.register("data_batch_1.bin")
def read_binary10(path: Path) -> Dataset:
    """The folder `cifar-10-batches-bin`: records of one label and 3072 bytes."""
    names = _lines(path / "batches.meta.txt")
    return _dataset(path, _with_suffix(FILES_10), partial(_binary_batch, labels=1), names)


@layouts.register("fine_label_names.txt")
def read_binary100(path: Path) -> Dataset:
    """The folder `cifar-100-binary`: records of a coarse label, a fine label and 3072 bytes."""
    names = _lines(path / "fine_label_names.txt")
    return _dataset(path, _with_suffix(FILES_100), partial(_binary_batch, labels=2), names)


def _table(path: Path, key: bytes) -> dict[bytes, Any]:
    """Read the dictionary in one Python batch. Raises `UnalikeError` if it lacks `key`."""
    table = read_plain_pickle(content(path), path, "a CIFAR batch")
    if not isinstance(table, dict) or key not in table:
        raise UnalikeError(
            f"{path} holds {type(table).__name__}, expected a table with {key.decode()}: fetch it "
            "again"
        )
    return table


def _python_batch(file: Path) -> Batch:
    table = _table(file, b"data")
    labels = _labels(file, table.get(b"fine_labels", table.get(b"labels", ())))
    coarse = None
    if b"coarse_labels" in table:
        coarse = _labels(file, table[b"coarse_labels"])
    x = table.get(b"data")
    expected = (len(labels), IMAGE_BYTES)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != expected:
        kind = type(x).__name__
        if isinstance(x, np.ndarray):
            kind = f"{x.dtype} {list(x.shape)}"
        raise UnalikeError(
            f"{file}: data is {kind}, expected uint8 {list(expected)} for its labels"
        )
    return Batch(x, labels, coarse)


def _labels(file: Path, values: Any) -> np.ndarray:
    with reading(file, "a CIFAR batch"):
        labels = np.asarray(values)
    if labels.ndim != 1:
        raise UnalikeError(
            f"{file}: labels have shape {list(labels.shape)}, expected one for each image: fetch "
            "it again"
        )
    return labels


def _binary_batch(file: Path, labels: int) -> Batch:
    """Records of one or two labels, of which the last is the class, and of an image."""
    data = np.frombuffer(content(file), np.uint8)
    record_bytes = labels + IMAGE_BYTES
    if not len(data) or len(data) % record_bytes:
        raise UnalikeError(
            f"{file} holds {len(data)} bytes, expected a multiple of {record_bytes}; it is "
            "truncated: fetch it again"
        )
    records = data.reshape(-1, record_bytes)
    return Batch(
        images=records[:, labels:],
        labels=records[:, labels - 1],
        coarse=records[:, 0] if labels == 2 else None,
    )


def _dataset(
    path: Path,
    parts: tuple[Sequence[str], Sequence[str]],
    read: Callable[[Path], Batch],
    classes: list[str] | None,
) -> Dataset:
    training_files, test_files = parts
    missing = [name for name in (*training_files, *test_files) if not (path / name).is_file()]
    if missing:
        raise UnalikeError(f"{path} lacks {', '.join(missing)}; unpack the published archive again")
    training = [read(path / name) for name in training_files]
    batches = training + [read(path / name) for name in test_files]
    pixels = np.concatenate([batch.images for batch in batches])
    coarse = [batch.coarse for batch in batches if batch.coarse is not None]
    return Dataset.divided(
        name=path.name,
        x=images(pixels.reshape(-1, *IMAGE_SHAPE)),
        y=np.concatenate([batch.labels for batch in batches]),
        train=sum(len(batch.labels) for batch in training),
        classes=classes,
        groups={"coarse": np.concatenate(coarse)} if coarse else {},
    )


def _with_suffix(parts: tuple[list[str], list[str]]) -> tuple[list[str], list[str]]:
    training_files, test_files = parts
    return [f"{name}.bin" for name in training_files], [f"{name}.bin" for name in test_files]


def _names(file: Path, key: bytes) -> list[str] | None:
    if not file.is_file():
        return None
    names = _table(file, key)[key]
    with reading(file, "CIFAR's class names", TypeError, AttributeError):
        return [name.decode() for name in names]


def _lines(file: Path) -> list[str] | None:
    with reading(file, "a list of class names"):
        return file.read_text(encoding="utf-8").split() if file.is_file() else None
