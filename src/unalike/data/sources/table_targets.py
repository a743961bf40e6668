"""Targets of tables: the columns to predict, or expressions of them, and their values as labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne, truediv
from typing import TYPE_CHECKING

import numpy as np
import torch

from unalike._utils.errors import UnalikeError, warn
from unalike.core.tasks.registry import find_task
from unalike.core.tasks.task import CLASSES, Task
from unalike.core.tasks.task import NUMBERS as NUMBER_LABELS
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
LOGARITHM = re.compile(r"log\((.+)\)")
"""A target such as `log(days)` or `log(days / 365)`."""
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
        # the logarithm of another target, or an operator and a value
        expression = EXPRESSION.fullmatch(target)
        logarithm = LOGARITHM.fullmatch(target)
        if logarithm is not None:
            frame, exposure, source = with_target(frame, logarithm[1], where, labelled_only)
            column = _logarithm(exposure, target, where).rename(target)
        elif expression is not None:
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


def with_targets(
    frame: pd.DataFrame, targets: Sequence[str], where: str, labelled_only: bool = False
) -> tuple[pd.DataFrame, list[pd.Series], list[str]]:
    """`with_target` of several targets: the rows that have all of them, the targets, and the columns that these come from."""
    sources = []
    for target in targets:
        frame, _, source = with_target(frame, target, where, labelled_only)
        sources.append(source)
    columns = []
    for target in targets:
        _, column, _ = with_target(frame, target, where)
        columns.append(column)
    return frame, columns, sources


def targets_of(
    target: str | Sequence[str], offset: str | None, time: str | None, event: str | None, where: str
) -> list[str]:
    """The columns of the label in their order: the targets and the offset, or the time and the event.

    Raises `UnalikeError` for one of the latter without the other, or beside a target.
    """
    if not isinstance(target, str | Sequence):
        raise UnalikeError(
            f"{where}: found target={target!r}, expected a column's name, or several of them"
        )
    targets = [target] if isinstance(target, str) else list(target)
    if time is None and event is None:
        return targets if offset is None else [*targets, offset]
    if time is None or event is None or targets or offset is not None:
        raise UnalikeError(
            f"{where}: found target={target!r}, offset={offset!r}, time={time!r} and event={event!r}; expected a time and an event "
            "together, and no target beside them"
        )
    return [time, event]


def several_numbers(columns: Sequence[pd.Series], where: str) -> np.ndarray:
    """Targets as labels of several numbers, [N, L]: booleans if all hold true/false, else float32.

    Raises `UnalikeError` for texts.
    """
    kinds = [kind_of(column) for column in columns]
    for column, kind in zip(columns, kinds, strict=True):
        if kind not in (TRUTH, NUMBERS, Decimal.__name__):
            raise UnalikeError(
                f"{where}: the target {column.name!r} holds {kind}; expected numbers or true/false: convert it, or compare it with "
                f"a value, as in '{column.name} == yes'"
            )
    is_truth = all(kind == TRUTH for kind in kinds)
    numbers = [column.to_numpy(bool if is_truth else np.float32) for column in columns]
    return np.stack(numbers, axis=1)


def _logarithm(source: pd.Series, target: str, where: str) -> pd.Series:
    """The natural logarithm of a column. Raises `UnalikeError` unless it holds numbers above 0."""
    if kind_of(source) != NUMBERS or (source <= 0).any():
        raise UnalikeError(
            f"{where}: found the target or offset {target!r}, expected numbers above 0 in {source.name!r}"
        )
    return np.log(source)


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


def labels_of_columns(
    columns: Sequence[pd.Series],
    where: str,
    task: str | None = None,
    regression: bool | None = None,
    accept: bool = False,
) -> tuple[np.ndarray, list[str] | None, Task | None]:
    """The labels of the target columns, the names of their classes, and the task, where the labels do not imply it.

    A task that is given decides, whatever `regression` says. Raises `UnalikeError` as `labels` and `several_numbers` do.
    """
    named = None if task is None else find_task(task)
    if named is None and len(columns) == 1:
        y, classes = labels(columns[0], where, regression, accept)
        return y, classes, None
    if named is None:
        return several_numbers(columns, where), None, None

    # Of a named task: classes, an amount, or numbers of the task's own shape.
    is_one_number = len(columns) == 1 and named.label_dimensions == 0
    if is_one_number and named.offers(CLASSES):
        y, classes = labels(columns[0], where, regression=False, accept=accept)
        # of a task with names of its own, such as true and false, if these are theirs
        with suppress(ValueError):
            if named.class_names and classes is not None:
                values = [named.label_from_text(name) for name in classes]
                return np.array(values)[y], None, named
        return y, classes, None
    if is_one_number and named.offers(NUMBER_LABELS):
        y, _ = labels(columns[0], where, regression=True)
        return y, None, named
    numbers = several_numbers(columns, where)
    doubt = named.label_doubt(torch.from_numpy(numbers))
    if doubt:
        warn(f"{where}: {doubt}")
    return numbers, None, named
