"""Summaries of tables, from which the encoding of several tables follows although nobody has them all.

A site summarizes its training rows with `summarize`: sums of its columns, quantiles, and the names of frequent categories. `agreed`
makes of all summaries the encoding that `table_encoding.fit` would make of all rows together, up to the resolution of quantiles.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
import pydantic
import torch
from pydantic import Field, PositiveInt

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.limits import Limit
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated
from unalike.core.tasks.registry import TaskName, task_for
from unalike.core.tasks.task import Task
from unalike.data.belonging import ROWS_ALONE, units_of
from unalike.data.columns import (
    FORMATS,
    MISSING,
    NUMBERS,
    constant_columns,
    dates_of,
    days_of,
    doubts,
    drop_flags,
    floats_of,
    kind_of,
    moments_of,
    only_times,
    require_columns,
    texts_of,
)
from unalike.data.giveaways import giveaways
from unalike.data.sources.registry import a_fifth
from unalike.data.sources.table_files import opened
from unalike.data.sources.table_targets import (
    check_classes,
    labels_of_columns,
    targets_of,
    with_targets,
)
from unalike.data.suspect_values import suspect_numbers
from unalike.data.table_encoding import MOST_CATEGORIES, Category, Encoding, Number, category_of
from unalike.data.value_sets import in_two_ways, side_by_side, two_numbers

if TYPE_CHECKING:
    import pandas as pd

MIN_ROWS = 5
"""Fewest rows that a name or a number of a summary is about, unless the site says otherwise."""
MAX_PARTS = 20
"""Most parts with equally many values that quantiles divide a column into."""
MOST_ROWS = 10**12
"""Most rows of a table: sums over several tables stay far from overflow."""
LARGEST_VALUE = float(np.finfo(np.float32).max)
"""The largest number in a table: samples are float32."""
TRUTHS = {str(False), str(True)}

Rows = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Value = Annotated[float, Field(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
Squares = Annotated[float, Field(ge=0, le=MOST_ROWS * (2 * LARGEST_VALUE) ** 2)]


@validated
class NumberSums:
    """A column of numbers: how many there are and are missing, their mean, their squared deviations from it, inner quantiles.

    Quantiles divide the values into parts with equally many of them. The smallest and the largest value are not among them.
    """

    name: str
    count: Rows
    missing: Rows
    mean: Value
    deviations: Squares
    quantiles: Annotated[tuple[Value, ...], Field(max_length=MAX_PARTS - 1)]
    truth: bool = False
    date: str = ""

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Self:
        if list(self.quantiles) != sorted(self.quantiles):
            raise ValueError(f"the quantiles of {self.name!r} are not in order")
        return self

    def categories(self) -> CategoryCounts:
        """The same column of true/false as a category."""
        true = round(self.mean * self.count)
        rows = {str(True): true, str(False): self.count - true, MISSING: self.missing}
        return CategoryCounts(self.name, {value: count for value, count in rows.items() if count})

    def coding(self) -> tuple[str, ...]:
        """The two numbers that the column takes, such as codes; empty if it takes others, or cannot be told."""
        if self.date:
            return ()
        variance = self.deviations / max(self.count, 1)
        return two_numbers(self.count, self.mean, variance, self.quantiles)

    def below(self, x: np.ndarray) -> np.ndarray:
        """The share of the values below x, by the quantiles; x is none of them."""
        if not self.quantiles:
            return (x > self.mean).astype(float)
        parts = len(self.quantiles) + 1
        levels = np.arange(1, parts) / parts
        # Beyond the outer quantiles the values are not known: x is taken to be in the middle of the outer part.
        half = levels[0] / 2
        return np.interp(x, self.quantiles, levels, left=half, right=1 - half)


@validated
class CategoryCounts:
    """A column of texts: the rows of each frequent value; "(missing)" is one."""

    name: str
    values: Mapping[str, PositiveInt]


WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


@validated
class TargetNames:
    """The column to predict, or several: its kind, and the names of the frequent classes.

    `numbers`: the names are whole numbers. `label_shape` is the shape of a label of several numbers.
    """

    name: str | tuple[str, ...]
    kind: TaskName
    classes: tuple[str, ...] = ()
    numbers: bool = False
    label_shape: tuple[int, ...] = ()

    @pydantic.model_validator(mode="after")
    def _check_numbers(self) -> Self:
        for name in self.classes:
            if self.numbers and not WHOLE_NUMBER.fullmatch(name):
                raise ValueError(f"class {name[:40]!r} of whole numbers")
        return self


@validated
class TableSummary:
    """A site's summary of its table. Each name, mean and deviation is about `least` rows or more, a quantile about one or two.

    `rows` are its training rows, `columns` the names of its features in their order.
    """

    rows: Rows
    least: PositiveInt
    columns: tuple[str, ...]
    target: TargetNames
    numbers: tuple[NumberSums, ...] = ()
    categories: tuple[CategoryCounts, ...] = ()

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [number.name for number in self.numbers]
        names += [category.name for category in self.categories]
        if sorted(names) != sorted(self.columns) or len(set(names)) < len(names):
            raise ValueError("the sums are not those of each column, once")
        # No site counts for more in means and scales than by its rows, which init shows.
        for number in self.numbers:
            if number.count + number.missing != self.rows:
                raise ValueError(f"the values of {number.name!r} are not as many as the rows")
        for category in self.categories:
            if sum(category.values.values()) > self.rows:
                raise ValueError(f"the values of {category.name!r} are more than the rows")
        return self

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
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise UnalikeError(
                f"{path} is not the summary of a table ({str(error)[:300]}); "
                "expected a file that `unalike federation summarize` wrote"
            ) from None


def summarize(
    path: Path,
    *,
    target: str | Sequence[str] = (),
    task: str | None = None,
    offset: str | None = None,
    time: str | None = None,
    event: str | None = None,
    drop: Sequence[str] = (),
    group: Sequence[str] = (),
    unit: str | None = None,
    split_by: str | None = None,
    regression: bool | None = None,
    date: Sequence[str] = (),
    labelled_only: bool = False,
    accept: bool = False,
    least: int = MIN_ROWS,
    **dialect: Any,
) -> TableSummary:
    """Summarize the training rows of a table, those that a site would train on: all but every fifth of a class.

    The arguments are those of `read_table`; with `split_by` the earlier rows are summarized. All samples of a unit are summarized,
    or none; a column of units that is found here stays among the features, since other sites may find none. `least` is the fewest
    rows that a name or a number in the summary is about: rarer categories and classes are left out, and numbers of a column with
    fewer values count as missing. Raises `UnalikeError`, which names the column, for a table that cannot be read or encoded.
    """
    from pandas.api.types import is_bool_dtype

    where = path.name
    targets = targets_of(target, offset, time, event, where)
    frame, target_columns, sources = with_targets(
        opened(path, **dialect), targets, where, labelled_only
    )
    unused = [*sources, *drop, *group]
    if unit is not None and unit != ROWS_ALONE:
        unused.append(unit)
    unused = list(dict.fromkeys([*unused, *only_times(split_by, date)]))
    require_columns(frame, unused, where)
    y, classes, named = labels_of_columns(target_columns, where, task, regression, accept)
    if classes is not None:
        check_classes(target_columns[0], len(classes), where)

    # The rows on which the site would train alone: no number of a test sample leaves it.
    read_otherwise = [*sources, *only_times(split_by, date)]
    units = units_of(frame, unit, read_otherwise, group, where)
    moments = None if split_by is None else moments_of(frame, split_by, date, where)
    train = ~a_fifth(y, None if units is None else units.values, moments)
    features = frame[train].drop(columns=unused)
    dates = dates_of(frame.drop(columns=unused), date, where)
    for note in [] if units is None else units.notes:
        warn(note)
    _warn_of_columns(features, dates, where)
    trained_targets = [column[train] for column in target_columns]
    for text in giveaways(features, trained_targets, {}, where, accept):
        warn(text)

    numbers: list[NumberSums] = []
    categories: list[CategoryCounts] = []
    for key in features:
        name = str(key)
        values = features[key]
        if name in dates:
            form = dates[name]
            days = days_of(frame[name], form, where)[train]
            numbers.append(_sums(name, days, truth=False, least=least, date=form))
        elif kind_of(values) == NUMBERS or not values.notna().any():
            numbers.append(_sums(name, floats_of(values, where), truth=False, least=least))
        elif is_bool_dtype(values):
            numbers.append(_sums(name, floats_of(values, where), truth=True, least=least))
        else:
            # Refuses dates, names of rows, numbers with texts among them, and one name in two spellings.
            category_of(values, len(values), where, accept)
            counts = Counter(texts_of(values))
            frequent = {text: n for text, n in sorted(counts.items()) if n >= least}
            categories.append(CategoryCounts(name, frequent))
    return TableSummary(
        rows=len(features),
        least=least,
        columns=tuple(map(str, features)),
        target=_target(target_columns, y, classes, named, least),
        numbers=tuple(numbers),
        categories=tuple(categories),
    )


def _warn_of_columns(features: pd.DataFrame, dates: Mapping[str, str], where: str) -> None:
    """Warn of columns that are probably no features, and of numbers that are probably no amounts."""
    constants = constant_columns(features)
    if constants:
        warn(
            f"{where}: {', '.join(map(repr, constants))}: one value in all rows here; other sites may have others, so keep it, "
            f"unless all sites leave it out: {drop_flags(*constants)}"
        )
    for note in doubts(features.drop(columns=[*dates]), where):
        warn(note)
    amounts = {
        repr(str(key)): floats_of(features[key], where)
        for key in features
        if kind_of(features[key]) == NUMBERS
    }
    for text in suspect_numbers(amounts):
        warn(f"{where}: {text}")


def agreed(
    summaries: Mapping[str, TableSummary], accept: bool = False
) -> tuple[Encoding, TargetNames]:
    """The encoding and the target of several tables.

    Means and scales are those of all training rows together; a missing number becomes the median by the sites' quantiles. A
    category is one that is frequent at some site.

    The target has the classes of all sites. Raises `UnalikeError`, which names both sites, where these have other columns, or
    other kinds of values in the same one; and without `accept` where the sites may write one set of classes, categories or codes
    in several ways (`codings`).
    """
    first, expected = next(iter(summaries.items()))
    for site, summary in summaries.items():
        differing = set(summary.columns) ^ set(expected.columns)
        if differing:
            raise UnalikeError(
                f"{site} and {first} have other columns: only one of them has "
                f"{', '.join(sorted(differing))}; expected the same columns at all "
                "sites: rename them, or leave them out with --drop. For vertical "
                f"federated learning see {Limit.KINDS}"
            )

    # A column of true/false may be a category at a site that writes it as texts; one such site makes it a category for all.
    numbers: list[Number] = []
    categories: list[Category] = []
    for name in expected.columns:
        sums: dict[str, NumberSums] = {}
        counts: dict[str, CategoryCounts] = {}
        for site, summary in summaries.items():
            for number in summary.numbers:
                if number.name == name:
                    sums[site] = number
            for category in summary.categories:
                if category.name == name:
                    counts[site] = category
        if counts:
            categories.append(_category(name, sums, counts))
        else:
            numbers.append(_number(name, [*sums.values()]))
    target = _agreed_target(summaries)
    doubts = [coding for coding in codings(summaries) if coding.reason]
    if doubts and not accept:
        found = "; ".join(f"{coding} ({coding.reason})" for coding in doubts)
        raise UnalikeError(
            f"the sites may write one set of values in several ways: {found}. Write them alike at "
            "all sites and summarize again; or, if they are right as they are, --accept"
        )
    return Encoding(tuple(numbers), tuple(categories), target=target.name), target


@dataclass(frozen=True)
class Coding:
    """The sets of values that the sites have of one column.

    `reason` says why these may be one set in several writings; it is empty if nothing speaks for it.
    """

    column: str
    sets: Mapping[str, Sequence[str]]
    reason: str

    def __str__(self) -> str:
        return f"{self.column}: {side_by_side(self.sets)}"


def codings(summaries: Mapping[str, TableSummary]) -> list[Coding]:
    """The columns of which the sites have different sets: classes, categories, and columns of two numbers such as codes."""
    classes: dict[str, Sequence[str]] = {}
    categories: dict[str, dict[str, Sequence[str]]] = {}
    codes: dict[str, dict[str, Sequence[str]]] = {}
    for site, summary in summaries.items():
        classes[site] = summary.target.classes
        for category in summary.categories:
            categories.setdefault(category.name, {})[site] = sorted(category.values)
        for number in summary.numbers:
            if number.truth:
                truths = sorted(number.categories().values)
                categories.setdefault(number.name, {})[site] = truths
            elif number.coding():
                codes.setdefault(number.name, {})[site] = number.coding()

    target = next(iter(summaries.values())).target.name
    found = [Coding(f"the classes of {target!r}", classes, in_two_ways(classes, whole=True))]
    for name, sets in categories.items():
        found.append(Coding(f"the categories of {name!r}", sets, in_two_ways(sets, whole=False)))
    for name, sets in codes.items():
        found.append(Coding(f"the numbers of {name!r}", sets, in_two_ways(sets, whole=True)))
    return [coding for coding in found if len(set(map(tuple, coding.sets.values()))) > 1]


def _sums(name: str, values: np.ndarray, truth: bool, least: int, date: str = "") -> NumberSums:
    """The sums of a column, NaN for missing values; with fewer than `least` values all count as missing.

    The `least` - 1 smallest values count as the next one, and so do the largest: mean and deviations would show one that is far
    from the others.
    """
    known = values[~np.isnan(values)]
    if len(known) < least:
        return NumberSums(
            name=name,
            count=0,
            missing=len(values),
            mean=0.0,
            deviations=0.0,
            quantiles=(),
            truth=truth,
            date=date,
        )
    in_order = np.sort(known)
    outer = min(least - 1, (len(known) - 1) // 2)
    known = known.clip(in_order[outer], in_order[-1 - outer])
    mean = float(known.mean())
    # Each part has `least` values or more, so that no quantile is about fewer.
    parts = min(MAX_PARTS, len(known) // least)
    quantiles = np.quantile(known, np.arange(1, parts) / parts)
    return NumberSums(
        name=name,
        count=len(known),
        missing=len(values) - len(known),
        mean=mean,
        deviations=float(((known - mean) ** 2).sum()),
        quantiles=tuple(quantiles.tolist()),
        truth=truth,
        date=date,
    )


def _target(
    columns: Sequence[pd.Series],
    y: np.ndarray,
    classes: list[str] | None,
    named: Task | None,
    least: int,
) -> TargetNames:
    """The names of the target: of its classes those with `least` rows or more. `named`: the task, where labels do not imply it."""
    task = named or task_for(torch.from_numpy(y))
    if len(columns) > 1:
        several = tuple(str(column.name) for column in columns)
        return TargetNames(several, task.spec, label_shape=_label_shape(y, task))
    [column] = columns
    name = str(column.name)
    if classes is None:
        return TargetNames(name, task.spec, label_shape=_label_shape(y, task))
    rows = np.bincount(y, minlength=len(classes))
    frequent = tuple(text for text, n in zip(classes, rows) if n >= least)
    is_numbers = kind_of(column) == NUMBERS
    return TargetNames(name, task.spec, frequent, is_numbers)


def _label_shape(y: np.ndarray, task: Task) -> tuple[int, ...]:
    """The shape of one label in the form of the task."""
    return tuple(task.as_labels(torch.from_numpy(y)).shape[1:])


def _number(name: str, sums: Sequence[NumberSums]) -> Number:
    """The encoding of a column of numbers, as of all rows: missing values are the median before mean and scale are taken."""
    counts = np.array([n.count for n in sums])
    missing = sum(n.missing for n in sums)
    if not counts.sum():
        raise UnalikeError(
            f"no site has enough values of the column {name!r}; leave it out with --drop {name}"
        )
    forms = sorted({n.date for n in sums})
    if len(forms) > 1 and not forms[0]:
        ways = " and ".join(form or "numbers" for form in forms)
        raise UnalikeError(
            f"the column {name!r} is read in several ways at the sites, as {ways}; "
            f"expected --date {name} at all sites, or at none"
        )
    # Days are agreed on; a site may write them in its own way.
    date = forms[0] if len(forms) == 1 else FORMATS[0]

    # Mean and scale of all rows, in which a missing value is the median: deviations from each site's mean, and of the means.
    means = np.array([n.mean for n in sums])
    median = _median(sums)
    rows = counts.sum() + missing
    mean = float((counts @ means + missing * median) / rows)
    within = sum(n.deviations for n in sums)
    between = counts @ (means - mean) ** 2
    squares = within + between + missing * (median - mean) ** 2
    scale = float(np.sqrt(squares / rows))
    is_constant = scale <= 10 * np.finfo(float).eps * max(1.0, abs(mean))
    return Number(
        name=name,
        fill=median,
        mean=mean,
        scale=1.0 if is_constant else scale,
        gaps=missing > 0,
        truth=all(n.truth for n in sums if n.count),
        date=date,
    )


def _median(sums: Sequence[NumberSums]) -> float:
    """The median of all values, where the sites' distribution functions by their quantiles together reach one half."""
    known = [n for n in sums if n.count]
    points = np.unique([value for n in known for value in n.quantiles or (n.mean,)])
    # Many values may be equal, so that the share below jumps at a point: it is asked for on both sides.
    left, right = np.nextafter(points, -np.inf), np.nextafter(points, np.inf)
    sides = np.column_stack([left, right]).ravel()
    below = np.zeros(len(sides))
    for n in known:
        below = below + n.count * n.below(sides)
    share = below / sum(n.count for n in known)
    return float(np.interp(0.5, share, np.repeat(points, 2)))


