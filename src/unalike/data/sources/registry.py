"""The tables of data sets, of file formats and of folder layouts, and what their readers share.

A new named data set is one function under `@registry.register("name")`, which returns a `Dataset`; parameters a person
may write are keyword-only, and a first parameter `data_dir` receives the folder of data files (None where none is set).
A new file format is one function `(path, *, options) -> Dataset` under `@formats.register(".ending")`; a new folder
layout the same under `@layouts.register("pattern of a file that only such folders hold")`.
"""

from __future__ import annotations

import gzip
import inspect
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.registry import Registry
from unalike._utils.spec import Call
from unalike.data.dataset import Dataset
from unalike.data.table_encoding import Encoding

HOME = "unalike.data.sources.load"

registry = Registry("data set", home=HOME, group="unalike.data")
formats = Registry("file format", home=HOME, group="unalike.formats")
layouts = Registry("folder layout", home=HOME, group="unalike.layouts")

FOLDER = "UNALIKE_DATA"
"""The environment variable that names the folder of data files."""


def data_folder(named: str | Path | None) -> Path | None:
    """The folder of data files: the one named, else $UNALIKE_DATA, else None."""
    found = named if named is not None else os.environ.get(FOLDER)
    return Path(found).expanduser() if found else None


def ending(name: str) -> str | None:
    """The longest registered ending of a file name (".csv.gz" before ".gz"), None where no format has it."""
    fitting = [end for end in formats if name.lower().endswith(end)]
    return max(fitting, key=len, default=None)


def layout(folder: Path) -> str | None:
    """The pattern of the layout a folder has, the most particular (longest) first; None where none fits."""
    patterns = sorted(layouts, key=len, reverse=True)
    return next((pattern for pattern in patterns if any(folder.glob(pattern))), None)


def read(path: Path, encoding: Encoding | None = None, **options: Any) -> Dataset:
    """The data set in a file or folder, by its ending or layout; `encoding` goes to readers that take one, those of tables.

    Raises `UnalikeError` for a file or folder that has no reader.
    """
    if path.is_dir():
        pattern = layout(path)
        if pattern is None:
            raise UnalikeError(
                f"{path} is a folder of no known layout; expected one that holds {' or '.join(layouts)}, "
                "such as a folder of images per class"
            )
        return layouts.build(Call(pattern, options), path=path)
    end = ending(path.name)
    if end is None:
        raise UnalikeError(
            f"{path} has a suffix that cannot be read; expected {' or '.join(formats)}: convert the file"
        )
    taken = inspect.signature(formats[end]).parameters
    if "target" in taken and taken["target"].default is inspect.Parameter.empty and "target" not in options:
        raise UnalikeError(
            f"{path} is a table, and no column is named to be predicted; write "
            f"\"file(path={str(path)!r}, target='COLUMN')\""
        )
    agreed = {"encoding": encoding} if encoding and "encoding" in taken else {}
    return formats.build(Call(end, options), path=path, **agreed)


DAMAGED: tuple[type[Exception], ...] = (
    *(OSError, ValueError, EOFError, LookupError, NotImplementedError, MemoryError),
    *(TokenError, BadZipFile, zlib.error),
)
"""What decoders raise for damaged files (found by damaging files of every format)."""


@contextmanager
def reading(path: Path, kind: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what a damaged or mislabelled file makes a decoder raise into one `UnalikeError` that names the file.

    `more` are errors that only this decoder raises. Nothing but the decoder's own call belongs into the block.
    """
    try:
        yield
    except UnalikeError:
        raise
    except (*DAMAGED, *more) as error:
        raise UnalikeError(
            f"{path} cannot be read as {kind} ({error!r}); the file is damaged or mislabelled: fetch or save it again"
        ) from None


def content(path: Path) -> bytes:
    """The bytes of a file, decompressed where its name ends in `.gz`."""
    with reading(path, "a compressed file" if path.suffix == ".gz" else "a file"):
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def first_file(folder: Path, *patterns: str) -> Path | None:
    """The first file in `folder` that fits one of the patterns, tried in order."""
    return next((file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()), None)


def every_fifth(y: np.ndarray) -> np.ndarray:
    """Which samples test where no division is published, bool [N]: of each class every fifth, in the order given.

    For regression (float labels) every fifth sample. A class with fewer than five samples only trains.
    """
    if y.dtype.kind == "f":
        return np.arange(len(y)) % 5 == 4
    order = np.argsort(y, kind="stable")
    starts = np.searchsorted(y[order], y[order])  # where each label's samples begin
    rank = np.empty(len(y), np.int64)
    rank[order] = np.arange(len(y)) - starts
    return rank % 5 == 4
