"""Readers of tables (`.csv`, `.tsv`, `.xlsx`, `.parquet`, `.json`, `.jsonl`) with a column to predict."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unalike._utils.errors import UnalikeError, reading, require_extra
from unalike.data.columns import FEW_ROWS, NUMBERS, TEXTS, TRUTH, date_formats, kind_of, texts_of
from unalike.data.dataset import Dataset
from unalike.data.sources.delimited import read_delimited
from unalike.data.sources.registry import ending, every_fifth, formats
from unalike.data.table_encoding import MOST_CATEGORIES, Encoding, fit, fit_words

if TYPE_CHECKING:
    import pandas as pd

Columns = str | Sequence[str]


Reader = Callable[..., Any]


def _typed(reader: str, **options: object) -> Reader:
    """The reader of files that store the types of their columns."""

    def read(path: Path, texts: Sequence[str], **dialect: str | None) -> Any:
        import pandas as pd

        for name in (name for name, value in dialect.items() if value is not None):
            raise UnalikeError(
                f"{path.name}: found {name}={dialect[name]!r}, which is for delimited text; leave it out"
            )
        return getattr(pd, reader)(path, **options)

    return read


def _excel(path: Path, texts: Sequence[str], **dialect: str | None) -> pd.DataFrame:
    """Read the first sheet of an Excel file."""
    require_extra("excel", "openpyxl", what=path.name)
    sheets: Mapping[str, pd.DataFrame] = _typed("read_excel", sheet_name=None)(path, texts, **dialect)
    if len(sheets) > 1:
        warnings.warn(f"{path.name}: read the first of the sheets {', '.join(map(repr, sheets))}", stacklevel=2)
    return next(iter(sheets.values()))


_lines = _typed("read_json", lines=True, dtype=False)
OPEN: Mapping[str, Reader] = {
    **{text + packed: read_delimited for text in (".csv", ".tsv") for packed in ("", ".gz", ".zip")},
    ".xlsx": _excel,
    ".parquet": _typed("read_parquet"),
    ".json": _typed("read_json", dtype=False),
    ".jsonl": _lines,
    ".jsonl.gz": _lines,
}
COMPARED = re.compile(r"(.+?)\s*(<=|>=|==|!=|<|>)\s*(.+)")
"""A target such as `num > 0`."""
OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
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
    date: Columns = (),
    labelled_only: bool = False,
    sep: str | None = None,
    decimal: str | None = None,
    charset: str | None = None,
    encoding: Encoding | None = None,
) -> Dataset:
    """One row per sample; `target` names the column to predict.

    A target of texts, whole numbers or true/false is classes, numbered in sorted order, and so are two whole numbers written with
    decimals (0.0 and 1.0); other decimals are regression. A comparison such as "num > 0" is true/false. Scaling, categories and
    vocabulary come from the training rows only; the data set keeps them as its `encoding`.

    Args:
        path: The file.
        target: The column to predict, or its comparison with a value; it must be named, but for a table that is read with an
            `encoding`, which then has no labels.
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
        date: Columns of dates, which are read as a number of days; "admitted=%d/%m/%Y" says how they are written.
        labelled_only: Leave out the rows without a target, which are refused otherwise.
        sep: The separator of delimited text, `decimal` its decimal mark, `charset` its character encoding; found unless given.
        encoding: An agreed encoding, such as that of another file. It alone decides which columns are read and how.

    Raises:
        UnalikeError: No target is named, the file cannot be read, a column is missing, or the target has missing values,
            another type such as dates, hardly two rows per class, or a few whole numbers written with decimals, which may be
            classes or amounts.
    """
    frame = opened(path, encoding, sep=sep, decimal=decimal, charset=charset)
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
    frame, column, source = with_target(frame, target, path.name, labelled_only)
    require_columns(frame, [*drop, *group, *_several(split or ()), *_several(text or ())], path.name)
    y, classes = labels(column, path.name, regression)
    if classes is not None and encoding is None:
        check_classes(column, len(classes), path.name)
    units = None if unit is None else np.array(texts_of(frame[unit]))
    test = every_fifth(y, units) if split is None else _tests(frame[split], path.name)
    order, train = np.argsort(test, kind="stable"), int((~test).sum())
    frame, y = frame.iloc[order], y[order]
    groups = {column: frame[column].to_numpy() for column in group}
    unread = [source, *drop, *_several(split or ())]
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
        features = frame.drop(columns=unused)
        encoding = fit(features, train, path.name, dates_of(features, _several(date), path.name))
    x = encoding.apply(frame, path.name)
    return Dataset.divided(_stem(path), x, y, train, classes, groups, encoding, unit, split is not None)


for name in OPEN:
    formats.register(name)(read_table)


def opened(path: Path, encoding: Encoding | None = None, **dialect: Any) -> pd.DataFrame:
    """Read the columns of a table; if the file stores no types, categories of the `encoding` are read as texts.

    `dialect`: `sep`, `decimal` and `charset` of delimited text.

    Raises `UnalikeError` for a file that cannot be read.
    """
    texts = [category.name for category in encoding.categories if not category.truth] if encoding else []
    with reading(path, "a table"):
        return OPEN[ending(path.name) or ""](path, texts, **dialect).rename(columns=str)


def with_target(
    frame: pd.DataFrame, target: str, where: str, labelled_only: bool = False
) -> tuple[pd.DataFrame, pd.Series, str]:
    """The rows that are read, their target, and the column that it comes from, whose name may stand in a comparison with a value.

    Raises `UnalikeError` for a column that is missing, an order of texts, and rows without a target unless they are left out.
    """
    source, column = target, None
    if target not in frame.columns and (parts := COMPARED.fullmatch(target)) is not None:
        source, mark, text = parts.groups()
        require_columns(frame, [source], where)
        value: Any = text.strip("'\"")
        if kind_of(frame[source]) == NUMBERS:
            try:
                value = float(text)
            except ValueError:
                raise UnalikeError(f"{where}: found the target {target!r}, expected a number after {mark}") from None
        elif mark not in ("==", "!="):
            raise UnalikeError(
                f"{where}: found the target {target!r}, but {source!r} holds no numbers; expected == or != there"
            )
        compared = frame[source] if isinstance(value, float) else frame[source].map(str, na_action="ignore")
        column = OPERATORS[mark](compared, value).astype("boolean").mask(frame[source].isna()).rename(target)
    require_columns(frame, [source], where)
    column = frame[source] if column is None else column
    missing = np.flatnonzero(column.isna())
    if len(missing) and not labelled_only:
        raise UnalikeError(
            f"{where}: the target {target!r} is missing in {len(missing)} of {len(column)} rows, the first row {missing[0]}; "
            "leave these rows out with --labelled-only, in Python labelled_only=True"
        )
    if len(missing):
        warnings.warn(f"{where}: left out {len(missing)} of {len(column)} rows, which have no target", stacklevel=2)
    return frame[column.notna()], column[column.notna()], source


def dates_of(features: pd.DataFrame, dates: Sequence[str], where: str) -> dict[str, str]:
    """Column of dates -> how they are written, from texts such as "admitted" or "admitted=%d/%m/%Y". Raises `UnalikeError`."""
    found = {}
    for name, _, form in (text.partition("=") for text in dates):
        require_columns(features, [name], where)
        fitting = [form] if form else date_formats(features[name])
        if len(fitting) != 1:
            told = (
                f"dates that may be {' or '.join(fitting)}" if fitting else "no dates that are written in one known way"
            )
            raise UnalikeError(
                f"{where}: the column {name!r} holds {told}; say how they are written, as in --date '{name}=%d/%m/%Y', in Python "
                f"date='{name}=%d/%m/%Y'"
            )
        found[name] = fitting[0]
    return found


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
    `UnalikeError` for other types, such as dates, and for numbers that may be classes or amounts.
    """
    from pandas.api.types import is_float_dtype

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
        near = get_close_matches(column, [*map(str, frame)])
        hint = f"did you mean {' or '.join(map(repr, near))}? It has" if near else "it has"
        raise UnalikeError(f"{where} has no column {column!r}; {hint} the columns {names}")
    if not len(frame):
        raise UnalikeError(f"{where} has columns but no rows; expected one row per sample")


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def _several(columns: Columns) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)
