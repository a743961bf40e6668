"""Subgroups of the rows of a table, by the values of a column or by ranges of its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.columns import NUMBERS, kind_of, require_columns, texts_of

if TYPE_CHECKING:
    import pandas as pd

MAX_VALUES = 20
"""Most values of a column that divide rows; of more numbers, limits are asked for."""
MISSING = "missing"
"""The name of the rows without a value."""


@dataclass(frozen=True)
class Subgroups:
    """The column that divides rows, and for numbers the limits between its ranges: `age=50,65`."""

    column: str
    limits: tuple[float, ...] = ()

    @classmethod
    def read(cls, text: str) -> Subgroups:
        """From `sex` or `age=50,65`. Raises `UnalikeError` for limits that are no rising numbers."""
        column, mark, listed = text.partition("=")
        if not mark:
            return cls(column)
        try:
            limits = tuple(float(limit) for limit in listed.split(","))
        except ValueError:
            limits = ()
        if not limits or any(low >= high for low, high in pairwise(limits)):
            raise UnalikeError(
                f"found --by {text!r}, expected a column, or a column with rising limits between its ranges: --by age=50,65"
            )
        return cls(column, limits)

    def divide(self, frame: pd.DataFrame, where: str) -> tuple[np.ndarray, list[str]]:
        """The subgroup of each row, int64 [n], and the names of the subgroups: `sex: f`, `age: 50 to under 65`.

        Raises `UnalikeError` for a column that is missing or has too many values, and for limits of texts.
        """
        require_columns(frame, [self.column], where)
        column = frame[self.column]
        if self.limits:
            owner, values = self._ranges(column, where)
        else:
            texts = texts_of(column, MISSING)
            found, owner = np.unique(texts, return_inverse=True)
            values = found.tolist()
        if len(values) > MAX_VALUES:
            raise UnalikeError(
                f"{where}: found {len(values)} values in {self.column!r}, expected at most {MAX_VALUES}; divide numbers by "
                f"limits: --by {self.column}=50,65"
            )
        return owner, [f"{self.column}: {value}" for value in values]

    def _ranges(self, column: pd.Series, where: str) -> tuple[np.ndarray, list[str]]:
        """The range of each row and the names of all ranges that have rows."""
        if kind_of(column) != NUMBERS:
            raise UnalikeError(
                f"{where}: found limits for {self.column!r}, which holds no numbers; give --by {self.column} alone"
            )
        limits = [f"{limit:g}" for limit in self.limits]
        names = [f"under {limits[0]}"]
        names += [f"{low} to under {high}" for low, high in pairwise(limits)]
        names += [f"{limits[-1]} and over", MISSING]
        numbers = column.to_numpy(float, na_value=np.nan)
        place = np.searchsorted(self.limits, numbers, side="right")
        place[np.isnan(numbers)] = len(names) - 1
        present, owner = np.unique(place, return_inverse=True)
        return owner, [names[k] for k in present]
