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
        (first, place), (second, other_place) = (
            number.source.rsplit(", ", 1) for number in (self, other)
        )
        where = (
            place if place == other_place else f"{place} and {other_place.removeprefix('table ')}"
        )
        return Printed(round(self.value - other.value, 6), f"{first} - {second}, {where}")

    @staticmethod
    def mean(*numbers: Printed) -> Printed:
        """The mean of several numbers."""
        place = numbers[0].source.rsplit(", ", 1)[1]
        return Printed(
            round(fmean(n.value for n in numbers), 6), f"mean of {len(numbers)} numbers, {place}"
        )


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
    wanted |= {} if dataset is None else {"dataset": dataset}
    found = [
        record
        for record in _of_table(paper, table)
        if all(record[name] == value for name, value in wanted.items())
        and all(record["setting"].get(name) == value for name, value in setting.items())
        and record.get("legible", True)
    ]
    if len(found) != 1:
        raise UnalikeError(
            f"{len(found)} printed numbers have {wanted | setting} in table {table} of {paper}; expected one"
        )
    return _number(found[0])


def _number(record: Record) -> Printed:
    scale = 100 if record["unit"] == "fraction" else 1
    value, table = round(scale * record["value"], 6), record["table"]
    deviation = "" if record["sd"] is None else f" ± {scale * record['sd']:g}"
    return Printed(
        value, f"{value:g}{deviation}, {f'table {table}' if table[0].isdigit() else table}"
    )


@cache
def _of_table(paper: str, table: str) -> list[Record]:
    return [record for record in records() if (record["paper"], record["table"]) == (paper, table)]


@cache
def records() -> list[Record]:
    """All printed numbers."""
    return json.loads(
        gzip.decompress(files(__package__).joinpath("published.json.gz").read_bytes())
    )
