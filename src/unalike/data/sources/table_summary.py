"""Summaries of tables, from which the encoding of several tables follows although nobody has them all.

A site summarizes its training rows with `summarize`: sums of its columns, quantiles, and the names of frequent categories. `agreed`
makes of all summaries the encoding that `table_encoding.fit` would make of all rows together, up to the resolution of quantiles.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated
from unalike.data.columns import (
    FORMATS,
    MISSING,
    NUMBERS,
    dates_of,
    days_of,
    doubts,
    floats_of,
    kind_of,
    require_columns,
    texts_of,
)
from unalike.data.sources.registry import every_fifth
from unalike.data.sources.table_files import opened
from unalike.data.sources.table_targets import check_classes, labels, with_target
from unalike.data.table_encoding import MOST_CATEGORIES, Category, Encoding, Number, category_of

if TYPE_CHECKING:
    import pandas as pd

LEAST = 5
"""Fewest rows that a name or a number of a summary is about, unless the site says otherwise."""
PARTS = 20
"""Most parts with equally many values that quantiles divide a column into."""
TRUTHS = {str(False), str(True)}


@validated
class NumberSums:
    """A column of numbers: how many there are and are missing, their mean, their squared deviations from it, inner quantiles.

    Quantiles divide the values into parts with equally many of them. The smallest and the largest value are not among them.
    """

    name: str
    count: NonNegativeInt
    missing: NonNegativeInt
    mean: FiniteFloat
    deviations: Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
    quantiles: tuple[FiniteFloat, ...]
    truth: bool = False
    date: str = ""

    def categories(self) -> CategoryCounts:
        """The same column of true/false as a category."""
        true = round(self.mean * self.count)
        values = {str(True): true, str(False): self.count - true, MISSING: self.missing}
        return CategoryCounts(self.name, {value: rows for value, rows in values.items() if rows})

    def below(self, x: np.ndarray) -> np.ndarray:
        """The share of the values below x, by the quantiles; x is none of them."""
        if not self.quantiles:
            return (x > self.mean).astype(float)
        levels = np.arange(1, len(self.quantiles) + 1) / (len(self.quantiles) + 1)
        half = levels[0] / 2
        return np.interp(x, self.quantiles, levels, left=half, right=1 - half)


@validated
class CategoryCounts:
    """A column of texts: the rows of each frequent value; "(missing)" is one."""

    name: str
    values: Mapping[str, PositiveInt]


@validated
class TargetNames:
    """The column to predict: its kind, and the names of the frequent classes. `numbers`: the names are whole numbers."""

    name: str
    kind: Literal["classification", "binary", "regression"]
    classes: tuple[str, ...] = ()
    numbers: bool = False


@validated
class TableSummary:
    """A site's summary of its table. Each name, mean and quantile is about `least` rows or more.

    `rows` are its training rows, `columns` the names of its features in their order.
    """

    rows: NonNegativeInt
    least: PositiveInt
    columns: tuple[str, ...]
    target: TargetNames
    numbers: tuple[NumberSums, ...] = ()
    categories: tuple[CategoryCounts, ...] = ()

    def text(self) -> str:
        """The summary as JSON text, indented."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    def save(self, path: Path) -> None:
        """Write the summary as JSON."""
        write_bytes(path, self.text().encode())

    @classmethod
    def load(cls, path: Path) -> TableSummary:
        """Read a summary. Raises `UnalikeError` for anything else."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UnalikeError(
                f"{path} is not the summary of a table ({str(error)[:300]}); expected a file that `unalike federation summarize` "
                "wrote"
            ) from None


def summarize(
    path: Path,
    *,
    target: str,
    drop: Sequence[str] = (),
    group: Sequence[str] = (),
    unit: str | None = None,
    regression: bool | None = None,
    date: Sequence[str] = (),
    labelled_only: bool = False,
    least: int = LEAST,
    **dialect: Any,
) -> TableSummary:
    """Summarize the training rows of a table, those that a site would train on: all but every fifth of a class.

    The arguments are those of `read_table`; all samples of a unit are summarized, or none. `least` is the fewest rows that a
    name or a number in the summary is about: rarer categories and classes are left out, and numbers of a column with fewer
    values count as missing. Raises `UnalikeError`, which names the column, for a table that cannot be read or encoded.
    """
    from pandas.api.types import is_bool_dtype

    where = path.name
    frame, column, source = with_target(opened(path, **dialect), target, where, labelled_only)
    unused = list(dict.fromkeys([source, *drop, *group, *([] if unit is None else [unit])]))
    require_columns(frame, unused, where)
    y, classes = labels(column, where, regression)
    if classes is not None:
        check_classes(column, len(classes), where)
    train = ~every_fifth(y, None if unit is None else np.array(texts_of(frame[unit])))
    features, dates = (
        frame[train].drop(columns=unused),
        dates_of(frame.drop(columns=unused), date, where),
    )
    for note in doubts(features.drop(columns=[*dates]), where):
        warn(note)
    numbers, categories = [], []
    for name, values in zip(map(str, features), (features[column] for column in features)):
        if name in dates:
            numbers.append(
                _sums(
                    name, days_of(frame[name], dates[name], where)[train], False, least, dates[name]
                )
            )
        elif kind_of(values) == NUMBERS or not values.notna().any():
            numbers.append(_sums(name, floats_of(values, where), False, least))
        elif is_bool_dtype(values):
            numbers.append(_sums(name, floats_of(values, where), True, least))
        else:
            category_of(
                values, len(values), where
            )  # refuses dates, names of rows, numbers with texts among them
            frequent = {
                text: n for text, n in sorted(Counter(texts_of(values)).items()) if n >= least
            }
            categories.append(CategoryCounts(name, frequent))
    return TableSummary(
        len(features),
        least,
        tuple(map(str, features)),
        _target(column, y, classes, least),
        tuple(numbers),
        tuple(categories),
    )


def agreed(summaries: Mapping[str, TableSummary]) -> tuple[Encoding, TargetNames]:
    """The encoding and the target of several tables.

    Means and scales are those of all training rows together; a missing number becomes the median by the sites' quantiles. A
    category is one that is frequent at some site.

    The target has the classes of all sites. Raises `UnalikeError`, which names both sites, where these have other columns, or
    other kinds of values in the same one.
    """
    first, one = next(iter(summaries.items()))
    for site, found in summaries.items():
        if {*found.columns} != {*one.columns}:
            odd = ", ".join(sorted({*found.columns} ^ {*one.columns}))
            raise UnalikeError(
                f"{site} and {first} have other columns: only one of them has {odd}; expected the same columns at all sites: "
                "rename them, or leave them out with --drop"
            )
    numbers, categories = [], []
    for name in one.columns:
        sums = {
            site: n for site, found in summaries.items() for n in found.numbers if n.name == name
        }
        counts = {
            site: c for site, found in summaries.items() for c in found.categories if c.name == name
        }
        if counts:
            categories.append(_category(name, sums, counts))
        else:
            numbers.append(_number(name, [*sums.values()]))
    target = _agreed_target(summaries)
    return Encoding(tuple(numbers), tuple(categories), target=target.name), target


def _sums(name: str, values: np.ndarray, truth: bool, least: int, date: str = "") -> NumberSums:
    known = values[~np.isnan(values)]
    if len(known) < least:
        return NumberSums(name, 0, len(values), 0.0, 0.0, (), truth, date)
    mean, parts = float(known.mean()), min(PARTS, len(known) // least)
    quantiles = np.quantile(known, np.arange(1, parts) / parts).tolist()
    deviations = float(((known - mean) ** 2).sum())
    return NumberSums(
        name, len(known), len(values) - len(known), mean, deviations, tuple(quantiles), truth, date
    )


def _target(column: pd.Series, y: np.ndarray, classes: list[str] | None, least: int) -> TargetNames:
    name, kind = str(column.name), kind_of(column)
    if classes is None:
        return TargetNames(name, "regression")
    rows = np.bincount(y, minlength=len(classes))
    frequent = tuple(text for text, n in zip(classes, rows) if n >= least)
    return TargetNames(name, "classification", frequent, kind == NUMBERS)


def _number(name: str, sums: Sequence[NumberSums]) -> Number:
    """The encoding of a column of numbers, as of all rows: missing values are the median before mean and scale are taken."""
    counts, missing = np.array([n.count for n in sums]), sum(n.missing for n in sums)
    if not counts.sum():
        raise UnalikeError(
            f"no site has enough values of the column {name!r}; leave it out with --drop {name}"
        )
    forms = sorted({n.date for n in sums})
    if len(forms) > 1 and not forms[0]:
        raise UnalikeError(
            f"the column {name!r} is read in several ways at the sites, as {' and '.join(form or 'numbers' for form in forms)}; "
            f"expected --date {name} at all sites, or at none"
        )
    date = (
        forms[0] if len(forms) == 1 else FORMATS[0]
    )  # days are agreed on; a site may write them in its own way
    means = np.array([n.mean for n in sums])
    median = _median(sums)
    rows = counts.sum() + missing
    mean = float((counts @ means + missing * median) / rows)
    squares = (
        sum(n.deviations for n in sums)
        + counts @ (means - mean) ** 2
        + missing * (median - mean) ** 2
    )
    scale = float(np.sqrt(squares / rows))
    constant = scale <= 10 * np.finfo(float).eps * max(1.0, abs(mean))
    return Number(
        name,
        median,
        mean,
        1.0 if constant else scale,
        missing > 0,
        all(n.truth for n in sums if n.count),
        date,
    )


def _median(sums: Sequence[NumberSums]) -> float:
    """The median of all values, where the sites' distribution functions by their quantiles together reach one half."""
    held = [n for n in sums if n.count]
    points = np.unique([value for n in held for value in (n.quantiles or (n.mean,))])
    sides = np.column_stack(
        [np.nextafter(points, -np.inf), np.nextafter(points, np.inf)]
    ).ravel()  # many values may be equal
    below = sum((n.count * n.below(sides) for n in held), start=np.zeros(len(sides))) / sum(
        n.count for n in held
    )
    return float(np.interp(0.5, below, np.repeat(points, 2)))


