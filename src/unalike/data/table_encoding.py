"""Encoding of a table's columns as one matrix of numbers.

An encoding is fitted once on training rows and then applied to other tables, so that a column is the same input at every client.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field, FiniteFloat, PositiveInt

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated
from unalike.data import text as texts
from unalike.data.columns import (
    FEW_ROWS,
    FORMATS,
    MISSING,
    NOTHING,
    NUMBERS,
    TEXTS,
    TRUTH,
    constant_columns,
    date_formats,
    dates_of,
    days_of,
    doubts,
    drop_flags,
    floats_of,
    is_number,
    kind_of,
    texts_of,
)
from unalike.data.value_sets import (
    amounts_as_texts,
    in_two_ways,
    refuse_spellings,
    side_by_side,
    two_numbers,
)

if TYPE_CHECKING:
    import pandas as pd

MANY_CATEGORIES = 30
"""With more texts than this, each in fewer than ten rows on average, a column is noted."""
MOST_CATEGORIES = 256
"""Most different texts of a column that is read as categories."""
REPORTED_SHIFT_SCALES = 5.0
"""The distance of a column's mean from the mean in training, in its scales, that is reported."""
LEAST_SCALED_SPREAD = 1e-6
"""Standard deviations within which a column's middle half is one number to a model, whose numbers have seven digits."""
MANY_NUMBERS = 20
"""In a column with at least this many different numbers, a few texts among them are taken for mistakes."""


