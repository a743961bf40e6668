"""Data sets that are divided by nature: each client is a real hospital, school, carrier or person."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import FOLDER, content, every_fifth, registry, searched
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
        _with_labels(table, lambda num: (num > 0).long()),
        classes=["no disease", "disease"],
        groups={"hospital": table.groups["dataset"]},
    )


@dataclass(frozen=True)
class NaturalTable:
    """A table whose rows have owners: what its columns mean, and which file it is.

    `target` is the column to predict, `positive` its positive class of two, `amount` what a unit of it is worth if it is an
    amount, such as 1000. `group` is the column with the owners, `source` says where the rows are from and their licence,
    `sha256` is that of the CSV file, decompressed.
    """

    summary: str
    target: str
    group: str
    source: str
    sha256: str
    positive: str | None = None
    amount: float | None = None

    def read(self, name: str, data_dir: Path | None) -> Dataset:
        """Read the table. Raises `UnalikeError` where its file is missing or another one."""
        data = read_table(
            found(name, f"{name}.csv.gz", data_dir, self.source, self.sha256),
            target=self.target,
            group=self.group,
            regression=None if self.amount is None else True,
        )
        if (amount := self.amount) is not None:
            return _with_labels(data, lambda y: y / amount)
        if self.positive is not None and data.classes is not None and data.classes[0] == self.positive:
            return replace(_with_labels(data, lambda y: 1 - y), classes=data.classes[::-1])
        return data


TABLES: Mapping[str, NaturalTable] = {
    "flights": NaturalTable(
        '65,470 flights of 16 carriers from New York in 2013 (nycflights13): late or on time; group "carrier".',
        "late",
        "carrier",
        "every fifth row of flights in the R package nycflights13 (CC0)",
        "4b686177bfcaea331b2e6910915caa92f3161b1d8356179eaa8cdaeee1ace217",
        positive="late",
    ),
    "covid_testing": NaturalTable(
        '15,223 tests at 88 places of one hospital in 2020 (medicaldata): positive or negative; group "clinic_name".',
        "result",
        "clinic_name",
        "covid_testing in the R package medicaldata (MIT)",
        "3c0fa5eaf0df78dc4e421f89276786d7627b59d5a57653ea90e2d41d33f1198b",
        positive="positive",
    ),
    "pancreatitis": NaturalTable(
        '602 patients of four centres of a trial (Elmunzer et al. 2012): pancreatitis or none; group "site".',
        "outcome",
        "site",
        "indo_rct in the R package medicaldata (MIT)",
        "c0ae1bc2de6d0c6a5e0a483801553befb888651fc9650563560870f94a2be6f3",
        positive="1_yes",
    ),
    "math_achievement": NaturalTable(
        '7,185 pupils of 160 schools (High School and Beyond 1982): points in mathematics; group "school".',
        "mAch",
        "school",
        "Hsb82 in the R package mlmRev (GPL-2)",
        "01ebe7f2c4b0daa9dd0939a0462cb81d7f60617d991822ae7c499a384100d14e",
        amount=1,
    ),
    "chemistry_grades": NaturalTable(
        '31,022 pupils of 131 school authorities (A levels 1997): grade in chemistry, 0 to 10; group "lea".',
        "score",
        "lea",
        "Chem97 in the R package mlmRev (GPL-2)",
        "4f9233d8c23563f6f64ca45c8e73cb4212a9a542277284355827b2da40407ce3",
        amount=1,
    ),
    "lecture_ratings": NaturalTable(
        '73,421 ratings of lectures in 14 departments (ETH Zurich): 1 to 5; group "dept".',
        "y",
        "dept",
        "InstEval in the R package lme4 (GPL-2)",
        "bacf1324885b376b03a7ca55c4c439d1a20cd9818b27bb4784a48f7ed4cf65b1",
        amount=1,
    ),
    "loans": NaturalTable(
        '9,857 loans in 50 states (Lending Club 2016): good or bad; group "addr_state".',
        "Class",
        "addr_state",
        "lending_club in the R package modeldata (MIT)",
        "3dbe4d83e6efc20a42c349480fdf8e710b06cc4273eedf96896d137c9771537c",
        positive="bad",
    ),
    "house_prices": NaturalTable(
        '2,930 houses in 28 neighborhoods of Ames (De Cock 2011): price in 100,000 dollars; group "Neighborhood".',
        "Sale_Price",
        "Neighborhood",
        "ames in the R package modeldata (MIT)",
        "14f235339bbf726f574bf2eb24f6dbbacbb6d81dba24d754fd0b83d57aabe0fa",
        amount=1e5,
    ),
}


def _register(name: str, table: NaturalTable) -> None:
    def reader(data_dir: Path | None) -> Dataset:
        return table.read(name, data_dir)

    reader.__doc__ = table.summary
    reader.__qualname__ = name
    registry.register(name)(reader)


for _name, _table in TABLES.items():
    _register(_name, _table)


@registry.register("smartwatch")
def smartwatch(data_dir: Path | None) -> Dataset:
    """2,369 windows of 10 subjects' smartwatches (Burns et al. 2018): one of 7 shoulder exercises; group "subject".

    A window of 100 steps of three accelerations and three rotations is an image [1, 100, 6], in units of the training windows'
    standard deviations. Windows of one `recording` are on one side of a split; `side` is the arm with the watch.
    """
    source = "the data of the Python package seglearn 1.2.5 (BSD), in windows of 100 steps that do not overlap"
    sha256 = "04f7117fc8a5a99524e29a46398c649afe6f5cce5d3dfc861e4d5cbe3931a7aa"
    path = found("smartwatch", "smartwatch.npz", data_dir, source, sha256)
    with reading(path, "an archive of windows"), np.load(path, allow_pickle=False) as archive:
        x, y, classes = archive["x"], archive["y"].astype(np.int64), archive["classes"].tolist()
        groups = {name: archive[name].astype(np.int64) for name in ("subject", "recording", "side")}
    test = every_fifth(y, groups["recording"])
    order, train = np.argsort(test, kind="stable"), int((~test).sum())
    x = (x - x[~test].mean((0, 1))) / x[~test].std((0, 1))
    groups = {name: values[order] for name, values in groups.items()}
    rows = x[order, None].astype(np.float32)
    return Dataset.divided("smartwatch", rows, y[order], train, classes, groups, unit="recording", published=False)


def found(name: str, file: str, data_dir: Path | None, source: str, sha256: str) -> Path:
    """The file of a data set in the folder of data files, or in its folder `natural`.

    Raises:
        UnalikeError: It is not there, or another file. The message names source and checksum.
    """
    expected = f"{source}; SHA-256 of the decompressed file: {sha256}"
    places = [] if data_dir is None else [data_dir / file, data_dir / "natural" / file]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise UnalikeError(
            f"{name}: found no {file} {searched(data_dir)}; put it into the folder of data files (data_dir= or {FOLDER}). "
            f"Expected: {expected}"
        )
    checksum = hashlib.sha256(content(path)).hexdigest()
    if checksum != sha256:
        raise UnalikeError(
            f"{path} has the checksum {checksum}. Expected: {expected}. Read another table by its path, with --target and --group"
        )
    return path


def _with_labels(data: Dataset, change: Callable[[Tensor], Tensor]) -> Dataset:
    """The data set with other labels for the same samples."""
    (x, y), test = data.train, data.test
    return replace(data, train=(x, change(y)), test=None if test is None else (test[0], change(test[1])), classes=None)
