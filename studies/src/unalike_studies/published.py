"""The numbers that the papers print, and differences and means of them.

`published.json.gz` has one record a number: paper, table, method (the row), dataset (the column), setting, quantity, value, sd,
unit.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from unalike._utils.errors import UnalikeError

Record = dict[str, Any]


@dataclass(frozen=True)
class Printed:
    """A number that a paper prints, or that follows from such numbers.

    Attributes:
        value: the number. Fractions of samples are given in per cent, as the ledger shows accuracies.
        source: where it is printed, and how it follows from printed numbers: "64.08 - 61.04, table 1".
    """

    value: float
    source: str

    def __str__(self) -> str:
        return f"{self.value:g} ({self.source})"

    def __sub__(self, other: Printed) -> Printed:
        first, place = self.source.rsplit(", ", 1)
        second, other_place = other.source.rsplit(", ", 1)
        places = place
        if other_place != place:
            other_table = other_place.removeprefix("table ")
            places = f"{place} and {other_table}"
        return Printed(round(self.value - other.value, 6), f"{first} - {second}, {places}")

    @staticmethod
    def mean(*numbers: Printed) -> Printed:
        """The mean of several numbers."""
        place = numbers[0].source.rsplit(", ", 1)[1]
        value = round(fmean(number.value for number in numbers), 6)
        return Printed(value, f"mean of {len(numbers)} numbers, {place}")


def printed(
    paper: str,
    table: str,
    method: str,
    dataset: str | None = None,
    quantity: str = "accuracy",
    **setting: Any,
) -> Printed:
    """The number that a paper prints in a row and a column of a table.

    Args:
        paper: "fedlws", "fedsa", "fedpake", "fedmix" or "local-statistics".
        table: "1", "fig 3a", "text B.6".
        method: the row.
        dataset: the column; not needed where the other arguments name one number.
        quantity: the quantity that is printed.
        setting: entries of the record's setting, such as `alpha=0.1`.

    Raises:
        UnalikeError: no record, or more than one, has these entries, or its label is illegible in the copy of the paper.
    """
    wanted = {"method": method, "quantity": quantity}
    if dataset is not None:
        wanted["dataset"] = dataset

    def fits(record: Record) -> bool:
        in_setting = record["setting"]
        return (
            all(record[name] == value for name, value in wanted.items())
            and all(in_setting.get(name) == value for name, value in setting.items())
            and record.get("legible", True)
        )

    fitting = [record for record in _of_table(paper, table) if fits(record)]
    if len(fitting) != 1:
        raise UnalikeError(
            f"{len(fitting)} printed numbers have {wanted | setting} in table {table} of {paper}; "
            "expected one"
        )
    return _number(fitting[0])


def _number(record: Record) -> Printed:
    scale = 100 if record["unit"] == "fraction" else 1
    value = round(scale * record["value"], 6)
    text = f"{value:g}"
    if record["sd"] is not None:
        deviation = scale * record["sd"]
        text += f" ± {deviation:g}"
    place = record["table"]
    if place[0].isdigit():
        place = f"table {place}"
    return Printed(value, f"{text}, {place}")


@cache
def _of_table(paper: str, table: str) -> list[Record]:
    of_paper = [record for record in records() if record["paper"] == paper]
    return [record for record in of_paper if record["table"] == table]


@cache
def records() -> list[Record]:
    """All printed numbers."""
    data = files(__package__).joinpath("published.json.gz").read_bytes()
    return json.loads(gzip.decompress(data))
