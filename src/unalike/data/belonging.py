"""Rows of a table that belong together, such as visits of one patient or copies of a row: they are on one side of a division.

A model that has seen a patient in training is right about the same patient's other rows, and says nothing about other patients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np

from unalike.data.columns import (
    MANY_ROWS,
    NUMBERS,
    OWNER_PATTERN,
    TEXTS,
    date_formats,
    kind_of,
    texts_of,
)
from unalike.data.leaks import LEAST_SHARE, MOST_CHANCE_TWINS, TELLING_VALUES

if TYPE_CHECKING:
    import pandas as pd

ROWS_ALONE = "none"
"""The unit of a table of which each row stands for itself, whatever its columns seem to say."""
COPIES = "copies of a row"
"""The name of the units of a table that has rows several times."""
PERSON_PATTERN = re.compile(
    r"((study|unique|record|hospital)[\W_]*)?"
    r"(id|pid|mrn|patients?|pat|pt|subjects?|subj|persons?|participants?|probands?|individuals?|respondents?|cases?|users?"
    r"|customers?|members?|students?|pupils?|households?|animals?|records?)"
    r"[\W_]*(id|no|nr|num|number|code|key)?[\W_]*",
    re.I,
)
"""Names of columns that say whose row it is: a person, or something else that may have several rows."""
FEWEST_UNITS = 10
"""A column with fewer values names kinds, not persons."""
LEAST_CONSTANT_SHARE = 0.95
"""The least share of neighboring rows of one value in which a column has to agree so that it is a trait of that value."""
MOST_CHANCE_SHARE = 0.6
"""A column that agrees in a larger share of all pairs of rows tells nothing by agreeing."""
LEAST_TRAITS = 3
"""With fewer columns that are traits of its values, a column is not taken for one of persons."""
MOST_ROWS = 20_000
"""Rows in which traits are looked for; those of one person are usually near each other."""
MOST_COLUMNS = 200
"""Columns among which traits are looked for."""
MOST_CANDIDATES = 20
"""Columns that may name persons, the ones with most values, of which traits are looked for."""


@dataclass(frozen=True)
class Units:
    """The units of a table's rows: their name, a text or number for each row, and a sentence that says what was found."""

    name: str
    values: np.ndarray
    note: str

    @property
    def notes(self) -> list[str]:
        """The sentence, unless there is none."""
        return [self.note] if self.note else []


def units_of(
    frame: pd.DataFrame,
    unit: str | None,
    read_otherwise: Sequence[str],
    owners: Sequence[str],
    where: str,
    are_sought: bool = True,
) -> Units | None:
    """The units that the column `unit` names, or else, if they `are_sought`, those that are found (`find_units`).

    None where rows stand for themselves.
    """
    if unit is not None and unit != ROWS_ALONE:
        return Units(unit, np.array(texts_of(frame[unit])), note="")
    if unit == ROWS_ALONE or not are_sought:
        return None
    return find_units(frame, read_otherwise, owners, where)


def find_units(
    frame: pd.DataFrame, read_otherwise: Sequence[str], owners: Sequence[str], where: str
) -> Units | None:
    """The rows that belong together although nobody said so: those of one person, else copies; None without such rows.

    `owners` are the columns that say who holds a row, `read_otherwise` others that name no persons, such as the target. A column of
    persons has values that repeat, and a
    name such as `patient_id`, or traits: at least half of the other columns are the same in all rows of a value, as sex and age
    are. Copies are equal in all columns but those that number the rows; they are none where equal rows are likely by chance, as
    with few categories.
    """
    others = frame.drop(columns=list(dict.fromkeys([*read_otherwise, *owners])))
    repeating = [str(name) for name in others if _repeats(others[name])]
    # a column with one value at each owner is a second name of the owner
    fewest = max((2 * frame[owner].nunique() for owner in owners), default=0)
    persons = [
        name
        for name in repeating
        if not OWNER_PATTERN.fullmatch(name) and frame[name].nunique() >= fewest
    ]
    named = [name for name in persons if PERSON_PATTERN.fullmatch(name)]
    if named:
        # of visits and patients, patients are the larger units
        largest = min(named, key=lambda name: frame[name].nunique())
        return _of_column(frame[largest], where)
    traits = _traits(others, persons)
    if traits:
        name = max(traits, key=lambda name: traits[name])
        return _of_column(frame[name], where, traits[name])
    return _copies(frame, where)


