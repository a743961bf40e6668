"""Readers of tables (`.csv`, `.tsv`, `.parquet`, `.jsonl`) with a column to predict."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import ending, every_fifth, formats
from unalike.data.table_encoding import (
    FEW_ROWS,
    MOST_CATEGORIES,
    NUMBERS,
    TEXTS,
    TRUTH,
    Encoding,
    fit,
    fit_words,
    kind_of,
    texts_of,
)

if TYPE_CHECKING:
    import pandas as pd

Columns = str | Sequence[str]


MISSING_TEXTS = (
    *(
        "",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
    ),
    *("NaN", "None", "n/a", "nan", "null", "?", " ?"),
)
"""The texts that stand for a missing value in a CSV file: those of pandas, and a question mark."""


def _typed(reader: str, path: Path, texts: Sequence[str], **options: object) -> pd.DataFrame:
    """Read a file that stores the types of its columns."""
    import pandas as pd

    frame: pd.DataFrame = getattr(pd, reader)(path, **options)
    return frame


def _csv(path: Path, texts: Sequence[str], *, separator: str = ",") -> pd.DataFrame:
    """Read a CSV file; a question mark is a missing value too. The columns `texts` are read as texts even if they hold numbers."""
    import pandas as pd

    names = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
    for twice in names[names.duplicated() & (names != "")]:
        raise UnalikeError(
            f"{path.name}: two columns have the name {twice!r}; expected each name once: rename or remove one"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(
                path,
                sep=separator,
                index_col=False,
                keep_default_na=False,
                na_values=MISSING_TEXTS,
                low_memory=False,
                dtype=dict.fromkeys(texts, str),
            )
        except pd.errors.ParserWarning:
            raise UnalikeError(
                f"{path.name}: rows have more fields than the header has names, so that fields have no known name; expected a "
                "name for every column (the first too, where it numbers the rows), commas between columns and points in decimals"
            ) from None


OPEN: Mapping[str, Callable[[Path, Sequence[str]], pd.DataFrame]] = {
    ".csv": _csv,
    ".csv.gz": _csv,
    ".tsv": partial(_csv, separator="\t"),
    ".tsv.gz": partial(_csv, separator="\t"),
    ".parquet": partial(_typed, "read_parquet"),
    ".jsonl": partial(_typed, "read_json", lines=True, dtype=False),
    ".jsonl.gz": partial(_typed, "read_json", lines=True, dtype=False),
}
PARTS = {"train": False, "0": False, "false": False, "test": True, "1": True, "true": True}
"""Values of a split column, and whether each means a test row."""
FEW_VALUES = 10
"""Most different whole numbers among decimals that may be classes."""
LENGTH, VOCABULARY = 64, 20000
"""Default number of words that are read of a text, and default size of the vocabulary."""


def read_table(
    path: Path,
    *,
    target: str | None = None,
    text: str | None = None,
    drop: Columns = (),
    group: Columns = (),
    unit: str | None = None,
    split: str | None = None,
    regression: bool | None = None,
    length: int = LENGTH,
    vocabulary: int = VOCABULARY,
    bag: bool = False,
    encoding: Encoding | None = None,
) -> Dataset:
    """One row per sample; `target` names the column to predict.

    A target of texts, whole numbers or true/false is classes, numbered in sorted order, and so are two whole numbers written with
    decimals (0.0 and 1.0); other decimals are regression. Scaling, categories and vocabulary come from the training rows only; the
    data set keeps them as its `encoding`.

    Args:
        path: The file.
        target: The column to predict, which must be named; without it a table that is read with an `encoding` has no labels.
        text: The only column to read as a feature, as tokens; without it all other columns are features, encoded as
            `table_encoding.fit` says.
        drop: Columns to leave out.
        group: Columns that become groups for partitions, such as a hospital or a writer; they are not features, unless the agreed
            encoding says so.
        unit: A column whose values, such as patients or recordings, are never divided between training and test samples; it is not
            a feature.
        split: A column that says train or test (or 0 or 1), which clients then keep; without it every fifth row of a class (with
            `unit`, every fifth unit) tests, where nothing else divides the rows.
        regression: Read a target of whole numbers as regression (True), or one written with decimals as classes (False).
        length: The number of words that are read of each text.
        vocabulary: The size of the vocabulary of `text`.
        bag: Read `text` as rows of word counts, not as tokens.
        encoding: An agreed encoding, such as that of another file. It alone decides which columns are read and how.

    Raises:
        UnalikeError: No target is named, the file cannot be read, a column is missing, or the target has missing values,
            another type such as dates, hardly two rows per class, or a few whole numbers written with decimals, which may be
            classes or amounts.
    """
    frame = opened(path, encoding)
    drop, group = _several(drop), _several(group)
    if target is None and encoding is not None:  # rows to predict
        require_columns(frame, [*drop, *group], path.name)
        groups = {column: frame[column].to_numpy() for column in group}
        return Dataset(_stem(path), (new_rows(frame, encoding, path.name), None), groups=groups, encoding=encoding)
    if target is None:
        raise UnalikeError(
            f"{path.name} is a table with the columns {', '.join(map(str, frame))}; name the one to predict, with --target COLUMN "
            "or in Python target='COLUMN' (and with --group or group= one that says whose row it is, if there is one)"
        )
    group += [unit] if unit is not None and unit not in group else []
    require_columns(frame, [target, *drop, *group, *_several(split or ()), *_several(text or ())], path.name)
    y, classes = labels(frame[target], path.name, regression)
    if classes is not None and encoding is None:
        check_classes(frame[target], len(classes), path.name)
    units = None if unit is None else np.array(texts_of(frame[unit]))
    test = every_fifth(y, units) if split is None else _tests(frame[split], path.name)
    order, train = np.argsort(test, kind="stable"), int((~test).sum())
    frame, y = frame.iloc[order], y[order]
    groups = {column: frame[column].to_numpy() for column in group}
    unread = [target, *drop, *_several(split or ())]
    unused = list(dict.fromkeys([*unread, *group]))
    if encoding is not None:
        _check_agreed(encoding, unread, text, path.name)
    elif text is not None:
        if text in unused:
            raise UnalikeError(
                f"{path.name}: found text={text!r}, which is the target, a group, the split or dropped, too; name another column"
            )
        encoding = fit_words(frame[text], train, length, vocabulary, bag)
    elif (length, vocabulary, bag) != (LENGTH, VOCABULARY, False):
        raise UnalikeError(
            f"{path.name}: length, vocabulary and bag say how a column of text is read; name it with text="
        )
    else:
        encoding = fit(frame.drop(columns=unused), train, path.name)
    x = encoding.apply(frame, path.name)
    return Dataset.divided(_stem(path), x, y, train, classes, groups, encoding, unit, split is not None)


for name in OPEN:
    formats.register(name)(read_table)


def opened(path: Path, encoding: Encoding | None = None) -> pd.DataFrame:
    """Read the columns of a table; if the file stores no types, categories of the `encoding` are read as texts.

    Raises `UnalikeError` for a file that cannot be read.
    """
    texts = [category.name for category in encoding.categories if not category.truth] if encoding else []
    with reading(path, "a table"):
        return OPEN[ending(path.name) or ""](path, texts).rename(columns=str)


def new_rows(frame: pd.DataFrame, encoding: Encoding, where: str) -> torch.Tensor:
    """Encode rows to predict; warns of values that no training row had. Raises `UnalikeError` as `Encoding.apply` does."""
    x = encoding.apply(frame, where)
    for note in encoding.surprises(frame, where):
        warnings.warn(note, stacklevel=2)
    return x


def tokens(
    samples: Sequence[str], train: int, length: int, vocabulary: int, encoding: Encoding | None = None
) -> tuple[torch.Tensor, Encoding]:
    """Encode texts as tokens int64 [N, length]; returns the tokens and their encoding.

    Without an agreed `encoding` the vocabulary comes from the first `train` texts.
    """
    import pandas as pd

    frame = pd.DataFrame({"text": samples}, dtype=object)
    encoding = encoding or fit_words(frame["text"], train, length, vocabulary, bag=False)
    return encoding.apply(frame, "the texts"), encoding


def labels(column: pd.Series, where: str, regression: bool | None = None) -> tuple[np.ndarray, list[str] | None]:
    """Convert a target column to labels, and class names for int64 labels.

    With `regression` None, whole numbers written without decimals, and two that are written with them, are classes. Raises
    `UnalikeError` for missing values, for other types, such as dates, and for numbers that may be classes or amounts.
    """
    from pandas.api.types import is_float_dtype

    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise UnalikeError(
            f"{where}: the target {column.name!r} is missing in {len(missing)} rows, the first row {missing[0]}; "
            "expected a value in every row: leave those rows out"
        )
    kind = kind_of(column)
    if regression and kind not in (NUMBERS, Decimal.__name__):
        raise UnalikeError(f"{where}: the target {column.name!r} holds {kind}; expected numbers for regression")
    if kind == TRUTH:
        return column.to_numpy(bool).astype(np.int64), [str(False), str(True)]
    if kind == Decimal.__name__:
        kind, column = NUMBERS, column.astype(float)
    if is_float_dtype(column) and not regression:
        column = _decimals(column, where, regression is False)
    if regression or is_float_dtype(column):
        return column.to_numpy(np.float32), None
    if kind not in (NUMBERS, TEXTS):
        raise UnalikeError(
            f"{where}: the target {column.name!r} holds {kind}, expected texts, numbers or true/false; convert it"
        )
    kinds, codes = np.unique(column.to_numpy() if kind == NUMBERS else texts_of(column), return_inverse=True)
    return codes, [str(kind) for kind in kinds]


def _decimals(column: pd.Series, where: str, classes: bool) -> pd.Series:
    """A target of decimals: whole numbers if they are `classes`, or two, as pandas writes 0 and 1 after a missing value.

    Warns of two whole values. Raises `UnalikeError` for a few more, which may be classes or amounts, and for fractions of classes.
    """
    values = np.sort(column.unique())
    whole = not (values % 1 != 0).any()
    if classes and not whole:
        raise UnalikeError(f"{where}: the target {column.name!r} holds fractions; expected whole numbers for classes")
    if not classes and (len(values) > FEW_VALUES or not whole):
        return column
    holds = f"{where}: the target {column.name!r} holds {', '.join(f'{value:.1f}' for value in values)}"
    amounts = "amounts, write --regression, in Python regression=True"
    if not classes and len(values) != 2:
        raise UnalikeError(
            f"{holds}, which may be classes or amounts: for classes, write --no-regression, in Python regression=False; "
            f"for {amounts}"
        )
    if not classes:
        warnings.warn(f"{holds}, read as classes; if they are {amounts}", stacklevel=3)
    return column.astype("int64")


def check_classes(column: pd.Series, classes: int, where: str) -> None:
    """Raise `UnalikeError` for a target with so many values that it is probably an amount or a name, not a class."""
    numbers = kind_of(column) == NUMBERS
    if len(column) >= FEW_ROWS and (2 * classes > len(column) or (numbers and classes > MOST_CATEGORIES)):
        remedy = (
            "if they are amounts, write --regression, in Python regression=True" if numbers else "name another column"
        )
        raise UnalikeError(
            f"{where}: the target {column.name!r} has {classes} different values in {len(column)} rows; expected classes that "
            f"several rows share: {remedy}"
        )


def _tests(column: pd.Series, where: str) -> np.ndarray:
    values = [text.lower() for text in texts_of(column)]
    wrong = sorted(set(values) - PARTS.keys())
    if wrong:
        raise UnalikeError(
            f"{where}: the split {column.name!r} holds {', '.join(wrong[:5])}; expected train and test, or 0 and 1"
        )
    test = np.array([PARTS[value] for value in values])
    if test.all():
        raise UnalikeError(f"{where}: the split {column.name!r} has no training rows; expected train or 0 in some")
    return test


def _check_agreed(encoding: Encoding, unused: Sequence[str], text: str | None, where: str) -> None:
    read = encoding.names
    for column in unused:
        if column in read:
            raise UnalikeError(
                f"{where}: {column!r} is the target, the split or dropped here, but a feature in the encoding that was "
                f"agreed; expected its features {', '.join(read)} to be free"
            )
    if text is not None and (encoding.words is None or encoding.words.name != text):
        raise UnalikeError(
            f"{where}: found text={text!r}, but the encoding that was agreed reads {', '.join(read)}; leave text out"
        )


def require_columns(frame: pd.DataFrame, columns: Sequence[str], where: str) -> None:
    """Raise `UnalikeError` if the table lacks one of the columns, or has no rows."""
    for column in (column for column in columns if column not in frame.columns):
        names = ", ".join(map(str, frame))
        mark = next((mark for mark in (";", "\t", "|") if len(frame.columns) == 1 and mark in names), None)
        if mark is not None:
            raise UnalikeError(
                f"{where} has no column {column!r}; expected commas between columns, found {mark!r}: save the table with commas"
            )
        near = get_close_matches(column, [*map(str, frame)])
        hint = f"did you mean {' or '.join(map(repr, near))}? It has" if near else "it has"
        raise UnalikeError(f"{where} has no column {column!r}; {hint} the columns {names}")
    if not len(frame):
        raise UnalikeError(f"{where} has columns but no rows; expected one row per sample")


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def _several(columns: Columns) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)
