"""Columns that give away the target, which makes every score perfect, or the owner of a row, whom a model is not to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike.data.columns import MANY_ROWS, NUMBERS, drop_flags, kind_of

if TYPE_CHECKING:
    import pandas as pd

ROWS_OF_A_VALUE = 5
"""With fewer rows a value, on average, each value of a column may have one target by chance."""
LEAST_CORRELATION = 1 - 1e-9
"""From this correlation with the target on, a column is the target in another unit."""
MOST_CLASSES = 10
"""With more values of the target it is no set of classes that a threshold tells apart."""


def giveaways(
    features: pd.DataFrame,
    targets: Sequence[pd.Series],
    owners: Mapping[str, pd.Series],
    where: str,
    accept: bool = False,
) -> list[str]:
    """Sentences about features that tell a target exactly, or are the same in all rows of an owner.

    `owners` are the columns that say who holds a row, by name. Raises `UnalikeError`, unless it is accepted, for a feature that is
    a target in other words: each value of one belongs to one value of the other, or one is the other in another unit.
    """
    notes: list[str] = []
    copies: list[str] = []
    for target in targets:
        notes += _of_target(features.drop(columns=copies), target, copies, where, accept)
    others = features.drop(columns=copies)
    for owner, values in owners.items():
        notes += _of_owner(others, owner, values, where)
    return notes


def _of_target(
    features: pd.DataFrame, target: pd.Series, copies: list[str], where: str, accept: bool
) -> list[str]:
    """Sentences about features that tell a target exactly; its copies are added to `copies`."""
    notes = []
    found_copies = [str(name) for name in features if _is_copy(features[name], target)]
    if found_copies:
        is_or_are = "is" if len(found_copies) == 1 else "are"
        found = (
            f"{where}: {_listed(found_copies)} {is_or_are} the target {target.name!r} in other words: each "
            f"value of one has one value of the other in all rows; leave out: {drop_flags(*found_copies)}"
        )
        if not accept:
            raise UnalikeError(
                f"{found}, or, if it is known before the target is, --accept, in Python accept=True"
            )
        notes.append(found)
        copies += found_copies
    others = features.drop(columns=found_copies)
    telling = [str(name) for name in others if _tells(others[name], target)]
    if telling:
        notes.append(
            f"{where}: {_listed(telling)} alone {'tells' if len(telling) == 1 else 'tell'} the target {target.name!r} in all rows: "
            f"if it is known only after the target is, leave out: {drop_flags(*telling)}"
        )
    return notes


def _of_owner(features: pd.DataFrame, owner: str, values: pd.Series, where: str) -> list[str]:
    """Sentences about features that are an owner in other words, or its traits."""
    notes = []
    same = [str(name) for name in features if _follows(features[name], values)]
    twins = [name for name in same if _follows(values, features[name])]
    if twins:
        notes.append(
            f"{where}: {_listed(twins)} {'is' if len(twins) == 1 else 'are'} {owner!r} in other words, so that the model sees "
            f"whose row it is; leave out: {drop_flags(*twins)}"
        )
    traits = [name for name in same if name not in twins]
    if traits:
        notes.append(
            f"{where}: {_listed(traits)} {'is' if len(traits) == 1 else 'are'} the same in all rows of each {owner!r}: traits "
            f"of it, by which a model may know whose row it is; to leave out: {drop_flags(*traits)}"
        )
    return notes


def _is_copy(column: pd.Series, target: pd.Series) -> bool:
    """Whether a column is the target in other words or in another unit."""
    if _follows(column, target) and _follows(target, column):
        return True
    if kind_of(column) != NUMBERS or kind_of(target) != NUMBERS:
        return False
    known = column.notna() & target.notna()
    x = column[known].to_numpy(float)
    y = target[known].to_numpy(float)
    if len(x) < MANY_ROWS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return False
    return bool(abs(np.corrcoef(x, y)[0, 1]) >= LEAST_CORRELATION)


def _tells(column: pd.Series, target: pd.Series) -> bool:
    """Whether the target follows from the column: by its values, or by thresholds between the classes."""
    if _follows(target, column):
        return True
    classes = target.nunique()
    if kind_of(column) != NUMBERS or not 1 < classes <= MOST_CLASSES:
        return False
    known = column.notna()
    spans = column[known].astype(float).groupby(target[known]).agg(["min", "max", "size"])
    spans = spans.sort_values("min")
    is_apart = (spans["min"].to_numpy()[1:] > spans["max"].to_numpy()[:-1]).all()
    return bool(known.all() and is_apart and spans["size"].min() >= MANY_ROWS / 5)


def _follows(column: pd.Series, cause: pd.Series) -> bool:
    """Whether each value of `cause` has one value of a column that is not constant, with rows enough to be no accident."""
    known = (column.notna() & cause.notna()).to_numpy()
    values = cause[known].nunique()
    if not values or known.sum() < max(MANY_ROWS, ROWS_OF_A_VALUE * values):
        return False
    # missing values are as telling as others, so that a column that is known in few rows is none
    if 2 * known.sum() < len(column) or column[known].nunique() < 2:
        return False
    import pandas as pd

    pairs = pd.DataFrame({"cause": cause[known].to_numpy(), "value": column[known].to_numpy()})
    return len(pairs.drop_duplicates()) == values


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
