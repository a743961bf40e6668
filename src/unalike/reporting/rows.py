"""Rows of a table as dictionaries."""

from __future__ import annotations

from typing import Any

import pandas as pd

Row = dict[str, Any]


def rows(table: pd.DataFrame) -> list[Row]:
    """The rows as dictionaries with column names as keys."""
    names = [str(name) for name in table.columns]
    return [dict(zip(names, values)) for values in table.itertuples(index=False, name=None)]
