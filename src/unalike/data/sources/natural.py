"""Data sets that are divided by nature: each client is a real hospital, school, carrier or person."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.data.belonging import ROWS_ALONE
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import NAMED_BY, checksum, registry, searched
from unalike.data.sources.table_files import read_table

HEART_DISEASE = Path(__file__).with_name("heart_disease.csv.gz")
"""The table of `heart_disease`, which comes with the package; `heart_disease.md` has its source and licence."""


@registry.register("heart_disease")
def heart_disease() -> Dataset:
    """920 patients of four hospitals, 13 clinical columns (Janosi et al. 1988): heart disease or none; group "hospital".

    It comes with the package (CC BY 4.0). A patient has the disease if `num`, 0 to 4, is above 0. Missing values are encoded as
    those of any table.
    """
    table = read_table(HEART_DISEASE, target="num", group="dataset", drop="id", unit=ROWS_ALONE)
    has_disease = _with_labels(table, lambda num: (num > 0).long())
    return replace(
        has_disease,
        classes=["no disease", "disease"],
        groups={"hospital": table.groups["dataset"]},
    )


@dataclass(frozen=True)
class NaturalTable:
    """A table whose rows have owners: what its columns mean, and which file it is.

    `target` is the column to predict, as for `read_table`, `positive` its positive class of two, `regression` whether it is an
    amount. `drop` are columns that hold the answer, or nothing. `group` is the column with the owners, `source` says where the
    rows are from and their licence, `sha256` is that of the CSV file, decompressed.
    """

    summary: str
    target: str
    group: str
    source: str
    sha256: str
    positive: str | None = None
    regression: bool | None = None
    drop: tuple[str, ...] = ()

    def read(self, name: str, data_dir: Path | None) -> Dataset:
        """Read the table. Raises `UnalikeError` where its file is missing or another one."""
        path = file_of(name, f"{name}.csv.gz", data_dir, self.source, self.sha256)
        data = read_table(
            path,
            target=self.target,
            group=self.group,
            unit=ROWS_ALONE,
            regression=self.regression,
            drop=tuple(self.drop),
        )
        if self.positive is None or data.classes is None or data.classes[0] != self.positive:
            return data
        # Classes are sorted by name, and the positive one has to be the second.
        return replace(_with_labels(data, lambda y: 1 - y), classes=data.classes[::-1])


TOML = Path(__file__).with_suffix(".toml").read_text("utf-8")
TABLES = {name: NaturalTable(**fields) for name, fields in tomllib.loads(TOML).items()}


def _register(name: str, table: NaturalTable) -> None:
    def reader(data_dir: Path | None) -> Dataset:
        return table.read(name, data_dir)

    reader.__doc__ = table.summary
    reader.__qualname__ = name
    registry.register(name)(reader)


for _name, _table in TABLES.items():
    _register(_name, _table)


def file_of(name: str, file: str, data_dir: Path | None, source: str, sha256: str) -> Path:
    """The file of a data set in the folder of data files, or in its folder `natural`.

    Raises:
        UnalikeError: It is not there, or another file. The message names source and checksum.
    """
    expected = f"{source}; SHA-256 of the decompressed file: {sha256}"
    places = [] if data_dir is None else [data_dir / file, data_dir / "natural" / file]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise UnalikeError(
            f"{name}: found no {file} {searched(data_dir)}; put it into the folder of "
            f"data files ({NAMED_BY}). Expected: {expected}"
        )
    found = checksum(path)
    if found != sha256:
        raise UnalikeError(
            f"{path} has the checksum {found}. Expected: {expected}. Read another table by its "
            "path, with --target and --group"
        )
    return path


def _with_labels(data: Dataset, change: Callable[[Tensor], Tensor]) -> Dataset:
    """The data set with other labels for the same samples."""
    x, y = data.train
    test = data.test
    if test is not None:
        test = (test[0], change(test[1]))
    return replace(data, train=(x, change(y)), test=test, classes=None)
