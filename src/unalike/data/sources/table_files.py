"""Readers of tables (`.csv`, `.tsv`, `.xlsx`, `.parquet`, `.json`, `.jsonl`) with a column to predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unalike._utils.errors import UnalikeError, reading, require_extra, warn
from unalike.data.belonging import ROWS_ALONE, Units, units_of
from unalike.data.columns import (
    NUMBERS,
    date_formats,
    dates_of,
    first_place,
    kind_of,
    moments_of,
    named_once,
    only_times,
    require_columns,
    texts_of,
)
from unalike.data.dataset import Dataset
from unalike.data.giveaways import giveaways
from unalike.data.sources.delimited import numbered, read_delimited, record_lines
from unalike.data.sources.registry import a_fifth, ending, formats
from unalike.data.sources.table_targets import (
    check_classes,
    labels_of_columns,
    targets_of,
    with_targets,
)
from unalike.data.table_encoding import Encoding, fit, fit_words
from unalike.data.value_sets import refuse_spellings

if TYPE_CHECKING:
    import pandas as pd

Columns = str | Sequence[str]
Reader = Callable[[Path], Any]


def _typed(reader: str, place: str = "row", **options: object) -> Reader:
    """The reader of files that store the types of their columns; each row has a `place`, counted from 1."""

    def read(path: Path) -> pd.DataFrame:
        import pandas as pd

        lines = record_lines(path) if place == "line" else ()
        frame = getattr(pd, reader)(path, **options)
        return numbered(frame, lines, first=1, place=place)

    return read


def _excel(path: Path) -> pd.DataFrame:
    """Read the first sheet of an Excel file."""
    import pandas as pd

    require_extra("excel", "openpyxl", what=path.name)
    sheets = pd.read_excel(path, sheet_name=None)
    if len(sheets) > 1:
        warn(f"{path.name}: read the first of the sheets {', '.join(map(repr, sheets))}")
    return numbered(next(iter(sheets.values())))


_lines = _typed("read_json", "line", lines=True, dtype=False)
DELIMITED = (".csv", ".csv.gz", ".csv.zip", ".tsv", ".tsv.gz", ".tsv.zip")
TYPED: Mapping[str, Reader] = {
    ".xlsx": _excel,
    ".parquet": _typed("read_parquet"),
    ".json": _typed("read_json", dtype=False),
    ".jsonl": _lines,
    ".jsonl.gz": _lines,
}
ENDINGS = (*DELIMITED, *TYPED)
MEANS_TEST = {"train": False, "0": False, "false": False, "test": True, "1": True, "true": True}
"""Values of a split column, and whether each means a test row."""
LENGTH_WORDS = 64
"""Default number of words that are read of a text."""
VOCABULARY_WORDS = 20000
"""Default size of the vocabulary."""


def read_table(
    table: Any,
    *,
    target: Columns = (),
    task: str | None = None,
    offset: str | None = None,
    time: str | None = None,
    event: str | None = None,
    text: str | None = None,
    drop: Columns = (),
    group: Columns = (),
    unit: str | None = None,
    split: str | None = None,
    split_by: str | None = None,
    regression: bool | None = None,
    length: int = LENGTH_WORDS,
    vocabulary: int = VOCABULARY_WORDS,
    bag: bool = False,
    date: Columns = (),
    labelled_only: bool = False,
    labelled: bool = False,
    scored: bool = False,
    sep: str | None = None,
    decimal: str | None = None,
    charset: str | None = None,
    accept: bool = False,
    beside: Columns = (),
    encoding: Encoding | None = None,
) -> Dataset:
    """One row per sample; `target` names the column to predict, or several.

    A target of texts, whole numbers or true/false is classes, numbered in sorted order, and so are two whole numbers written with
    decimals (0.0 and 1.0); other decimals are regression. A comparison such as "num > 0" is true/false, and
    "cost / 1000" a number in another unit. Scaling, categories and
    vocabulary come from the training rows only; the data set keeps them as its `encoding`.

    Args:
        table: The file, or a data frame.
        target: The column to predict, or its comparison with a value or division by one; it must be named, but for a
            table that is read with an `encoding`, which then has no labels. Several columns are several labels (true/false) or
            amounts (numbers).
        task: The task, where the target does not imply it (`unalike list tasks`), such as "counts".
        offset: With task="counts": the column of the logarithm of the exposure, or "log(COLUMN)" of the exposure itself.
        time: With a task of survival: the column of the time to the event, or to the end of observation. It takes the place of a
            target, with `event`: the column that says whether the event happened, true/false or 1 and 0.
        event: See `time`.
        text: The only column to read as a feature, as tokens; without it all other columns are features, encoded as
            `table_encoding.fit` says.
        drop: Columns to leave out.
        group: Columns that become groups for partitions, such as a hospital or a writer; they are not features, unless the agreed
            encoding says so.
        unit: A column whose values, such as patients or recordings, are never divided between training and test samples; it is not
            a feature. Unless given, a column such as `patient_id` whose values repeat, or else copies of rows; "none": each row
            stands for itself.
        split: A column that says train or test (or 0 or 1), which clients then keep; without it every fifth row of a class (with
            `unit`, every fifth unit) tests, where nothing else divides the rows.
        split_by: A column of dates or numbers by which the rows are divided: each client's later rows test, its earlier ones train;
            "admitted=%d/%m/%Y" says how dates are written. It is not a feature unless `date` names it, too.
        regression: Read a target of whole numbers as regression (True), or one written with decimals as classes (False); a `task`
            decides for itself.
        length: The number of words that are read of each text.
        vocabulary: The size of the vocabulary of `text`.
        bag: Read `text` as rows of word counts, not as tokens.
        date: Columns of dates, which are read as a number of days; "admitted=%d/%m/%Y" says how they are written. With an
            `encoding`, the columns that are written in another way than there.
        labelled_only: Leave out the rows without a target or a group, which are refused otherwise.
        labelled: Read the target of the agreed `encoding` unless another one is named.
        scored: The rows are scored as they are: what notes say of dividing them does not concern them.
        sep: The separator of delimited text, `decimal` its decimal mark, `charset` its character encoding; found unless given.
        accept: Read classes, categories and owners that differ only in case, space or number format ("yes", "Yes", "no ", "1" and
            "1.0") as different ones, which are refused otherwise.
        beside: Columns that the data set keeps beside its samples as they are written (`Dataset.beside`), such as for subgroups;
            whether they are features, other options say.
        encoding: An agreed encoding, such as that of another file. But for `date` it alone decides which columns are read and how.

    Raises:
        UnalikeError: No target is named, the file cannot be read, a column is missing, or the target has missing values,
            another type such as dates, hardly two rows per class, or a few whole numbers written with decimals, which may be
            classes or amounts; or names of classes, categories or owners differ only in their spelling; or a row has no value in
            `split_by`.
    """
    dialect = {"sep": sep, "decimal": decimal, "charset": charset}
    drop = _several(drop)
    group = _several(group)
    beside = list(dict.fromkeys(_several(beside)))
    dates = _several(date)
    if isinstance(table, Path):
        name = table.name.split(".")[0]
        where = table.name
        names = [*group, *_no_features(beside, encoding)]
        frame = opened(table, encoding, names, **dialect)
    else:
        name = "table"
        where = "the table"
        frame = table.rename(columns=str)
        named_once(list(frame), where)

    # An agreed encoding says how columns are read, and may name the target.
    is_agreed = encoding is not None
    if encoding is not None:
        encoding = encoding.dated(frame, dates, where)
    targets = targets_of(target, offset, time, event, where)
    if encoding is not None and labelled and not targets:
        targets = _several(encoding.target or ())
    if not targets and encoding is not None:  # rows to predict
        require_columns(frame, [*drop, *group], where)
        groups = {column: frame[column].to_numpy() for column in group}
        x = new_rows(frame, encoding, where)
        return Dataset(name, (x, None), groups=groups, encoding=encoding)
    if not targets:
        raise UnalikeError(
            f"{where} is a table with the columns {', '.join(map(str, frame))}; name "
            "the one to predict, with --target COLUMN or in Python ua.load(..., "
            "target='COLUMN') (and with --group or group= one that says whose row it "
            "is, if there is one)"
        )

    # The rows with their labels and owners.
    if unit is not None and unit not in (ROWS_ALONE, *group):
        group.append(unit)
    named_columns = [*_several(split or ()), *_several(text or ())]
    frame, columns, sources = with_targets(frame, targets, where, labelled_only)
    require_columns(frame, [*drop, *group, *named_columns, *beside], where)
    has_owner = _have_owners(frame, group, sources, where, labelled_only, accept)
    frame = frame[has_owner]
    columns = [column[has_owner] for column in columns]
    y, classes, named = labels_of_columns(columns, where, task, regression, accept)
    if classes is not None and not is_agreed:
        check_classes(columns[0], len(classes), where)

    # Training rows come first, since the encoding is fitted on them alone; rows that belong together are on one side.
    moment_columns = only_times(split_by, dates)
    is_divided = split is None and (labelled or not is_agreed)
    read_otherwise = [*sources, *named_columns, *moment_columns]
    units = units_of(frame, unit, read_otherwise, group, where, are_sought=is_divided)
    moments = _times(frame, split_by, split, dates, where)
    test = _test_rows(frame, y, split, units, moments, where)
    is_random = is_divided and split_by is None and not scored
    _note_dates(frame.drop(columns=list(dict.fromkeys(sources))), is_random, where)
    order = np.argsort(test, kind="stable")
    train = int((~test).sum())
    frame = frame.iloc[order]
    groups = {column: _names_of(frame[column]) for column in group}
    if units is not None and units.name not in groups:
        groups[units.name] = units.values[order]

    # The features: by the agreed encoding, of one column of text, or of all columns that nothing else is read from.
    unread = [*sources, *drop, *_several(split or ())]
    of_label = targets[0] if len(targets) == 1 else tuple(targets)
    owners = {name: frame[name] for name in group if name != unit}
    unused = list(dict.fromkeys([*unread, *frame.columns.intersection([*groups]), *moment_columns]))
    notes = [] if units is None or scored else units.notes
    words = _words(text, length, vocabulary, bag, unused, where)
    if encoding is not None:
        _check_agreed(encoding, unread, text, where)
        x = new_rows(frame, encoding, where)
    elif words is not None:
        encoding = replace(words(frame, train), target=of_label)
        x = encoding.apply(frame, where)
    else:
        features = frame.drop(columns=unused)
        ordered = [column.iloc[order] for column in columns]
        notes += giveaways(features, ordered, owners, where, accept)
        formats_of_dates = dates_of(features, dates, where)
        encoding = replace(fit(features, train, where, formats_of_dates, accept), target=of_label)
        x = encoding.apply(frame, where)
    for note in notes:
        warn(note)
    return Dataset.divided(
        name=name,
        x=x,
        y=y[order],
        train=train,
        classes=classes,
        groups=groups,
        encoding=encoding,
        unit=None if units is None else units.name,
        published=split is not None,
        time=None if moments is None else moments[order],
        notes=tuple(notes),
        task=named,
        beside=frame[beside] if beside else None,
    )


def _words(
    text: str | None, length: int, vocabulary: int, bag: bool, unused: Sequence[str], where: str
) -> Callable[[pd.DataFrame, int], Encoding] | None:
    """A function from a table and its number of training rows to the encoding of `text`; None for other tables.

    Raises `UnalikeError` for a column that something else is read from, and for options of texts without such a column.
    """
    if text is None:
        if (length, vocabulary, bag) != (LENGTH_WORDS, VOCABULARY_WORDS, False):
            raise UnalikeError(
                f"{where}: length, vocabulary and bag say how a column of text is read; name it with "
                "text="
            )
        return None
    if text in unused:
        raise UnalikeError(
            f"{where}: found text={text!r}, which is the target, a group, the split or "
            "dropped, too; name another column"
        )
    return lambda frame, train: fit_words(frame[text], train, length, vocabulary, bag)


def _times(
    frame: pd.DataFrame, split_by: str | None, split: str | None, dates: list[str], where: str
) -> np.ndarray | None:
    """The moments of the rows by the column `split_by`; None without it. Raises `UnalikeError` beside a column `split`."""
    if split_by is None:
        return None
    if split is not None:
        raise UnalikeError(
            f"{where}: found split_by={split_by!r} beside split={split!r}, which says already which rows test; leave one out"
        )
    return moments_of(frame, split_by, dates, where)


def _test_rows(
    frame: pd.DataFrame,
    y: np.ndarray,
    split: str | None,
    units: Units | None,
    time: np.ndarray | None,
    where: str,
) -> np.ndarray:
    """Whether each row tests: by the column `split`, or a fifth of the rows or units, by time if there is one."""
    if split is not None:
        return _tests(frame[split], where)
    return a_fifth(y, None if units is None else units.values, time)


def _note_dates(frame: pd.DataFrame, is_random: bool, where: str) -> None:
    """Warn of columns of dates in a table, if its rows are divided at random."""
    if not is_random:
        return
    dates = [str(column) for column in frame if date_formats(frame[column])]
    if dates:
        listed = ", ".join(map(repr, dates))
        warn(
            f"{where}: {listed}: dates, and rows are divided at random, so that later rows train and earlier ones test; if the "
            f"model is to predict later rows, let each client's later ones test: --split-by {quote(dates[0])}, in Python "
            f"split_by={dates[0]!r}"
        )


for name in ENDINGS:
    formats.register(name)(read_table)


def opened(
    path: Path, encoding: Encoding | None = None, names: Sequence[str] = (), **dialect: Any
) -> pd.DataFrame:
    """Read the columns of a table; if the file stores no types, categories of the `encoding` are read as texts.

    `names` are columns that name owners or rows, whose zeros in front are kept (01067); `dialect` is the `sep`, `decimal` and
    `charset` of delimited text.

    Raises `UnalikeError` for a file that cannot be read.
    """
    end = ending(path.name) or ""
    with reading(path, "a table"):
        if end in DELIMITED:
            texts = []
            if encoding is not None:
                texts = [category.name for category in encoding.categories if not category.truth]
            return read_delimited(path, texts, names, **dialect).rename(columns=str)
        for name, value in dialect.items():
            if value is not None:
                raise UnalikeError(
                    f"{path.name}: found {name}={value!r}, which is for delimited text; leave it "
                    "out"
                )
        frame = TYPED[end](path).rename(columns=str)
    named_once(list(frame), path.name)
    return frame


def new_rows(frame: pd.DataFrame, encoding: Encoding, where: str) -> torch.Tensor:
    """Encode rows by the encoding of other rows; warns of numbers far from theirs, of values that none of them had, and of columns
    that may be written in another way (`OtherCoding`).

    Raises `UnalikeError` as `Encoding.apply` does.
    """
    x = encoding.apply(frame, where)
    for doubt in encoding.other_codings(frame, where):
        warn(doubt)
    for note in encoding.surprises(frame, where):
        warn(note)
    return x


def tokens(
    samples: Sequence[str],
    train: int,
    length: int,
    vocabulary: int,
    encoding: Encoding | None = None,
) -> tuple[torch.Tensor, Encoding]:
    """Encode texts as tokens int64 [N, length]; returns the tokens and their encoding.

    Without an agreed `encoding` the vocabulary comes from the first `train` texts.
    """
    import pandas as pd

    frame = pd.DataFrame({"text": samples}, dtype=object)
    if encoding is None:
        encoding = fit_words(frame["text"], train, length, vocabulary, bag=False)
    return encoding.apply(frame, "the texts"), encoding


def _tests(column: pd.Series, where: str) -> np.ndarray:
    values = [text.lower() for text in texts_of(column)]
    wrong = sorted(set(values) - MEANS_TEST.keys())
    if wrong:
        raise UnalikeError(
            f"{where}: the split {column.name!r} holds {', '.join(wrong[:5])}; expected train and "
            "test, or 0 and 1"
        )
    test = np.array([MEANS_TEST[value] for value in values])
    if test.all():
        raise UnalikeError(
            f"{where}: the split {column.name!r} has no training rows; expected train or 0 in some"
        )
    return test


def _have_owners(
    frame: pd.DataFrame,
    group: Sequence[str],
    sources: Sequence[str],
    where: str,
    labelled_only: bool,
    accept: bool,
) -> np.ndarray:
    """Whether each row has a value in all columns of owners.

    Raises `UnalikeError` for the target among them, for a row without a value, unless such rows are left out, and, unless it is
    accepted, for names that differ only in their spelling.
    """
    for name in group:
        if name in sources:
            raise UnalikeError(
                f"{where}: found {name!r} as the target and as the group, so that each owner has one label; name another column "
                "for one of the two"
            )
        missing = frame[name].isna().to_numpy()
        if missing.any() and not labelled_only:
            raise UnalikeError(
                f"{where}: the group {name!r} is missing in {missing.sum()} of {len(frame)} rows, the first in "
                f"{first_place(frame[name], missing)}; fill them in, or leave these rows out with --labelled-only, in Python "
                "labelled_only=True"
            )
        if not accept:
            refuse_spellings(texts_of(frame[name]), f"the group {name!r}", where)
    has_owner = frame[list(group)].notna().all(axis=1).to_numpy()
    if not has_owner.all():
        warn(f"{where}: left out {(~has_owner).sum()} of {len(frame)} rows, which have no group")
    return has_owner


def _names_of(column: pd.Series) -> np.ndarray:
    """The owners of the rows as whole numbers or texts: 3.0, as pandas writes 3 beside a missing value, is 3, and 3.2 a text."""
    if kind_of(column) != NUMBERS or column.dtype.kind != "f":
        return column.to_numpy()
    if (column % 1 == 0).all():
        return column.to_numpy(np.int64)
    return np.array(texts_of(column))


def _no_features(columns: Sequence[str], encoding: Encoding | None) -> list[str]:
    """The columns that are known to be no features: the agreed encoding does not read them."""
    if encoding is None:
        return []
    return [column for column in columns if column not in encoding.names]


def _check_agreed(encoding: Encoding, unused: Sequence[str], text: str | None, where: str) -> None:
    read = encoding.names
    for column in unused:
        if column in read:
            raise UnalikeError(
                f"{where}: {column!r} is the target, the split or dropped here, "
                "but a feature in the encoding that was agreed; expected its "
                f"features {', '.join(read)} to be free"
            )
    if text is not None and (encoding.words is None or encoding.words.name != text):
        raise UnalikeError(
            f"{where}: found text={text!r}, but the encoding that was agreed reads "
            f"{', '.join(read)}; leave text out"
        )


def _several(columns: Columns) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)
