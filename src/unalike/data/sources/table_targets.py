"""Targets of tables: the column to predict, or an expression of it, and its values as labels."""

from __future__ import annotations

import re
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne, truediv
from typing import TYPE_CHECKING

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
from unalike.data.value_sets import refuse_spellings

if TYPE_CHECKING:
    import pandas as pd

EXPRESSION = re.compile(r"(.+?)\s*(<=|>=|==|!=|<|>|/)\s*(.+)")
"""A target such as `num > 0` or `cost / 1000`."""
OPERATORS = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne, "/": truediv}
MAX_CLASS_VALUES = 10
"""Most different whole numbers among decimals that may be classes."""
LARGE_AMOUNT = 100
"""Amounts from which on a target should have another unit."""


def with_target(
    frame: pd.DataFrame, target: str, where: str, labelled_only: bool = False
) -> tuple[pd.DataFrame, pd.Series, str]:
    """The rows that are read, their target, and the column that it comes from, whose name may stand in a comparison with a value.

    Raises `UnalikeError` for a column that is missing, an order of texts, and rows without a target unless they are left out.
    """
    source = target
    column = None
    if target not in frame.columns:
        expression = EXPRESSION.fullmatch(target)
        if expression is not None:
            source, mark, text = expression.groups()
            require_columns(frame, [source], where)
            column = _computed(frame[source], mark, text, target, where).rename(target)
    require_columns(frame, [source], where)
    if column is None:
        column = frame[source]

    missing = column.isna().to_numpy()
    if missing.any() and not labelled_only:
        raise UnalikeError(
            f"{where}: the target {target!r} is missing in {missing.sum()} of "
            f"{len(column)} rows, the first in {first_place(column, missing)}; leave "
            "these rows out with --labelled-only, in Python labelled_only=True"
        )
    if missing.any():
        warn(f"{where}: left out {missing.sum()} of {len(column)} rows, which have no target")
    return frame[~missing], column[~missing], source


def _computed(source: pd.Series, mark: str, text: str, target: str, where: str) -> pd.Series:
    """The values of an expression such as `num > 0`: the column, an operator and a value as text. Raises `UnalikeError`."""
    text = text.strip("'\"")
    values = source
    value: float | str = text
    if kind_of(source) == NUMBERS:
        try:
            value = float(text)
        except ValueError:
            raise UnalikeError(
                f"{where}: found the target {target!r}, expected a number after {mark}"
            ) from None
    elif mark in ("==", "!="):
        values = source.map(str, na_action="ignore")
    else:
        raise UnalikeError(
            f"{where}: found the target {target!r}, but {source.name!r} holds no numbers; expected "
            "== or != there"
        )
    result = OPERATORS[mark](values, value)
    if mark == "/":
        return result
    # A comparison with a missing value is false; the target is missing there.
    return result.astype("boolean").mask(source.isna())


def labels(
    column: pd.Series, where: str, regression: bool | None = None, accept: bool = False
) -> tuple[np.ndarray, list[str] | None]:
    """Convert a target column to labels, and class names for int64 labels.

    With `regression` None, whole numbers written without decimals, and two that are written with them, are classes. Raises
    `UnalikeError` for other types, such as dates, for numbers that may be classes or amounts, and without `accept` for classes that
    differ only in case, space or number format.
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
        kind = NUMBERS
        column = column.astype(float)

    # Decimals are amounts, unless they are said to be classes or are two whole numbers.
    if is_float_dtype(column) and not regression:
        column = _decimals(column, where, regression is False)
    if regression or is_float_dtype(column):
        size = float(column.abs().max())
        if size >= LARGE_AMOUNT:
            unit = 10 ** int(np.log10(size))
            warn(
                f"{where}: the target {column.name!r} has values up to "
                f"{size:,.0f}, and is not scaled: training may need a very small "
                f"lr or diverge; --target '{column.name} / {unit}' (in Python "
                "target=) takes another unit",
            )
        return column.to_numpy(np.float32), None
    if kind not in (NUMBERS, TEXTS):
        raise UnalikeError(
            f"{where}: the target {column.name!r} holds {kind}, expected texts, numbers or "
            "true/false; convert it"
        )
    if kind == NUMBERS and regression is None and column.nunique() > MAX_CLASS_VALUES:
        warn(
            f"{where}: the target {column.name!r} holds {column.nunique()} different "
            "whole numbers, read as classes; if they are amounts, write --regression, "
            "in Python regression=True",
        )

    # Numbers are sorted by value, texts by their letters.
    values = column.to_numpy() if kind == NUMBERS else texts_of(column)
    if kind == TEXTS and not accept:
        refuse_spellings(texts_of(column), f"the target {column.name!r}", where)
    classes, codes = np.unique(values, return_inverse=True)
    return codes, [str(name) for name in classes]


def _decimals(column: pd.Series, where: str, classes: bool) -> pd.Series:
    """A target of decimals: whole numbers if they are `classes`, or two, as pandas writes 0 and 1 after a missing value.

    Warns of two whole values. Raises `UnalikeError` for a few more, which may be classes or amounts, and for fractions of classes.
    """
    values = np.sort(column.unique())
    is_whole = not (values % 1 != 0).any()
    if classes and not is_whole:
        raise UnalikeError(
            f"{where}: the target {column.name!r} holds fractions; expected whole numbers for "
            "classes"
        )
    if not classes and (len(values) > MAX_CLASS_VALUES or not is_whole):
        return column
    # A few whole numbers: two are classes, more may be either.
    numbers = ", ".join(f"{value:.1f}" for value in values)
    holds = f"{where}: the target {column.name!r} holds {numbers}"
    amounts = "amounts, write --regression, in Python regression=True"
    if not classes and len(values) != 2:
        raise UnalikeError(
            f"{holds}, which may be classes or amounts: for classes, write "
            f"--no-regression, in Python regression=False; for {amounts}"
        )
    if not classes:
        warn(f"{holds}, read as classes; if they are {amounts}")
    return column.astype("int64")


def check_classes(column: pd.Series, classes: int, where: str) -> None:
    """Raise `UnalikeError` for a target with so many values that it is probably an amount or a name, not a class."""
    if len(column) < FEW_ROWS:
        return
    is_numbers = kind_of(column) == NUMBERS
    hardly_shared = 2 * classes > len(column)
    if hardly_shared or (is_numbers and classes > MOST_CATEGORIES):
        remedy = "name another column"
        if is_numbers:
            remedy = "if they are amounts, write --regression, in Python regression=True"
        raise UnalikeError(
            f"{where}: the target {column.name!r} has {classes} different values in "
            f"{len(column)} rows; expected classes that several rows share: {remedy}"
        )
