"""Data sets that are divided by nature: each client is a real hospital, school, carrier or person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unalike.data.array_checks import Pair
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import registry
from unalike.data.sources.table_files import read_table

HEART_DISEASE = Path(__file__).with_name("heart_disease.csv.gz")
"""The table of `heart_disease`, which comes with the package; `heart_disease.md` has its source and licence."""


@registry.register("heart_disease")
def heart_disease() -> Dataset:
    """920 patients of four hospitals, 13 clinical columns (Janosi et al. 1988): heart disease or none; group "hospital".

    It comes with the package (CC BY 4.0). A patient has the disease if `num`, 0 to 4, is above 0. Missing values are encoded as
    those of any table.
    """
    table = read_table(HEART_DISEASE, target="num", group="dataset", drop="id")
    return replace(
        table,
        train=_diagnosed(table.train),
        test=table.test and _diagnosed(table.test),
        classes=["no disease", "disease"],
        groups={"hospital": table.groups["dataset"]},
    )


def _diagnosed(samples: Pair) -> Pair:
    x, num = samples
    return x, (num > 0).long()
