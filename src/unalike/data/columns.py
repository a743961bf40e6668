"""Columns of a table: what they hold, their values as texts, numbers or days, and notes on those that are probably no features."""

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
MANY_ROWS, LONG = 50, 10**9
"""Whole numbers that differ in all of so many rows, or are as large, are probably identifiers."""
DATES = ("Timestamp", "date", "datetime")
DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
FORMATS = (
    "ISO8601",
    *(
        form + time
        for time in ("", " %H:%M", " %H:%M:%S")
        for form in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
    ),
)
"""How dates may be written, besides "ISO8601" as for `strptime`."""
OWNERS = re.compile(
    r"(hospital|clinic|cent(er|re)|site|institution|owner|client|branch)([ _-]?(id|name|code|number))?",
    re.I,
)
"""Names of columns that may say who holds a row."""
MISSING = "(missing)"
NOTHING, NUMBERS, TRUTH, TEXTS = "nothing", "numbers", "true/false", "texts"
"""The contents of a column that can be read; `kind_of` names the types of any other content."""


class DoubtfulColumn(UserWarning):
    """A column of a table is probably no feature as it is, and may tell one person from others."""


def kind_of(column: pd.Series) -> str:
    """Return the content of a column without its missing values: `NOTHING`, `NUMBERS`, `TRUTH`, `TEXTS`, or the types' names."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    present = column[column.notna()]
    if not len(present):
        return NOTHING
    if is_numeric_dtype(column):
        return TRUTH if is_bool_dtype(column) else NUMBERS
    types = set(map(type, present.astype(object)))
    if types <= {str, bool}:
        return TRUTH if types == {bool} else TEXTS
    return (
        "whole numbers beyond 64 bits"
        if types == {int}
        else " and ".join(sorted(kind.__name__ for kind in types))
    )


def texts_of(column: pd.Series, missing: str = MISSING) -> list[str]:
    """Convert the values of a column to texts, missing values to `missing`."""
    plain = column.astype(object)
    return [str(value) for value in plain.where(plain.notna(), missing)]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def floats_of(column: pd.Series, where: str) -> np.ndarray:
    """The values of a column of numbers as float64 [N], NaN for missing ones. Raises `UnalikeError` for infinite ones."""
    from pandas.api.types import is_numeric_dtype

    plain = (
        column if is_numeric_dtype(column) else column.astype(object).where(column.notna(), np.nan)
    )
    values = plain.astype("float64").to_numpy()
    if np.isinf(values).any():
        place = first_place(column, np.isinf(values))
        raise UnalikeError(
            f"{where}: column {column.name!r} is infinite in {place}; expected finite numbers or none"
        )
    return values


def first_place(column: pd.Series, found: np.ndarray) -> str:
    """The first place of a mask: `line 2` of text or Excel, whose header is line 1, else `row` and the label of the index."""
    return f"{column.index.name or 'row'} {column.index[found][0]}"


def require_columns(frame: pd.DataFrame, columns: Sequence[str], where: str) -> None:
    """Raise `UnalikeError` if the table lacks one of the columns, or has no rows."""
    for column in (column for column in columns if column not in frame.columns):
        names = ", ".join(map(str, frame))
        near = get_close_matches(column, [*map(str, frame)])
        hint = f"did you mean {' or '.join(map(repr, near))}? It has" if near else "it has"
        raise UnalikeError(f"{where} has no column {column!r}; {hint} the columns {names}")
    if not len(frame):
        raise UnalikeError(f"{where} has columns but no rows; expected one row per sample")


def left_out(*columns: object) -> str:
    """The flags that leave columns out, and the argument in Python."""
    flags = " ".join(f"--drop {quote(str(column))}" for column in columns)
    return f"{flags}, in Python drop={_plain(columns)!r}"


def _plain(columns: Sequence[object]) -> str | list[str]:
    """One column, or several, as an argument in Python."""
    return str(columns[0]) if len(columns) == 1 else [*map(str, columns)]


def _identifies(column: pd.Series) -> bool:
    """Whether these are whole numbers of ten digits or more, or others in every row, in few rows consecutive ones."""
    present = column.dropna()
    if kind_of(column) != NUMBERS or len(present) < FEW_ROWS or (present % 1 != 0).any():
        return False
    span = present.max() - present.min()
    unique = present.is_unique and (len(present) >= MANY_ROWS or span == len(present) - 1)
    return bool(unique or present.abs().median() >= LONG)


def date_formats(column: pd.Series) -> list[str]:
    """The known formats, of `strptime` or "ISO8601", in which all values of a column are dates."""
    import pandas as pd

    present, kind = column.dropna(), kind_of(column)
    if kind in DATES:
        return [FORMATS[0]]
    fitting = FORMATS if kind == TEXTS and DATE.match(str(present.iloc[0])) else ()
    for rows in (present[:FEW_ROWS], present):
        fitting = tuple(
            f
            for f in fitting
            if pd.to_datetime(rows, format=f, errors="coerce", utc=True).notna().all()
        )
    return [*fitting]


def dates_of(features: pd.DataFrame, dates: Sequence[str], where: str) -> dict[str, str]:
    """Column of dates -> how they are written, from texts such as "admitted" or "admitted=%d/%m/%Y". Raises `UnalikeError`."""
    found = {}
    for name, _, form in (text.partition("=") for text in dates):
        require_columns(features, [name], where)
        fitting = [form] if form else date_formats(features[name])
        if len(fitting) != 1:
            told = (
                f"dates that may be {' or '.join(fitting)}"
                if fitting
                else "no dates that are written in one known way"
            )
            raise UnalikeError(
                f"{where}: the column {name!r} holds {told}; say how they are written, as in --date '{name}=%d/%m/%Y', in Python "
                f"date='{name}=%d/%m/%Y'"
            )
        found[name] = fitting[0]
    return found


def days_of(column: pd.Series, form: str, where: str) -> np.ndarray:
    """Dates as days since 1970, float64 [N], NaN for missing ones. Raises `UnalikeError` for anything else."""
    import pandas as pd

    moments = pd.to_datetime(column, format=form, errors="coerce", utc=True)
    wrong = (moments.isna() & column.notna()).to_numpy()
    if wrong.any():
        raise UnalikeError(
            f"{where}: the column {column.name!r} holds {column[wrong].iloc[0]!r} in {first_place(column, wrong)}, expected a date "
            f"({form}) or nothing; if all dates are written in another way, say so, as in --date '{column.name}=%Y-%m-%d', in "
            f"Python date='{column.name}=%Y-%m-%d'"
        )
    return ((moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(float)


def doubts(features: pd.DataFrame, where: str) -> list[UserWarning]:
    """Notes on columns that are probably no features as they are: identifiers, dates, owners, and those with one value."""
    constant = [column for column in features if features[column].nunique(dropna=False) == 1]
    others = features.drop(columns=constant)
    ids = [column for column in others if _identifies(others[column])]
    dated = [
        column
        for column in others
        if kind_of(others[column]) == TEXTS and date_formats(others[column])
    ]
    read_as_days = f"{' '.join(f'--date {quote(str(column))}' for column in dated)}, in Python date={_plain(dated)!r}"
    as_days = f"{read_as_days}, or leave out: {left_out(*dated)}"
    ids_out = left_out(*ids)
    owners = [column for column in others if column not in ids and OWNERS.fullmatch(str(column))]
    by_owner = (
        f"--group {quote(str(owners[0]))}, in Python group={str(owners[0])!r}" if owners else ""
    )
    notes = (
        (
            UserWarning,
            constant,
            f"one value in all rows, which says nothing; leave out: {left_out(*constant)}",
        ),
        (
            DoubtfulColumn,
            ids,
            f"numbers that look like identifiers or count the rows, read as features; leave out: {ids_out}",
        ),
        (
            UserWarning,
            owners,
            f"read as features; if they say who holds a row, make clients of their values: {by_owner}; at a site of a federation, "
            f"leave out: {left_out(*owners)}",
        ),
        (DoubtfulColumn, dated, f"dates, read as categories; read them as days: {as_days}"),
    )
    return [
        kind(f"{where}: {', '.join(map(repr, own))}: {note}") for kind, own, note in notes if own
    ]