def _category(
    name: str, sums: Mapping[str, NumberSums], counts: Mapping[str, CategoryCounts]
) -> Category:
    """The encoding of a category, from the sites that have texts and those that have true/false or nothing."""
    for site, number in sums.items():
        if number.count and not number.truth:
            other = next(iter(counts))
            raise UnalikeError(
                f"the column {name!r} holds numbers at {site} and texts at "
                f"{other}; expected one kind at all sites: convert it, or leave it "
                f"out with --drop {name}"
            )
    # What is frequent at any site is a category; a column of true/false is read as texts here.
    values: set[str] = set()
    for category in counts.values():
        values |= set(category.values)
    for number in sums.values():
        values |= set(number.categories().values)
    if not values - {MISSING} or len(values) > MOST_CATEGORIES:
        raise UnalikeError(
            f"the column {name!r} has {len(values)} frequent texts at all sites "
            f"together, expected 1 to {MOST_CATEGORIES}; leave it out with --drop "
            f"{name}"
        )
    return Category(name, tuple(sorted(values)))


def _agreed_target(summaries: Mapping[str, TableSummary]) -> TargetNames:
    """The target with the classes of all sites. Raises `UnalikeError` where it differs in name or kind."""
    first, summary_of_first = next(iter(summaries.items()))
    expected = summary_of_first.target
    for site, summary in summaries.items():
        target = summary.target
        found = (target.name, target.kind, target.label_shape)
        if found != (expected.name, expected.kind, expected.label_shape):
            raise UnalikeError(
                f"the target of {site} is {target.name!r} ({target.kind}), that of "
                f"{first} {expected.name!r} ({expected.kind}); expected the same "
                "at all sites"
            )
    names: set[str] = set()
    for summary in summaries.values():
        names |= set(summary.target.classes)
    # Whole numbers are sorted by value, as they are where one site has them all.
    is_numbers = all(summary.target.numbers for summary in summaries.values())
    ordered = sorted(names, key=int) if is_numbers else sorted(names)
    return replace(expected, classes=tuple(ordered), numbers=is_numbers)
