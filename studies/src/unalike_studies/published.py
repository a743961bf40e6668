"""The numbers that the papers print, and differences and means of them.

`published.json.gz` has one record a number: paper, table, method (the row), dataset (the column), setting, quantity, value, sd,
unit.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
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
        deviation: the deviation that is printed with it; None if none is.
        level: the smallest accuracy that it is made of, in per cent; None for other numbers.
        records: the printed numbers that it is made of, by their place in `records()`.
    """

    value: float
    source: str
    deviation: float | None = None
    level: float | None = None
    records: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"{self.value:g} ({self.source})"

    def __sub__(self, other: Printed) -> Printed:
        first, place = self.source.rsplit(", ", 1)
        second, other_place = other.source.rsplit(", ", 1)
        if " - " in second:
            second = f"({second})"
        places = place
        if other_place != place:
            other_table = other_place.removeprefix("table ")
            places = f"{place} and {other_table}"
        return Printed(
            value=round(self.value - other.value, 6),
            source=f"{first} - {second}, {places}",
            deviation=_combined([self, other]),
            level=_level([self, other]),
            records=self.records | other.records,
        )

    @staticmethod
    def mean(*numbers: Printed) -> Printed:
        """The mean of several numbers."""
        place = numbers[0].source.rsplit(", ", 1)[1]
        deviation = _combined(numbers)
        records_of_numbers = [number.records for number in numbers]
        return Printed(
            value=round(fmean(number.value for number in numbers), 6),
            source=f"mean of {len(numbers)} numbers, {place}",
            deviation=None if deviation is None else deviation / len(numbers),
            level=_level(numbers),
            records=frozenset().union(*records_of_numbers),
        )

    @staticmethod
    def middle(low: Printed, high: Printed) -> Printed:
        """The middle of a printed range."""
        place = low.source.rsplit(", ", 1)[1]
        return Printed(
            value=(low.value + high.value) / 2,
            source=f"middle of {low.value:g} to {high.value:g}, {place}",
            level=_level([low, high]),
            records=low.records | high.records,
        )


def _combined(numbers: Sequence[Printed]) -> float | None:
    """The deviation of a sum of numbers; None where one of them has none."""
    deviations = [number.deviation for number in numbers if number.deviation is not None]
    return math.hypot(*deviations) if len(deviations) == len(numbers) else None


def _level(numbers: Sequence[Printed]) -> float | None:
    """The smallest accuracy that numbers are made of."""
    return min((number.level for number in numbers if number.level is not None), default=None)


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

    fitting = [place for place, record in _of_table(paper, table) if fits(record)]
    if len(fitting) != 1:
        raise UnalikeError(
            f"{len(fitting)} printed numbers have {wanted | setting} in table {table} of {paper}; "
            "expected one"
        )
    return _number(fitting[0])


def _number(place_in_records: int) -> Printed:
    record = records()[place_in_records]
    scale = 100 if record["unit"] == "fraction" else 1
    value = round(scale * record["value"], 6)
    text = f"{value:g}"
    deviation = None
    if record["sd"] is not None:
        deviation = scale * record["sd"]
        text += f" ± {deviation:g}"
    place = record["table"]
    if place[0].isdigit():
        place = f"table {place}"
    is_accuracy = record["quantity"].startswith("accuracy")
    return Printed(
        value=value,
        source=f"{text}, {place}",
        deviation=deviation,
        level=value if is_accuracy else None,
        records=frozenset({place_in_records}),
    )


@cache
def _of_table(paper: str, table: str) -> list[tuple[int, Record]]:
    """The numbers of a table, with their places in `records()`."""
    return [
        (place, record)
        for place, record in enumerate(records())
        if (record["paper"], record["table"]) == (paper, table)
    ]


@cache
def records() -> list[Record]:
    """All printed numbers."""
    data = files(__package__).joinpath("published.json.gz").read_bytes()
    return json.loads(gzip.decompress(data))
