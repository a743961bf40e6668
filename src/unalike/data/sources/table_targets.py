"""Targets of tables: the column to predict, or an expression of it, and its values as labels."""

from __future__ import annotations

import re
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne, truediv
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike._utils.errors import UnalikeError, warn
from unalike.data.columns import (
    FEW_ROWS,
    NUMBERS,
    TEXTS,
    TRUTH,
    first_place,
    kind_of,
    require_columns,
    texts_of,
)
from unalike.data.table_encoding import MOST_CATEGORIES

if TYPE_CHECKING:
    import pandas as pd

EXPRESSION = re.compile(r"(.+?)\s*(<=|>=|==|!=|<|>|/)\s*(.+)")
"""A target such as `num > 0` or `cost / 1000`."""
OPERATORS = dict(zip(("<", "<=", ">", ">=", "==", "!=", "/"), (lt, le, gt, ge, eq, ne, truediv)))
FEW_VALUES = 10
"""Most different whole numbers among decimals that may be classes."""
LARGE = 100
"""Amounts from which on a target should have another unit."""


def with_target(
    frame: pd.DataFrame, target: str, where: str, labelled_only: bool = False
) -> tuple[pd.DataFrame, pd.Series, str]:
    """The rows that are read, their target, and the column that it comes from, whose name may stand in a comparison with a value.

    Raises `UnalikeError` for a column that is missing, an order of texts, and rows without a target unless they are left out.
    """
    source, column = target, None
    if target not in frame.columns and (parts := EXPRESSION.fullmatch(target)) is not None:
        source, mark, text = parts.groups()
        require_columns(frame, [source], where)
        value: Any = text.strip("'\"")
        if kind_of(frame[source]) == NUMBERS:
            try:
                value = float(text)
            except ValueError:
                raise UnalikeError(
                    f"{where}: found the target {target!r}, expected a number after {mark}"
                ) from None
        elif mark not in ("==", "!="):
            raise UnalikeError(
                f"{where}: found the target {target!r}, but {source!r} holds no numbers; expected == or != there"
            )
        compared = (
            frame[source]
            if isinstance(value, float)
            else frame[source].map(str, na_action="ignore")
        )
        column = OPERATORS[mark](compared, value)
        column = (
            column if mark == "/" else column.astype("boolean").mask(frame[source].isna())
        ).rename(target)
    require_columns(frame, [source], where)
    column = frame[source] if column is None else column
    missing = column.isna().to_numpy()
    if missing.any() and not labelled_only:
        raise UnalikeError(
            f"{where}: the target {target!r} is missing in {missing.sum()} of {len(column)} rows, the first in "
            f"{first_place(column, missing)}; leave these rows out with --labelled-only, in Python labelled_only=True"
        )
    if missing.any():
        warn(f"{where}: left out {missing.sum()} of {len(column)} rows, which have no target")
    return frame[~missing], column[~missing], source


def labels(
    column: pd.Series, where: str, regression: bool | None = None
) -> tuple[np.ndarray, list[str] | None]:
    """Convert a target column to labels, and class names for int64 labels.

    With `regression` None, whole numbers written without decimals, and two that are written with them, are classes. Raises
    `UnalikeError` for other types, such as dates, and for numbers that may be classes or amounts.
    """
    from pandas.api.types import is_float_dtype

    kind = kind_of(column)
    if regression and kind not in (NUMBERS, Decimal.__name__):
        raise UnalikeError(
            f"{where}: the target {column.name!r} holds {kind}; expected numbers for regression"
        )
    if kind == TRUTH:
        return column.to_numpy(bool).astype(np.int64), [str(False), str(True)]
    if kind == Decimal.__name__:
        kind, column = NUMBERS, column.astype(float)
    if is_float_dtype(column) and not regression:
        column = _decimals(column, where, regression is False)
    if regression or is_float_dtype(column):
        size = float(column.abs().max())
        if size >= LARGE:
            unit = 10 ** int(np.log10(size))
            warn(
                f"{where}: the target {column.name!r} has values up to {size:,.0f}, and is not scaled: training may need a "
                f"very small lr or diverge; --target '{column.name} / {unit}' (in Python target=) takes another unit",
            )
        return column.to_numpy(np.float32), None
    if kind not in (NUMBERS, TEXTS):
        raise UnalikeError(
            f"{where}: the target {column.name!r} holds {kind}, expected texts, numbers or true/false; convert it"
        )
    if kind == NUMBERS and regression is None and column.nunique() > FEW_VALUES:
        warn(
            f"{where}: the target {column.name!r} holds {column.nunique()} different whole numbers, read as classes; if they are "
            "amounts, write --regression, in Python regression=True",
        )
    kinds, codes = np.unique(
        column.to_numpy() if kind == NUMBERS else texts_of(column), return_inverse=True
    )
    return codes, [str(kind) for kind in kinds]


def _decimals(column: pd.Series, where: str, classes: bool) -> pd.Series:
    """A target of decimals: whole numbers if they are `classes`, or two, as pandas writes 0 and 1 after a missing value.

    Warns of two whole values. Raises `UnalikeError` for a few more, which may be classes or amounts, and for fractions of classes.
    """
    values = np.sort(column.unique())
    whole = not (values % 1 != 0).any()
    if classes and not whole:
        raise UnalikeError(
            f"{where}: the target {column.name!r} holds fractions; expected whole numbers for classes"
        )
    if not classes and (len(values) > FEW_VALUES or not whole):
        return column
    holds = (
        f"{where}: the target {column.name!r} holds {', '.join(f'{value:.1f}' for value in values)}"
    )
    amounts = "amounts, write --regression, in Python regression=True"
    if not classes and len(values) != 2:
        raise UnalikeError(
            f"{holds}, which may be classes or amounts: for classes, write --no-regression, in Python regression=False; "
            f"for {amounts}"
        )
    if not classes:
        warn(f"{holds}, read as classes; if they are {amounts}")
    return column.astype("int64")


def check_classes(column: pd.Series, classes: int, where: str) -> None:
    """Raise `UnalikeError` for a target with so many values that it is probably an amount or a name, not a class."""
    numbers = kind_of(column) == NUMBERS
    if len(column) >= FEW_ROWS and (
        2 * classes > len(column) or (numbers and classes > MOST_CATEGORIES)
    ):
        remedy = (
            "if they are amounts, write --regression, in Python regression=True"
            if numbers
            else "name another column"
        )
        raise UnalikeError(
            f"{where}: the target {column.name!r} has {classes} different values in {len(column)} rows; expected classes that "
            f"several rows share: {remedy}"
        )
