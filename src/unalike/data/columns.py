"""Columns of a table: what they hold, their values as texts, numbers or days, and warnings.

A column that is probably not a feature, such as an identifier, gets a warning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np

from unalike._utils.errors import UnalikeError

if TYPE_CHECKING:
    import pandas as pd

FEW_ROWS = 10
"""Tables with fewer rows than this may have columns in which every value differs; in longer ones these are row names or numbers."""
MANY_ROWS = 50
"""Whole numbers that differ in all of at least this many rows are probably identifiers; in fewer rows, equal rows and columns that
follow from each other may be accidents."""
LONG_NUMBER = 10**9
"""Whole numbers of this size, the median of a column, are probably identifiers."""
DATE_TYPES = ("Timestamp", "date", "datetime")
DATE_PATTERN = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
FORMATS = (
    "ISO8601",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y %H:%M",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
)
"""The ways in which dates may be written: "ISO8601", or a format of `strptime`."""
OWNER_PATTERN = re.compile(
    r"(hospital|clinic|cent(er|re)|site|institution|owner|client|branch)([ _-]?(id|name|code|number))?",
    re.I,
)
"""Names of columns that may say who holds a row."""
CODE_PATTERN = re.compile(
    r"(zip|plz|post(al)?([ _-]?code)?|postcode|icd([ _-]?(9|10))?|diag(nosis)?|drg|cpt|atc|phone|fax|ssn)"
    r"([ _-]?(code|no|nr|number))?",
    re.I,
)
"""Names of columns whose numbers are codes, and no amounts."""
MISSING = "(missing)"
"""The text that stands for a missing value among categories."""
NOTHING = "nothing"
NUMBERS = "numbers"
TRUTH = "true/false"
TEXTS = "texts"
"""The contents of a column that can be read; `kind_of` names the types of any other content."""


class DoubtfulColumn(UserWarning):
    """A column of a table is probably not a feature, and may tell one person from others."""


def kind_of(column: pd.Series) -> str:
    """Return the content of a column without its missing values: `NOTHING`, `NUMBERS`, `TRUTH`, `TEXTS`, or the types' names."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    present = column[column.notna()]
    if not len(present):
        return NOTHING
    if is_numeric_dtype(column):
        return TRUTH if is_bool_dtype(column) else NUMBERS
    types = {type(value) for value in present.astype(object)}
    if types == {bool}:
        return TRUTH
    if types <= {str, bool}:
        return TEXTS
    if types == {int}:
        return "whole numbers beyond 64 bits"
    return " and ".join(sorted(kind.__name__ for kind in types))


def texts_of(column: pd.Series, missing: str = MISSING) -> list[str]:
    """Convert the values of a column to texts, missing values to `missing`."""
    values = column.astype(object)
    return [str(value) for value in values.where(values.notna(), missing)]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def floats_of(column: pd.Series, where: str) -> np.ndarray:
    """The values of a column of numbers as float64 [N], NaN for missing ones. Raises `UnalikeError` for infinite ones."""
    from pandas.api.types import is_numeric_dtype

    numbers = column
    if not is_numeric_dtype(column):
        # A column of objects may write a missing value as None or NA, which do not become a float.
        numbers = column.astype(object).where(column.notna(), np.nan)
    values = numbers.astype("float64").to_numpy()
    infinite = np.isinf(values)
    if infinite.any():
        place = first_place(column, infinite)
        raise UnalikeError(
            f"{where}: column {column.name!r} is infinite in {place}; expected finite numbers or "
            "none"
        )
    return values


def first_place(column: pd.Series, mask: np.ndarray) -> str:
    """The first place of a mask: `line 2` of text or Excel, whose header is line 1, else `row` and the label of the index."""
    return f"{column.index.name or 'row'} {column.index[mask][0]}"


def named_once(names: Sequence[object], where: str) -> None:
    """Raise `UnalikeError` if two of a table's columns have one name."""
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise UnalikeError(
                f"{where}: two columns have the name {name!r}; expected each name once: rename or "
                "remove one"
            )
        seen.add(name)


