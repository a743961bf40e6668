"""Data sets from the Hugging Face hub, through `datasets` (the optional extra `hub`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.dataset import Dataset
from unalike.data.sources.arrays import images
from unalike.data.sources.registry import registry
from unalike.data.sources.table_files import tokens
from unalike.data.table_encoding import Encoding


@registry.register("hub")
def hub(
    encoding: Encoding | None = None,
    *,
    path: str,
    x: str | tuple[str, ...] = "image",
    y: str = "label",
    config: str | None = None,
    train: str = "train",
    test: str | None = "test",
    length: int = 64,
    vocabulary: int = 20000,
) -> Dataset:
    """A data set of the Hugging Face hub, such as `hub(path='ylecun/mnist')`.

    Column `x` holds images, rows or texts, column `y` the labels. Several text columns are joined by a space. `train` and
    `test` name the splits (None: no test set); `length`, `vocabulary` and `encoding` are as for text files.
    Needs the extra: pip install 'unalike[hub]'.

    Raises `UnalikeError` without the package, the network, or such a split or column.
    """
    parts = [split for split in (train, test) if split is not None]
    columns = (x,) if isinstance(x, str) else x
    tables = _fetch(path, config, parts, (*columns, y))
    rows_of_parts = [[_joined(row) for row in zip(*(tables[part][column] for column in columns))] for part in parts]
    flat = list(chain.from_iterable(rows_of_parts))
    samples: Any
    if isinstance(flat[0], str):
        samples, encoding = tokens(flat, len(rows_of_parts[0]), length, vocabulary, encoding)
    else:
        samples, encoding = _stacked(flat, path), None
    labels = np.concatenate([np.asarray(list(tables[part][y])) for part in parts])
    classes = getattr(tables[train].features[y], "names", None)
    return Dataset.divided(path.split("/")[-1], samples, labels, len(rows_of_parts[0]), classes, encoding=encoding)


def available() -> bool:
    """Return whether the package `datasets` can be imported."""
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def _fetch(path: str, config: str | None, parts: Sequence[str], columns: Sequence[str]) -> Mapping[str, Any]:
    if not available():
        raise UnalikeError(f"{path} is fetched with the package datasets, found none: pip install 'unalike[hub]'")
    import datasets

    try:
        tables = datasets.load_dataset(path, config)
    except (OSError, ValueError) as error:
        raise UnalikeError(
            f"{path} could not be fetched from the Hugging Face hub ({error}); check the name and the network, or put "
            "the data set's files into the folder of data files"
        ) from None
    missing = [part for part in parts if part not in tables]
    if missing:
        raise UnalikeError(f"{path} has no split {', '.join(missing)}; expected one of {', '.join(tables)}")
    lacking = [column for column in columns if column not in tables[parts[0]].features]
    if lacking:
        names = ", ".join(tables[parts[0]].features)
        raise UnalikeError(f"{path} has no column {', '.join(lacking)}; expected one of {names}")
    return tables


def _joined(row: Sequence[Any]) -> Any:
    return " ".join(row) if len(row) > 1 else row[0]


def _stacked(samples: Sequence[Any], path: str) -> np.ndarray:
    """Stack images of one size, or rows, into one array. If any image has colors, gray ones become RGB."""
    arrays = [np.asarray(sample) for sample in samples]
    in_color = any(array.ndim == 3 for array in arrays)
    arrays = [np.stack([array] * 3, -1) if in_color and array.ndim == 2 else array for array in arrays]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise UnalikeError(f"{path} holds samples of shapes {sorted(shapes)[:5]}, expected one: save it with one size")
    return images(np.stack(arrays))
