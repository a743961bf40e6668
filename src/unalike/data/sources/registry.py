"""The registries of data sets, file formats and folder layouts, and the functions that readers share.

A new named data set is a function under `@registry.register("name")` that returns a `Dataset`. Its options are keyword-only; a
first parameter `data_dir` receives the folder of data files (None if none is set).
A new file format is a function `(path, *, options) -> Dataset` under `@formats.register(".ending")`. A new folder layout is such
a function under `@layouts.register("pattern of a file that only such folders contain")`.
"""

import gzip
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import InvalidValue, UnalikeError, reading, unknown
from unalike._utils.option_types import check_kinds
from unalike._utils.registry import Registry
from unalike.data.dataset import Dataset
from unalike.data.table_encoding import Encoding
from unalike.data.time_order import are_of_latest_units, count_of_tests

Reader = Callable[..., Dataset]
HOME = "unalike.data.sources"
"""The package whose modules register the readers."""

registry = Registry("data set", home=HOME, group="unalike.data")
formats = Registry("file format", home=HOME, group="unalike.formats")
layouts = Registry("folder layout", home=HOME, group="unalike.layouts")

FOREIGN_TABLES = {
    ".sas7bdat": ("SAS", "in Python pandas.read_sas(path).to_csv('table.csv', index=False)"),
    ".xpt": ("SAS", "in Python pandas.read_sas(path).to_csv('table.csv', index=False)"),
    ".dta": ("Stata", "in Python pandas.read_stata(path).to_csv('table.csv', index=False)"),
    ".sav": ("SPSS", "in Python pandas.read_spss(path).to_csv('table.csv', index=False)"),
    ".rds": ("R", "in R write.csv(readRDS(path), 'table.csv', row.names = FALSE)"),
    ".rda": ("R", "in R load(path), then write.csv(NAME, 'table.csv', row.names = FALSE)"),
    ".rdata": ("R", "in R load(path), then write.csv(NAME, 'table.csv', row.names = FALSE)"),
    ".xls": ("an old Excel", "by saving it as .xlsx or .csv"),
    ".ods": ("LibreOffice", "by saving it as .xlsx or .csv"),
    ".feather": ("Arrow", "in Python pandas.read_feather(path).to_parquet('table.parquet')"),
}
"""Suffix of a table that is not read -> the program that writes it, and how it becomes one that is."""
FOLDER = "UNALIKE_DATA"
"""The environment variable that names the folder of data files."""
NAMED_BY = f"--data-dir, in Python data_dir=, or {FOLDER}"
"""The ways to name the folder of data files."""


def data_folder(named: str | Path | None) -> Path | None:
    """Return the folder of data files: `named` if given, else $UNALIKE_DATA, else None."""
    folder = named if named is not None else os.environ.get(FOLDER)
    return Path(folder).expanduser() if folder else None


def searched(folder: Path | None) -> str:
    """Return the place that was searched, for error messages: "in data", or that no folder is set."""
    return f"in {folder}" if folder is not None else f"and {FOLDER} names no folder to look in"


def ending(name: str) -> str | None:
    """Return the longest registered ending of a file name (".csv.gz" before ".gz"); None if there is none."""
    fitting = [end for end in formats if name.lower().endswith(end)]
    return max(fitting, key=len, default=None)


def layout(folder: Path) -> str | None:
    """Return the longest layout pattern that matches a file in the folder; None if none does."""
    patterns = sorted(layouts, key=len, reverse=True)
    return next((pattern for pattern in patterns if any(folder.glob(pattern))), None)