def _category(
    name: str, sums: Mapping[str, NumberSums], counts: Mapping[str, CategoryCounts]
) -> Category:
    for site, found in sums.items():
        if found.count and not found.truth:
            other = next(iter(counts))
            raise UnalikeError(
                f"the column {name!r} holds numbers at {site} and texts at {other}; expected one kind at all sites: convert it, or "
                f"leave it out with --drop {name}"
            )
    tables = [*counts.values(), *(n.categories() for n in sums.values())]
    values = sorted({value for table in tables for value in table.values})
    if not {*values} - {MISSING} or len(values) > MOST_CATEGORIES:
        raise UnalikeError(
            f"the column {name!r} has {len(values)} frequent texts at all sites together, expected 1 to {MOST_CATEGORIES}; leave "
            f"it out with --drop {name}"
        )
    return Category(name, tuple(values))


def _agreed_target(summaries: Mapping[str, TableSummary]) -> TargetNames:
    first, one = next(iter(summaries.items()))
    for site, found in summaries.items():
        if (found.target.name, found.target.kind) != (one.target.name, one.target.kind):
            raise UnalikeError(
                f"the target of {site} is {found.target.name!r} ({found.target.kind}), that of {first} {one.target.name!r} "
                f"({one.target.kind}); expected the same at all sites"
            )
        if found.target.numbers != one.target.numbers and {*found.target.classes}.isdisjoint(
            one.target.classes
        ):
            classes = ", ".join(found.target.classes), ", ".join(one.target.classes)
            raise UnalikeError(
                f"the classes of {site} are {classes[0]}, those of {first} {classes[1]}; expected the same names at all sites"
            )
    names = {name for found in summaries.values() for name in found.target.classes}
    numbers = all(found.target.numbers for found in summaries.values())
    ordered = sorted(names, key=int) if numbers else sorted(names)
    return TargetNames(one.target.name, one.target.kind, tuple(ordered), numbers)