def require_columns(frame: pd.DataFrame, columns: Sequence[str], where: str) -> None:
    """Raise `UnalikeError` if the table lacks one of the columns, or has no rows."""
    for column in columns:
        if column in frame.columns:
            continue
        names = [str(name) for name in frame]
        listed = [name.strip() for name in column.split(",")]
        if len(listed) > 1 and set(listed) <= set(names):
            raise UnalikeError(
                f"{where} has no column {column!r}, but {' and '.join(map(repr, listed))}; repeat the flag for each column, in "
                f"Python {listed!r}"
            )
        near = [repr(name) for name in get_close_matches(column, names)]
        hint = f"did you mean {' or '.join(near)}? It has" if near else "it has"
        raise UnalikeError(
            f"{where} has no column {column!r}; {hint} the columns {', '.join(names)}"
        )
    if not len(frame):
        raise UnalikeError(f"{where} has columns but no rows; expected one row per sample")


def drop_flags(*columns: object) -> str:
    """The flags that leave columns out, and the argument in Python."""
    flags = " ".join(f"--drop {quote(str(column))}" for column in columns)
    return f"{flags}, in Python drop={_as_argument(columns)!r}"


def _as_argument(columns: Sequence[object]) -> str | list[str]:
    """One column, or several, as an argument in Python."""
    names = [str(column) for column in columns]
    return names[0] if len(names) == 1 else names


def _identifies(column: pd.Series) -> bool:
    """Whether these are whole numbers of ten digits or more, or others in every row, in few rows consecutive ones."""
    present = column.dropna()
    if kind_of(column) != NUMBERS or len(present) < FEW_ROWS:
        return False
    if (present % 1 != 0).any():
        return False
    span = present.max() - present.min()
    is_consecutive = span == len(present) - 1
    counts_rows = present.is_unique and (len(present) >= MANY_ROWS or is_consecutive)
    return bool(counts_rows or present.abs().median() >= LONG_NUMBER)


def date_formats(column: pd.Series) -> list[str]:
    """The known formats, of `strptime` or "ISO8601", in which all values of a column are dates."""
    import pandas as pd

    kind = kind_of(column)
    if kind in DATE_TYPES:
        return [FORMATS[0]]
    present = column.dropna()
    if kind != TEXTS or not DATE_PATTERN.match(str(present.iloc[0])):
        return []

    def reads(rows: pd.Series, form: str) -> bool:
        days = pd.to_datetime(rows, format=form, errors="coerce", utc=True)
        return bool(days.notna().all())

    # A few rows rule out most of the formats, so that a long column is read by few of them.
    fitting = [form for form in FORMATS if reads(present[:FEW_ROWS], form)]
    return [form for form in fitting if reads(present, form)]


def dates_of(features: pd.DataFrame, dates: Sequence[str], where: str) -> dict[str, str]:
    """Column of dates -> how they are written, from texts such as "admitted" or "admitted=%d/%m/%Y". Raises `UnalikeError`."""
    forms = {}
    for text in dates:
        name, _, form = text.partition("=")
        require_columns(features, [name], where)
        fitting = [form] if form else date_formats(features[name])
        if len(fitting) != 1:
            content = "no dates that are written in one known way"
            if fitting:
                content = f"dates that may be {' or '.join(fitting)}"
            raise UnalikeError(
                f"{where}: the column {name!r} holds {content}; say how they are "
                f"written, as in --date '{name}=%d/%m/%Y', in Python "
                f"date='{name}=%d/%m/%Y'"
            )
        forms[name] = fitting[0]
    return forms


def days_of(column: pd.Series, form: str, where: str) -> np.ndarray:
    """Dates as days since 1970, float64 [N], NaN for missing ones. Raises `UnalikeError` for anything else."""
    import pandas as pd

    moments = pd.to_datetime(column, format=form, errors="coerce", utc=True)
    wrong = (moments.isna() & column.notna()).to_numpy()
    if wrong.any():
        raise UnalikeError(
            f"{where}: the column {column.name!r} holds {column[wrong].iloc[0]!r} in "
            f"{first_place(column, wrong)}, expected a date ({form}) or nothing; if "
            "all dates are written in another way, say so, as in --date "
            f"'{column.name}=%Y-%m-%d', in Python date='{column.name}=%Y-%m-%d'"
        )
    since_1970 = moments - pd.Timestamp(0, tz="UTC")
    return (since_1970 / pd.Timedelta(days=1)).to_numpy(float)


