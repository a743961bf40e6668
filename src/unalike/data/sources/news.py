"""The news data sets of Zhang, Zhao and LeCun (2015), as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.dataset import Dataset
from unalike.data.sources.published import find
from unalike.data.sources.registry import first_file, reading, registry
from unalike.data.sources.tables import tokens
from unalike.data.table_encoding import Encoding

AG = ["World", "Sports", "Business", "Sci/Tech"]
SOGOU = ["sports", "finance", "entertainment", "automobile", "technology"]
PUT = "train.csv and test.csv"


@registry.register("ag_news")
def ag_news(
    data_dir: Path | None, encoding: Encoding | None = None, *, length: int = 64, vocabulary: int = 20000
) -> Dataset:
    """120000 + 7600 English news of 4 topics (Zhang et al. 2015): the tokens of the first `length` words."""
    columns = {"path": "fancyzhx/ag_news", "x": "text"}
    return _news("ag_news", data_dir, AG, columns, length, vocabulary, encoding)


@registry.register("sogou_news")
def sogou_news(
    data_dir: Path | None, encoding: Encoding | None = None, *, length: int = 256, vocabulary: int = 20000
) -> Dataset:
    """450000 + 60000 Chinese news in pinyin, 5 topics (Zhang et al. 2015): the tokens of the first `length` words."""
    columns = {"path": "community-datasets/sogou_news", "x": ("title", "content")}
    return _news("sogou_news", data_dir, SOGOU, columns, length, vocabulary, encoding)


def _news(
    name: str,
    data_dir: Path | None,
    classes: list[str],
    columns: Mapping[str, Any],
    length: int,
    vocabulary: int,
    encoding: Encoding | None,
) -> Dataset:
    def read(folder: Path, stem: str = "") -> Dataset:
        parts = [_rows(_part(folder, stem + part)) for part in ("train", "test")]
        (train_y, train), (test_y, test) = parts
        x, used = tokens([*train, *test], len(train), length, vocabulary, encoding)
        return Dataset.divided(name, x, np.concatenate([train_y, test_y]), len(train), classes, encoding=used)

    if data_dir is not None and first_file(data_dir, f"{name}_train.csv*"):
        return read(data_dir, f"{name}_")
    fetch = {**columns, "length": length, "vocabulary": vocabulary, "encoding": encoding}
    return find(name, data_dir, [f"{name}_csv", name], PUT, fetch, read)


def _part(folder: Path, stem: str) -> Path:
    found = first_file(folder, f"{stem}.csv", f"{stem}.csv.gz")
    if found is None:
        raise UnalikeError(f"{folder} holds no {stem}.csv or {stem}.csv.gz, expected {PUT}")
    return found


def _rows(file: Path) -> tuple[np.ndarray, Sequence[str]]:
    """Labels and texts of one file: as published (no header; class from 1, title, text), or `label,text` from 0."""
    with reading(file, "a table of news"):
        import pandas as pd

        frame = pd.read_csv(file, header=None, dtype=str, keep_default_na=False)
        if len(frame.columns) < 2:
            raise UnalikeError(f"{file} holds one column, expected the class and then the texts; fetch it again")
        first = 0 if frame.iloc[0, 0] == "label" else 1
        frame = frame.iloc[1 - first :]
        y = frame[0].to_numpy().astype(np.int64) - first
    # The published files write a line break as a backslash and the letter n.
    text = frame[1].str.cat(frame.iloc[:, 2:], sep=" ").str.replace("\\n", " ", regex=False)
    return y, text.tolist()
