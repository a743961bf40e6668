"""The page about survival with the published tables, where a folder of data files has them: its scores are FLamby's."""

import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from page_blocks import ROOT, follow

PAGE = ROOT / "docs" / "tutorials" / "survival.md"
TABLES = {"tcga_brca.csv": "brca.csv", "tcga_brca_split.csv": "train_test_split.csv"}
"""Name in the folder of data files -> name in FLamby's repository."""
FLAMBYS_FEDADAGRAD = 0.834
FLAMBYS_BEST_FEDAVG = 0.829
"""C-index of all test patients: the mean of five seeds, and the largest of five."""
MARGIN = 0.04
"""Twice the deviation between seeds."""


@pytest.mark.skipif(
    "UNALIKE_DATA" not in os.environ, reason="UNALIKE_DATA names no folder of data files"
)
def test_published_tables_have_the_published_concordance(tmp_path, monkeypatch):
    folder = Path(os.environ["UNALIKE_DATA"])
    for name, published_name in TABLES.items():
        if not (folder / name).is_file():
            pytest.skip(f"{folder} has no {name}")
        shutil.copy(folder / name, tmp_path / published_name)
    monkeypatch.chdir(tmp_path)
    page = ModuleType("page_survival")
    assert list(follow(PAGE, page, network=False)) == []
    assert page.adagrad.history.last["c_index"] == pytest.approx(FLAMBYS_FEDADAGRAD, abs=MARGIN)
    assert page.run.history.last["c_index"] > FLAMBYS_BEST_FEDAVG