def column_of(text: str) -> str:
    """The column that a text such as "admitted" or "admitted=%d/%m/%Y" names."""
    return text.partition("=")[0]


def moments_of(frame: pd.DataFrame, column: str, dates: Sequence[str], where: str) -> np.ndarray:
    """The moments by which rows are divided, float64 [N]: dates as days since 1970, or numbers.

    How dates are written is said by `column` ("admitted=%d/%m/%Y") or by the same column among `dates`; it is found otherwise.

    Raises `UnalikeError` for a column of something else or of one value, and for rows without a value.
    """
    name = column_of(column)
    require_columns(frame, [name], where)
    values = frame[name]
    if kind_of(values) == NUMBERS:
        moments = floats_of(values, where)
    else:
        named = [text for text in dates if column_of(text) == name]
        asked = column if "=" in column or not named else named[0]
        moments = days_of(values, dates_of(frame, [asked], where)[name], where)
    missing = np.isnan(moments)
    if missing.any():
        raise UnalikeError(
            f"{where}: {missing.sum()} of {len(frame)} rows have no value in {name!r} (the first is in "
            f"{first_place(values, missing)}), so that nothing says when they are; fill them in, or take these rows out"
        )
    if len(np.unique(moments)) == 1:
        raise UnalikeError(
            f"{where}: all rows have the same value in {name!r}, so that none is later; expected several moments, or leave it out"
        )
    return moments


def only_times(split_by: str | None, dates: Sequence[str]) -> list[str]:
    """The column by which rows are divided, if it is no feature; a feature is named among `dates`, too."""
    if split_by is None or column_of(split_by) in map(column_of, dates):
        return []
    return [column_of(split_by)]


def constant_columns(features: pd.DataFrame) -> list[str]:
    """The columns with one value in all rows."""
    return [str(column) for column in features if features[column].nunique(dropna=False) == 1]


def doubts(features: pd.DataFrame, where: str) -> list[UserWarning]:
    """Warnings of columns that are probably not features: identifiers, codes, owners, dates read as categories.

    Nothing is said of columns with one value.
    """
    others = features.drop(columns=constant_columns(features))
    identifiers = [column for column in others if _identifies(others[column])]
    owners = [
        column
        for column in others
        if column not in identifiers and OWNER_PATTERN.fullmatch(str(column))
    ]
    dates = [
        column
        for column in others
        if kind_of(others[column]) == TEXTS and date_formats(others[column])
    ]

    # Each warning says how to read the columns in another way.
    def about(columns: Sequence[object], note: str) -> str:
        return f"{where}: {', '.join(repr(column) for column in columns)}: {note}"

    warnings: list[UserWarning] = []
    if identifiers:
        note = (
            "numbers that look like identifiers or count the rows, read as features; leave out: "
            f"{drop_flags(*identifiers)}"
        )
        warnings.append(DoubtfulColumn(about(identifiers, note)))
    codes = [
        column
        for column in others
        if kind_of(others[column]) == NUMBERS and CODE_PATTERN.fullmatch(str(column))
    ]
    if codes:
        note = (
            "numbers that look like codes, which have no order, read as amounts; put them into kinds as texts (region, group of "
            f"diagnoses), or leave out: {drop_flags(*codes)}"
        )
        warnings.append(UserWarning(about(codes, note)))
    if owners:
        owner = str(owners[0])
        note = (
            "read as features; if they say who holds a row, make clients of their values: "
            f"--group {quote(owner)}, in Python group={owner!r}; at a site of a federation, "
            f"leave out: {drop_flags(*owners)}"
        )
        warnings.append(UserWarning(about(owners, note)))
    if dates:
        flags = " ".join(f"--date {quote(str(column))}" for column in dates)
        note = (
            f"dates, read as categories; read them as days: {flags}, in Python "
            f"date={_as_argument(dates)!r}, or leave out: {drop_flags(*dates)}"
        )
        warnings.append(DoubtfulColumn(about(dates, note)))
    return warnings
