"""`docs/reference/run_folder.md` lists the files that runs and comparisons leave, and the columns of their tables."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import unalike as ua
from unalike.metrics.columns import Columns

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "run_folder.md").read_text()
FEW = {"data": "logistic_clusters", "clients": 3, "model": "linear", "rounds": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("folders")
    ua.run(
        "scaffold",
        record="updates + clients(layers='weight')",
        val=0.2,
        select="best",
        out=place / "recorded",
        **FEW,
    )
    ua.run("client_dp(noise_multiplier=1)", out=place / "private", **FEW)
    ua.run("ifca(clusters=2)", out=place / "grouped", **FEW)
    for rate in (0.1, 0.2):  # the second one keeps the report of the first
        ua.compare(["ditto"], seeds=1, work=ua.Work(lr=rate), out=place / "compared", **FEW)
    return [place / name for name in ("recorded", "private", "grouped", "compared")]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_page_lists_every_file(folders):
    paths = [path for folder in folders for path in folder.iterdir()]
    names = {
        re.sub("^model-.*[.]", "model-<group>.", path.name) + "/" * path.is_dir() for path in paths
    }
    assert {"records.parquet", "model-<group>.safetensors", "risks.parquet", "reports/"} <= names
    assert [name for name in sorted(names) if f"`{name}" not in PAGE] == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_page_lists_every_column_that_holds_no_score(folders):
    for file in (
        folder / f"{table}.parquet" for folder in folders for table in ("rounds", "clients")
    ):
        names = set(pd.read_parquet(file).columns)
        scores = {column.name for column in Columns.load(file.parent).all}
        assert [name for name in sorted(names - scores) if f"`{name}" not in PAGE] == []