class OtherCoding(UserWarning):
    """A column may be written in another way than in the tables that the encoding is of."""


Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@validated
class Number:
    """A column of numbers, encoded as z = (x - mean) / scale with `fill` for a missing x.

    With `gaps` a second column is 1 where x is missing. With `truth` the column holds true/false, read as 1 and 0; with `date`, the
    format of `strptime` or "ISO8601", dates, read as days since 1970.
    """

    name: str
    fill: FiniteFloat
    mean: FiniteFloat
    scale: Scale
    gaps: bool = False
    truth: bool = False
    date: str = ""

    def read(self, frame: pd.DataFrame, where: str) -> np.ndarray:
        """Read the column as float64 [N], NaN for missing values."""
        if self.date:
            column = _column(frame, self.name, kinds=(), where=where)
            return days_of(column, self.date, where)
        column = _column(frame, self.name, kinds=[TRUTH if self.truth else NUMBERS], where=where)
        return floats_of(column, where)

    def surprises(self, frame: pd.DataFrame, where: str) -> str:
        """A note on a mean far from that in training, and on missing values where training had none; empty if there are none."""
        x = self.read(frame, where)
        notes = []
        shift = abs(self.scaled(x).mean()) if len(x) else 0
        if shift > REPORTED_SHIFT_SCALES:
            notes.append(
                f"has a mean {shift:.3g} standard deviations from its mean in training (other "
                "units?)"
            )
        missing = int(np.isnan(x).sum())
        if missing and not self.gaps:
            notes.append(
                f"has no value in {_rows(missing)}, and had one in every training row: read as "
                f"{self.fill:g}"
            )
        return f"{self.name!r} {'; it '.join(notes)}" if notes else ""

    def coding(self) -> tuple[str, ...]:
        """The two numbers that the column took in training, such as codes; empty if it took others, or cannot be told."""
        if self.date or self.truth:
            return ()
        return two_numbers(1, self.mean, self.scale**2)

    def other_coding(self, frame: pd.DataFrame, where: str) -> str:
        """Both pairs of numbers if the column takes two here and two others in training; empty otherwise."""
        agreed = self.coding()
        if not agreed:
            return ""
        x = self.read(frame, where)
        here = np.unique(x[~np.isnan(x)])
        if len(here) != 2:
            return ""
        return _in_other_ways(self.name, agreed, [f"{value:g}" for value in here], whole=True)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Fill and standardize the column: float64 [N]."""
        filled = np.where(np.isnan(x), self.fill, x)
        return (filled - self.mean) / self.scale


@validated
class Category:
    """A column of texts, one-hot encoded over `values`, one of which may be "(missing)"; any other text is all zeros."""

    name: str
    values: tuple[str, ...]

    @property
    def truth(self) -> bool:
        """Whether the texts mean true/false, which a file may write in several ways."""
        truths = {str(True), str(False)}
        return not truths.isdisjoint(self.values) and {*self.values} <= truths | {MISSING}

    @property
    def numbers(self) -> dict[str, int]:
        """Text -> the place of its value, in every spelling."""
        numbers = {value: k for k, value in enumerate(self.values)}
        if self.truth:
            for k, value in enumerate(self.values):
                numbers[value.lower()] = k
                numbers[value.upper()] = k
        return numbers

    def read(self, frame: pd.DataFrame, where: str) -> list[str]:
        """Read the column as texts."""
        examples = ", ".join(repr(value) for value in self.values[:3])
        column = _column(
            frame, self.name, kinds=[TEXTS, TRUTH], where=where, such=f", such as {examples}"
        )
        return texts_of(column)

    def apply(self, frame: pd.DataFrame, where: str) -> np.ndarray:
        """Encode the column: bool [N, len(values)]."""
        numbers = self.numbers
        cells = np.array([numbers.get(text, -1) for text in self.read(frame, where)])
        return cells[:, None] == np.arange(len(self.values))

    def surprises(self, frame: pd.DataFrame, where: str) -> str:
        """A note on values that no training row had; empty if there are none."""
        numbers = self.numbers
        new = Counter(text for text in self.read(frame, where) if text not in numbers)
        if not new:
            return ""
        counts = [f"{value!r} ({_rows(count)})" for value, count in new.most_common(FEW_ROWS)]
        more = f" and {len(new) - FEW_ROWS} more values" if len(new) > FEW_ROWS else ""
        return f"{self.name!r} holds {', '.join(counts)}{more}, which no training row had: read as none of its categories"

    def other_coding(self, frame: pd.DataFrame, where: str) -> str:
        """Both sets of texts if those of this table may be the agreed ones in another writing; empty otherwise."""
        if self.truth:
            return ""
        here = sorted(set(self.read(frame, where)))
        return _in_other_ways(self.name, self.values, here, whole=False)


@validated
class Words:
    """A column of text, encoded as tokens [N, length] of a vocabulary, or with `bag` as word counts [N, size - 2].

    The first of `words` is token 2; an empty word marks a token that no text has.
    """

    name: str
    words: tuple[str, ...]
    length: PositiveInt
    size: PositiveInt
    bag: bool = False

    def apply(self, frame: pd.DataFrame, where: str) -> torch.Tensor:
        """Encode the column: int64 [N, length], or float32 [N, size - 2] with `bag`."""
        column = _column(frame, self.name, kinds=[TEXTS, TRUTH, NUMBERS], where=where)
        tokens = {
            word: token for token, word in enumerate(self.words, start=texts.UNKNOWN + 1) if word
        }
        x = torch.from_numpy(texts.encode(texts_of(column, ""), tokens, self.length))
        return texts.bag(x, self.size) if self.bag else x


@validated
class Encoding:
    """The encoding of a table: its number columns, their gap columns, then its categories; or one column of `words`.

    It holds plain values only, so that it can be saved, agreed on and applied by others. `fit` and `fit_words` make one. `target`
    is the column to predict, or its comparison with a value; or the columns of labels of several numbers. It makes no input, so
    encodings of two targets may be equal.
    """

    numbers: tuple[Number, ...] = ()
    categories: tuple[Category, ...] = ()
    words: Words | None = None
    target: str | tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def width(self) -> int:
        """The length of an encoded row."""
        if self.words is not None:
            # A bag has a column for each word, and none for padding and for the unknown word.
            return self.words.size - texts.UNKNOWN - 1 if self.words.bag else self.words.length
        gaps = sum(number.gaps for number in self.numbers)
        categories = sum(len(category.values) for category in self.categories)
        return len(self.numbers) + gaps + categories

    @property
    def names(self) -> list[str]:
        """The names of the columns that are read."""
        columns: list[Number | Category | Words] = [*self.numbers, *self.categories]
        if self.words is not None:
            columns.append(self.words)
        return [column.name for column in columns]

    def surprises(self, frame: pd.DataFrame, where: str) -> list[str]:
        """Notes on values that are read although no training row had such, one for each column: categories, numbers."""
        columns: tuple[Number | Category, ...] = (*self.numbers, *self.categories)
        notes = [column.surprises(frame, where) for column in columns]
        return [f"{where}: the column {note}" for note in notes if note]

    def other_codings(self, frame: pd.DataFrame, where: str) -> list[OtherCoding]:
        """Warnings of columns that this table may write in another way than those that the encoding is of."""
        columns: tuple[Number | Category, ...] = (*self.numbers, *self.categories)
        notes = [column.other_coding(frame, where) for column in columns]
        return [OtherCoding(f"{where}: the column {note}") for note in notes if note]

    def dated(self, frame: pd.DataFrame, dates: Sequence[str], where: str) -> Encoding:
        """The encoding for a table that writes `dates` in its own way (`dates_of`). Raises `UnalikeError` for other columns.

        Where sites that write them in several ways agreed on days, the way is found unless it is given, as in their summaries.
        """
        named_forms = dates_of(frame, dates, where)
        agreed = {number.name for number in self.numbers if number.date}
        others = sorted(named_forms.keys() - agreed)
        if others:
            raise UnalikeError(
                f"{where}: the column {others[0]!r} is not one of dates in the encoding that was "
                "agreed; leave its --date out"
            )
        # Without a format in common the sites agreed on days, and the way in which this table writes them is found.
        forms = {}
        for number in self.numbers:
            if number.date == FORMATS[0] and number.name in frame:
                fitting = date_formats(frame[number.name])
                if len(fitting) == 1:
                    forms[number.name] = fitting[0]
        forms |= named_forms
        numbers = [replace(n, date=forms.get(n.name, n.date)) for n in self.numbers]
        return replace(self, numbers=tuple(numbers))

    def apply(self, frame: pd.DataFrame, where: str) -> torch.Tensor:
        """Encode a table: float32 [N, width], or the tokens of `words`. Columns that the encoding does not name are ignored.

        Raises `UnalikeError`, which names the columns, for those that are missing, have another type, or hold infinite numbers.
        """
        lacking = [repr(name) for name in self.names if name not in frame.columns]
        if len(lacking) > 1:
            raise UnalikeError(
                f"{where}: found no columns {', '.join(lacking)}, which the model reads; it has "
                f"{', '.join(map(str, frame.columns))}"
            )
        if self.words is not None:
            return self.words.apply(frame, where)

        # The order of the parts is that of the columns in `fit`: numbers, gaps, categories.
        columns = [number.read(frame, where) for number in self.numbers]
        scaled = [number.scaled(x) for number, x in zip(self.numbers, columns)]
        gaps = [np.isnan(x) for number, x in zip(self.numbers, columns) if number.gaps]
        categories = [category.apply(frame, where) for category in self.categories]
        parts = [part.astype(np.float32) for part in (*scaled, *gaps, *categories)]
        return torch.from_numpy(np.column_stack(parts))

    def save(self, path: Path) -> None:
        """Write the encoding as JSON; a reader never sees half a file."""
        text = json.dumps(asdict(self)) + "\n"
        write_bytes(path, text.encode())

    @classmethod
    def load(cls, path: Path) -> Encoding | None:
        """Read an encoding that `save` wrote; None if there is no file. Raises `UnalikeError` for an unreadable file."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise UnalikeError(
                f"{path} is not the encoding of a table ({error}); restore it"
            ) from None