def _repeats(column: pd.Series) -> bool:
    """Whether a column has texts or whole numbers that may name persons, some of whom have several rows."""
    kind = kind_of(column)
    if kind not in (NUMBERS, TEXTS) or column.nunique() < FEWEST_UNITS:
        return False
    if kind == NUMBERS and (column.dropna() % 1 != 0).any():
        return False
    if kind == TEXTS and date_formats(column):
        return False
    repeated = column.notna() & column.duplicated(keep=False)
    return bool(repeated.mean() >= LEAST_SHARE)


def _traits(frame: pd.DataFrame, candidates: Sequence[str]) -> dict[str, int]:
    """Column -> how many other columns are the same in all rows of its values, for columns where these are enough."""
    some = frame.iloc[:MOST_ROWS, :MOST_COLUMNS]
    codes = {str(name): _codes(some[name]) for name in some}
    telling = {name: code for name, code in codes.items() if _chance(code) <= MOST_CHANCE_SHARE}
    finest = sorted(codes.keys() & set(candidates), key=lambda name: -codes[name].max())
    traits = {}
    for name in finest[:MOST_CANDIDATES]:
        order = np.argsort(codes[name], kind="stable")
        is_pair = np.diff(codes[name][order]) == 0
        agreeing = 0
        for other, code in telling.items():
            if other != name and is_pair.any():
                agreeing += (np.diff(code[order])[is_pair] == 0).mean() >= LEAST_CONSTANT_SHARE
        if agreeing >= max(LEAST_TRAITS, (len(codes) - 1) / 2):
            traits[name] = int(agreeing)
    return traits


def _of_column(column: pd.Series, where: str, traits: int = 0) -> Units:
    """The units that a column names; a row without a value is one by itself."""
    times = column.value_counts()
    values = np.array(texts_of(column), dtype=object)
    for row in np.flatnonzero(column.isna()):
        values[row] = f"(missing, row {row})"
    name = str(column.name)
    reason = f", and {traits} other columns are the same in all rows of a value" if traits else ""
    return Units(
        name=name,
        values=values.astype(str),
        note=(
            f"{where}: {name!r} repeats: {len(times)} values in {len(column)} rows, up to {times.max()} rows each{reason}. All "
            f"rows of a value train or all test, and it is no feature, as {_flag(name)} says; if its rows do not belong together: "
            f"{_flag(ROWS_ALONE)}"
        ),
    )


def _copies(frame: pd.DataFrame, where: str) -> Units | None:
    """Rows that are equal but for columns that number them, as units; None if there are few, or they are equal by chance."""
    count = len(frame)
    if count < MANY_ROWS:
        return None
    compared = [name for name in frame if frame[name].nunique(dropna=False) < count]
    # one number for each row, equal for others by accident alone: sums that overflow begin anew, as hashes do
    factors = np.random.default_rng(0).integers(-(2**63), 2**63, len(compared), np.int64) | 1
    keys = np.zeros(count, np.int64)
    for name, factor in zip(compared, factors):
        keys += _codes(frame[name]) * factor
    _, unit, times = np.unique(keys, return_inverse=True, return_counts=True)
    surplus = count - len(times)
    if not compared or surplus < LEAST_SHARE * count:
        return None
    shares = sorted(_chance(_codes(frame[name])) for name in compared)
    twins_by_chance = count * np.prod(shares[:TELLING_VALUES])
    if twins_by_chance > MOST_CHANCE_TWINS:
        return None
    return Units(
        name=COPIES,
        values=unit,
        note=(
            f"{where}: {surplus} of {count} rows are copies of another row (up to {times.max()} alike). Copies train together "
            f"or test together; keep one of each, or, if they are different cases: {_flag(ROWS_ALONE)}"
        ),
    )


def _codes(column: pd.Series) -> np.ndarray:
    """The number of each row's value, int64 [N]; a missing value is one, too."""
    import pandas as pd

    return pd.factorize(column, use_na_sentinel=False)[0].astype(np.int64)


def _chance(code: np.ndarray) -> float:
    """The share of all pairs of rows that agree in a column."""
    times = np.bincount(code)
    pairs = len(code) * (len(code) - 1)
    return float((times * (times - 1)).sum() / max(1, pairs))


def _flag(unit: str) -> str:
    """The flag that names the units, and the argument in Python."""
    return f"--unit {quote(unit)}, in Python unit={unit!r}"
