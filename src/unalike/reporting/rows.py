"""Rows of a table as dictionaries with text keys."""

from __future__ import annotations

from typing import Any

import pandas as pd

Row = dict[str, Any]


def rows(table: pd.DataFrame) -> list[Row]:
    names = [str(name) for name in table.columns]
    return [dict(zip(names, values)) for values in table.itertuples(index=False, name=None)]