def fit(
    frame: pd.DataFrame,
    train: int,
    where: str,
    dates: Mapping[str, str] = MappingProxyType({}),
    accept: bool = False,
) -> Encoding:
    """Fit the encoding of all columns of `frame` on its first `train` rows.

    Numbers (true/false as 1 and 0; `dates`, column -> format, as days since 1970): a missing value becomes the training median,
    then z = (x - mean) / std of the training rows, with std 1 for a constant column. A number column with a missing training
    value adds a gap column, which is 1 where the value is missing. Texts and categories: one 0/1 column per value seen in
    training, where "missing" is a value too; a value not seen in training is all zeros. Numbers come first, then gap columns,
    then categories.

    Warns of columns that are probably identifiers or dates, and of constant ones.

    Raises `UnalikeError`, which names the column, for dates or another type, infinite numbers or texts among numbers, a column
    that is empty in training, has no name, or has more than 256 categories or another one in nearly every row; and without
    `accept` for categories that differ only in case, space or number format.
    """
    from pandas.api.types import is_numeric_dtype

    if not len(frame.columns):
        raise UnalikeError(
            f"{where} has no column left for features; expected at least one besides target and "
            "groups"
        )
    for name in map(str, frame):
        if name.startswith("Unnamed: "):
            raise UnalikeError(
                f"{where}: a column has no name in the header, as where numbers of "
                "rows were saved with a table, which could give away the target; "
                f"leave it out with {drop_flags(name)}, or name it"
            )
    # Doubtful columns are read all the same, since only the user knows what they mean.
    others = frame.drop(columns=[*dates])
    constants = constant_columns(others)
    if constants:
        warn(
            f"{where}: {', '.join(map(repr, constants))}: one value in all rows, which says nothing; leave out: "
            f"{drop_flags(*constants)}"
        )
    for note in doubts(others, where):
        warn(note)
    names = [column for column in frame if column in dates or is_numeric_dtype(frame[column])]
    categories = [
        category_of(frame[column], train, where, accept) for column in frame if column not in names
    ]
    numbers = _numbers(frame[names], train, where, dates)
    return Encoding(numbers, tuple(categories))


