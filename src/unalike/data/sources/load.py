"""Loading of data sets by registered name, or by the name or path of a file or folder."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.spec import Call, parse_one
from unalike.data.dataset import Dataset
from unalike.data.sources.in_memory import of_object
from unalike.data.sources.registry import (
    FOLDER,
    FOREIGN_TABLES,
    NAMED_BY,
    data_folder,
    ending,
    every_fifth,
    formats,
    read,
    registry,
)
from unalike.data.sources.table_files import ENDINGS as TABLE_ENDINGS
from unalike.data.table_encoding import Encoding


def load(
    name_or_path: Any,
    data_dir: str | Path | None = None,
    *,
    encoding: Encoding | None = None,
    **options: Any,
) -> Dataset:
    """Load a data set by name or path.

    >>> load("digits")
    <Dataset digits: 1442 training and 355 test samples of shape (1, 8, 8), classification>

    Args:
        name_or_path: A registered name ("digits", "shakespeare(length=40)"), the path of a file or folder ("my/data.npz"), or the
            name of a file or folder in `data_dir` without its suffix ("mine"). Or an object in memory
            (`in_memory.of_object`): (x, y), a data frame, a data set of torch or Hugging Face, or such of several clients by name.
        data_dir: The folder of data files; $UNALIKE_DATA by default.
        encoding: The encoding to read a table with, such as the `encoding` of another table. Ignored for data that is no table.
        options: Options of the reader: load("patients.csv", target="outcome", group="hospital"). The same as one text is
            "file(path='patients.csv', target='outcome', group='hospital')".

    Returns:
        The data set.

    Raises:
        UnalikeError: There is no such data set, or its files are missing or damaged. The message lists the known names, the
            folder that was searched and the file to put there.
    """
    if isinstance(name_or_path, Dataset) and not options:
        return name_or_path
    if not isinstance(name_or_path, str | Path):
        return of_object(name_or_path, encoding, **options)
    folder = data_folder(data_dir)
    source = _named(str(name_or_path), folder)
    if isinstance(source, Path):
        return read(source, encoding, **options)

    # A registered reader takes what its parameters name, besides its own options.
    offered = {"data_dir": folder, "encoding": encoding}
    parameters = inspect.signature(registry[source.name]).parameters
    context = {name: value for name, value in offered.items() if name in parameters}
    call = Call(source.name, source.parameters | options)
    return registry.build(call, **context)


def table_at(name_or_path: str, data_dir: str | Path | None = None) -> Path | None:
    """Return the table file that `load` would read; None for other data. Raises `UnalikeError` if there is nothing."""
    source = _named(name_or_path, data_folder(data_dir))
    if isinstance(source, Path):
        return source if ending(source.name) in TABLE_ENDINGS else None
    if source.name == "file" and "path" in source.parameters:
        return table_at(str(source.parameters["path"]), data_dir)
    return None


@registry.register("file")
def file(
    data_dir: Path | None, encoding: Encoding | None = None, *, path: str, **options: Any
) -> Dataset:
    """Read a file or folder with options of its reader, as in `file(path='patients.csv', target='outcome')`."""
    return load(path, data_dir, encoding=encoding, **options)


@registry.register("digits")
def digits() -> Dataset:
    """scikit-learn's 1797 handwritten digits, 8x8 gray (Alpaydin and Kaynak 1998); every fifth of a class tests."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images / 16).astype(np.float32)[:, None]
    y = bunch.target
    test = every_fifth(y)
    names = [str(label) for label in range(10)]
    return Dataset("digits", (x[~test], y[~test]), (x[test], y[test]), names, published=False)


def _named(text: str, folder: Path | None) -> Call | Path:
    """Find the registered data set, or the existing file or folder, that the text names."""
    is_foreign = Path(text).suffix.lower() in FOREIGN_TABLES
    if ending(text) is not None or Path(text).is_absolute() or is_foreign:
        return _existing(Path(text), folder)
    if text.isidentifier() or "(" in text:
        call = parse_one(registry.spelled(text))
        if call.name in registry:
            return call
    # In the folder of data files the name may lack its suffix.
    candidates = [Path(text)]
    if folder is not None:
        files = [folder / (text + end) for end in formats]
        candidates = [*files, folder / text, *candidates]
    for path in candidates:
        if path.exists():
            return path
    raise _not_found(text, folder)


def _existing(path: Path, folder: Path | None) -> Path:
    """The file or folder at a path, or at that path in the folder of data files. Raises `UnalikeError` if there is none."""
    candidates = [path] if folder is None else [path, folder / path]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    places = " or ".join(str(candidate) for candidate in candidates)
    raise UnalikeError(f"found nothing at {places}; give its path, or set {FOLDER} to its folder")


def _not_found(text: str, folder: Path | None) -> UnalikeError:
    suffixes = ", ".join(formats)
    looked = f"{FOLDER} names no folder to look in"
    if folder:
        looked = f"no {text}.npz or the like in {folder}"
    return UnalikeError(
        f"{unknown('data set', text, registry)} (as a file: {looked}; put a folder {text} "
        f"or a file {text} with one of the suffixes {suffixes} into that folder "
        f"({NAMED_BY}), or give its path)"
    )
