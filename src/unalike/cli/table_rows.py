"""The subgroups of samples that were read from a table, by columns that the model need not know."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike._utils.errors import UnalikeError

if TYPE_CHECKING:
    import pandas as pd

    from unalike.data.dataset import Dataset
    from unalike.data.subgroups import Subgroups
    from unalike.data.table_encoding import Encoding

ROW = "(row of the file)"
"""The name of the group that tells the row of each sample."""
DIALECT = ("sep", "decimal", "charset")
"""The options of a reader that the file needs before its columns are known."""


def subgroups_of_samples(
    data: str,
    data_dir: Path | None,
    encoding: Encoding | None,
    options: dict[str, Any],
    subgroups: Sequence[Subgroups],
    read: Callable[[pd.DataFrame, str], Dataset],
) -> list[tuple[np.ndarray, list[str]]]:
    """For each of `subgroups` the number of each sample's subgroup, int64 [n], and the names of the subgroups.

    Readers put rows in another order. So `read` gets the table with one column more, whose name it takes as a group.

    Raises `UnalikeError` for data that is no table, and as `Subgroups.divide` does.
    """
    from unalike.data.sources.load import table_at
    from unalike.data.sources.table_files import opened

    if not subgroups:
        return []
    file = None if "(" in data else table_at(data, data_dir)
    if file is None:
        raise UnalikeError(
            f"found --by {subgroups[0].column} with {data}, which is no table; --group names a group of other data"
        )
    columns = [some.column for some in subgroups]
    dialect = {name: options[name] for name in DIALECT if options.get(name) is not None}
    frame = opened(file, encoding, columns, **dialect)
    # its notes were printed when the samples were read
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbered = frame.copy()
        numbered[ROW] = np.arange(len(frame))
        dataset = read(numbered, ROW)
    rows = dataset.groups[ROW]
    divided = []
    for some in subgroups:
        owner, names = some.divide(frame.iloc[rows], file.name)
        divided.append((owner, names))
    return divided