def fit_words(column: pd.Series, train: int, length: int, vocabulary: int, bag: bool) -> Encoding:
    """Fit the encoding of one column of text: a vocabulary of that size from its first `train` rows."""
    tokens = texts.vocabulary(texts_of(column, "")[:train], vocabulary)
    words = Words(
        name=str(column.name),
        words=tuple(tokens),
        length=length,
        size=vocabulary,
        bag=bag,
    )
    return Encoding(words=words)


def _numbers(
    frame: pd.DataFrame, train: int, where: str, dates: Mapping[str, str]
) -> tuple[Number, ...]:
    """The encodings of number columns: filled with the training median, then standardized."""
    from pandas.api.types import is_bool_dtype
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    if not len(frame.columns):
        return ()
    columns = []
    for name in frame:
        if name in dates:
            columns.append(days_of(frame[name], dates[str(name)], where))
        else:
            columns.append(floats_of(frame[name], where))
    x = np.asfortranarray(np.column_stack(columns)[:train])
    missing = np.isnan(x)
    for name, is_empty in zip(frame, missing.all(0)):
        if is_empty:
            raise UnalikeError(
                f"{where}: column {name!r} has no value in the training rows; {drop_flags(name)}"
            )

    # The scale is that of the filled column, since that is what a model reads.
    imputer = SimpleImputer(strategy="median").fit(x)
    filled = imputer.transform(x)
    scaler = StandardScaler().fit(filled)
    _note_vanished(frame, filled, scaler.scale_, where)
    return tuple(
        Number(
            name=str(name),
            fill=float(imputer.statistics_[i]),
            mean=float(scaler.mean_[i]),
            scale=float(scaler.scale_[i]),
            gaps=bool(missing[:, i].any()),
            truth=is_bool_dtype(frame[name]),
            date=dates.get(str(name), ""),
        )
        for i, name in enumerate(frame)
    )


def _note_vanished(frame: pd.DataFrame, x: np.ndarray, scales: np.ndarray, where: str) -> None:
    """Warn of columns of numbers x [N, D] in which a few huge ones leave no difference between the others when they are scaled."""
    low, high = np.quantile(x, (0.25, 0.75), axis=0)
    for i, name in enumerate(frame):
        if 0 < high[i] - low[i] < LEAST_SCALED_SPREAD * scales[i]:
            warn(
                f"{where}: column {str(name)!r} has numbers up to {np.abs(x[:, i]).max():g}, beside which all others (half of them "
                f"from {low[i]:g} to {high[i]:g}) are one number when it is scaled; correct them, or make them empty cells"
            )