def read(path: Path, encoding: Encoding | None = None, **options: Any) -> Dataset:
    """Read a file by its ending, or a folder by its layout; `encoding` is passed to readers of tables.

    Raises `UnalikeError` if no reader fits.
    """
    if path.is_dir() and "target" in options:
        tables = sorted(file.name for file in path.iterdir() if ending(file.name))
        such = f", such as {path / tables[0]}" if tables else ""
        raise UnalikeError(
            f"{path} is a folder, and --target, in Python target=, is for the columns of a table; name a file{such}"
        )
    if path.is_dir():
        pattern = layout(path)
        if pattern is None:
            raise UnalikeError(
                f"{path} is a folder of no known layout; expected one that holds "
                f"{' or '.join(layouts)}, such as a folder of images per class"
            )
        return call_reader(layouts[pattern], path, path.name, encoding, options)
    end = ending(path.name)
    foreign = FOREIGN_TABLES.get(path.suffix.lower())
    if end is None and foreign is not None:
        program, conversion = foreign
        raise UnalikeError(
            f"{path} is a table of {program}, which is not read here; convert it once, {conversion}, and name the new file"
        )
    if end is None:
        raise UnalikeError(
            f"{path} has a suffix that cannot be read; expected {' or '.join(formats)}: convert "
            "the file"
        )
    return call_reader(formats[end], path, path.name, encoding, options)


def call_reader(
    reader: Reader, source: Any, where: str, encoding: Encoding | None, options: dict[str, Any]
) -> Dataset:
    """Call a reader of a file or object with its options; the messages about them start with `where`."""
    parameters = inspect.signature(reader).parameters
    # The encoding is an argument of its own, since a person cannot write it.
    known = [
        name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name != "encoding"
    ]
    for name, value in options.items():
        if not known:
            raise UnalikeError(
                f"{where}: found {name}={value!r}, but files of this kind have no "
                "options: leave it out"
            )
        if name not in known:
            raise UnalikeError(f"{where}: {unknown('option', name, known)}")
    context = {"encoding": encoding} if encoding and "encoding" in parameters else {}
    try:
        check_kinds(reader, options)
        return reader(source, **options, **context)
    except InvalidValue as error:
        raise InvalidValue(f"{where}: {error}") from None


def content(path: Path) -> bytes:
    """Read the bytes of a file, decompressed if its name ends in `.gz`."""
    is_compressed = path.suffix == ".gz"
    with reading(path, "a compressed file" if is_compressed else "a file"):
        data = path.read_bytes()
        return gzip.decompress(data) if is_compressed else data


def checksum(path: Path) -> str:
    """The SHA-256 of a file, decompressed if its name ends in `.gz`; by pieces, since a small file may unpack to a large one."""
    is_compressed = path.suffix == ".gz"
    with (
        reading(path, "a compressed file" if is_compressed else "a file"),
        gzip.open(path) if is_compressed else open(path, "rb") as file,
    ):
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_file(folder: Path, *patterns: str) -> Path | None:
    """Return the first file in `folder` that matches one of the patterns, tried in order; None if there is none."""
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            if file.is_file():
                return file
    return None


def a_fifth(
    y: np.ndarray, units: np.ndarray | None = None, time: np.ndarray | None = None
) -> np.ndarray:
    """Mark the test samples of data without a published division, bool [N]: the latest fifth of its units, or `every_fifth`."""
    if time is None:
        return every_fifth(y, units)
    count = len(y if units is None else np.unique(units))
    return are_of_latest_units(time, units, count_of_tests(count, split=0.8))


def every_fifth(y: np.ndarray, units: np.ndarray | None = None) -> np.ndarray:
    """Mark the test samples of data without a published division, bool [N]: every fifth of each class, in order.

    Of numbers (float labels) and of labels with several dimensions every fifth sample. A class with fewer than five samples has no
    test sample. With the `units` [N] of the samples every fifth unit tests, by the label of its first sample.
    """
    if units is not None:
        _, first, unit = np.unique(units, return_index=True, return_inverse=True)
        return every_fifth(y[first])[unit]
    if y.dtype.kind == "f" or y.ndim > 1:
        return np.arange(len(y)) % 5 == 4
    # The rank of each sample among those of its label: its place in label order, from where the label begins.
    order = np.argsort(y, kind="stable")
    starts = np.searchsorted(y[order], y[order])
    rank = np.empty(len(y), np.int64)
    rank[order] = np.arange(len(y)) - starts
    return rank % 5 == 4