def _check_texts(column: pd.Series, where: str) -> None:
    """Raise `UnalikeError` for many different numbers with a few texts among them, such as "<0.5"."""
    values = set(texts_of(column[column.notna()]))
    others = sorted(value for value in values if not is_number(value))
    numbers = len(values) - len(others)
    if others and numbers >= max(MANY_NUMBERS, 4 * len(others)):
        examples = ", ".join(repr(value) for value in others[:3])
        raise UnalikeError(
            f"{where}: column {column.name!r} holds numbers and, between them, texts "
            f"such as {examples}; expected numbers or categories: leave these fields "
            "empty, which makes them missing values, or leave it out with "
            f"{drop_flags(column.name)}"
        )


def category_of(column: pd.Series, train: int, where: str, accept: bool = False) -> Category:
    """The encoding of a column of texts, from its first `train` rows. Raises `UnalikeError` for anything but categories.

    Without `accept` also for categories that differ only in case, space or number format.
    """
    name = str(column.name)
    kind = kind_of(column)
    if kind not in (NOTHING, TRUTH, TEXTS):
        as_days = ""
        if date_formats(column):
            as_days = f"; as a number of days, --date {quote(name)}, in Python date={name!r}"
        raise UnalikeError(
            f"{where}: column {column.name!r} holds {kind}, expected numbers, texts or true/false; "
            f"convert it, or leave it out with {drop_flags(name)}{as_days}"
        )
    _check_texts(column, where)
    values = sorted(set(texts_of(column[:train])))
    # In a few rows every value may differ; in more, a column of which nearly every value differs names the rows.
    differs_in_most = len(values) > 0.9 * train >= 0.9 * FEW_ROWS
    amounts = amounts_as_texts(name, values)
    if amounts and (len(values) > MOST_CATEGORIES or differs_in_most):
        raise UnalikeError(f"{where}: {amounts}, or leave it out with {drop_flags(name)}")
    if amounts:
        warn(f"{where}: {amounts}, or leave it out with {drop_flags(name)}")
    if len(values) > MOST_CATEGORIES or differs_in_most:
        raise UnalikeError(
            f"{where}: column {column.name!r} has {len(values)} different texts in "
            f"{train} rows, expected at most {MOST_CATEGORIES} categories that rows "
            f"share; leave it out with {drop_flags(name)}, or read its words with "
            f'--model textcnn --data "file(path=..., text={column.name!r})", in Python '
            f"model='textcnn' and text={column.name!r}"
        )
    if not accept:
        refuse_spellings(texts_of(column), f"column {column.name!r}", where)
    if len(values) > MANY_CATEGORIES and len(values) * FEW_ROWS > train:
        warn(
            f"{where}: column {column.name!r} has {len(values)} different texts in {train} rows, each an input of its own that "
            f"hardly a row has; put them into fewer kinds, or leave it out with {drop_flags(name)}"
        )
    return Category(name, tuple(values))


def _column(
    frame: pd.DataFrame, name: str, kinds: Sequence[str], where: str, such: str = ""
) -> pd.Series:
    """Return the column of this name. Raises `UnalikeError` unless it holds one of `kinds` (any, if there are none) or nothing."""
    if name not in frame.columns:
        expected = (" or ".join(kinds) or "dates") + such
        raise UnalikeError(
            f"{where}: found no column {name!r}, expected one of {expected}; it has "
            f"{', '.join(map(str, frame.columns))}"
        )
    kind = kind_of(frame[name])
    if kinds and kind not in (NOTHING, *kinds):
        raise UnalikeError(
            f"{where}: column {name!r} holds {kind}, expected {' or '.join(kinds)}{such}; convert "
            "it"
        )
    return frame[name]


def _in_other_ways(name: str, agreed: Sequence[str], here: Sequence[str], whole: bool) -> str:
    """The agreed set of a column and that of a table, side by side, if they may be one set; empty otherwise."""
    sets = {"agreed": agreed, "here": here}
    reason = in_two_ways(sets, whole)
    return (
        f"{name!r} may be written in another way: {side_by_side(sets)} ({reason})" if reason else ""
    )


def _rows(count: int) -> str:
    """A number of rows in words."""
    return "1 row" if count == 1 else f"{count} rows"
