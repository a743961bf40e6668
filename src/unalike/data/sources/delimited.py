"""Tables of delimited text, such as CSV: the separator and the decimal mark are found, and the character encoding is asked for."""

from __future__ import annotations

import codecs
import csv
import re
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError, warn
from unalike.data.columns import NUMBERS, TEXTS, kind_of, named_once

if TYPE_CHECKING:
    import pandas as pd

MISSING_TEXTS = (
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "None",
    "n/a",
    "nan",
    "null",
    "?",
    " ?",
)
"""The texts that stand for a missing value: those of pandas, and a question mark."""
SEPARATORS = (",", ";", "\t", "|")
MAX_HEAD_LINES = 50
"""Most lines that the separator is found by."""
NUMBERS_WITH = {
    ",": re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?"),
    ".": re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?"),
}
"""Decimal mark -> numbers that are written with it; the other mark may group thousands, as in 1.062,5."""


def read_delimited(
    path: Path,
    texts: Sequence[str],
    names: Sequence[str] = (),
    *,
    sep: str | None = None,
    decimal: str | None = None,
    charset: str | None = None,
) -> pd.DataFrame:
    """Read a table of delimited text, which may be compressed; a question mark is a missing value too.

    Unless given, the separator is the one that divides the first lines alike, the decimal mark the one that the columns of numbers
    show, and the character encoding UTF-8, or UTF-16 where the file says so. The columns `texts` are read as texts even if they
    hold numbers, and the columns `names`, such as groups, if a number among them begins with a zero (01067). Warns of a decimal
    comma, and of commas that group thousands.

    Raises `UnalikeError` for another encoding, for two columns of one name, and for rows with more fields than the header.
    """
    import pandas as pd

    _check_mark(path, "sep", sep, SEPARATORS)
    _check_mark(path, "decimal", decimal, tuple(NUMBERS_WITH))
    charset, lines = _decoded(path, charset)
    sep = sep or _separator(lines)
    header = next(csv.reader(lines, delimiter=sep), [])
    named_once([name for name in header if name], path.name)
    read: Any = partial(
        pd.read_csv,
        path,
        sep=sep,
        decimal=decimal or ".",
        encoding=charset,
        index_col=False,
        keep_default_na=False,
        na_values=MISSING_TEXTS,
        low_memory=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame: pd.DataFrame = read(dtype=dict.fromkeys(texts, str))
        except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
            raise UnalikeError(
                f"{path.name}: rows have more fields than the header has names, so "
                "that fields have no known name; expected a name for every column "
                f"(the first too, where it numbers the rows), {sep!r} between "
                "columns alone (or name the separator with --sep, in Python sep=), "
                f"and quotes around texts that hold it ({str(error).strip()})"
            ) from None
        except UnicodeError as error:
            raise _unreadable(path, charset, error) from None

    # Texts that all are numbers, if commas or points among them are read rightly. One column with decimal commas
    # shows how the whole table is written, so that it is read again.
    marks = {name: _decimal_mark(frame[name], sep) for name in frame if name not in texts}
    with_commas = [name for name, mark in marks.items() if mark == ","]
    if decimal is None and with_commas:
        example = next(text for text in frame[with_commas[0]].dropna() if "," in text)
        warn(
            f"{path.name}: read with decimal commas, as in {example!r} of "
            f"{with_commas[0]!r}, and points that group thousands; if commas group "
            "thousands, say so with `--decimal .` (in Python decimal='.')",
        )
        return read_delimited(path, texts, names, sep=sep, decimal=",", charset=charset)
    for key, mark in marks.items():
        if mark is not None:
            name = str(key)
            frame[name] = _numbers_with_marks(frame[name], mark, decimal, path)

    # Names such as 01067 are no numbers.
    for name in names:
        if name in frame and kind_of(frame[name]) == NUMBERS:
            written = read(usecols=[name], dtype=str)[name]
            if written.str.fullmatch(r"0\d+", na=False).any():
                frame[name] = written
    return numbered(frame, record_lines(path, charset)[1:])


def _numbers_with_marks(texts: pd.Series, mark: str, decimal: str | None, path: Path) -> pd.Series:
    """The numbers of a column of texts that are all numbers with this decimal mark, or with the given one."""
    if decimal is not None and _all_numbers(texts, decimal):
        mark = decimal
    elif decimal == ".":
        raise UnalikeError(
            f"{path.name}: the column {texts.name!r} holds numbers with decimal commas; leave out "
            "`--decimal .` (in Python decimal)"
        )
    numbers = _numbers(texts, mark)
    if decimal is None:
        warn(
            f"{path.name}: the commas in {texts.name!r} are read as groups of "
            "thousands; if they are decimal commas, say so with `--decimal ,` "
            "(in Python decimal=',')",
        )
    return numbers


def _check_mark(path: Path, name: str, value: str | None, known: Sequence[str]) -> None:
    """Raise `UnalikeError` for a separator or decimal mark that is given and not known."""
    if value is not None and value not in known:
        raise UnalikeError(
            f"{path.name}: found {name}={value!r}, expected one of {', '.join(map(repr, known))}"
        )


def numbered(
    frame: pd.DataFrame, lines: Sequence[int] = (), first: int = 2, place: str = "line"
) -> pd.DataFrame:
    """A table whose index is the place of each row in its file: its line if each has one, or counted from `first`."""
    import pandas as pd

    places: Sequence[int] = range(first, first + len(frame))
    if len(lines) == len(frame):
        places = lines
    frame.index = pd.Index(places, name=place)
    return frame


def record_lines(path: Path, charset: str = "utf-8") -> list[int]:
    """The lines of a file of text on which a record begins, from 1: all but blank ones and those within quotes."""
    from pandas.io.common import get_handle  # type: ignore[import-not-found]  # its stubs leave it out

    lines = []
    is_quoted = False
    with get_handle(path, "r", encoding=charset, compression="infer") as file:
        for number, line in enumerate(file.handle, 1):
            if not is_quoted and line.strip("\r\n "):
                lines.append(number)
            # An odd number of quotes opens or closes a text; a doubled quote within a text does neither.
            if line.count('"') % 2 == 1:
                is_quoted = not is_quoted
    return lines


def _decoded(path: Path, charset: str | None) -> tuple[str, list[str]]:
    """The character encoding of a file, and its first lines."""
    import pandas as pd

    encoding = charset or "utf-8"
    try:  # a separator that no line has gives whole lines
        head = pd.read_csv(
            path,
            sep="\x01",
            header=None,
            nrows=MAX_HEAD_LINES,
            quoting=3,
            dtype=str,
            keep_default_na=False,
            encoding=encoding,
        )
    except UnicodeError as error:
        start = error.object[:2] if isinstance(error, UnicodeDecodeError) else b""
        if charset is None and start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return _decoded(path, "utf-16")
        raise _unreadable(path, encoding, error) from None
    except LookupError:
        raise UnalikeError(
            f"{path.name}: found charset={charset!r}, expected a character encoding such as utf-8, "
            "cp1252 or utf-16"
        ) from None
    return encoding, [line + "\n" for line in head[0]]


def _unreadable(path: Path, charset: str, error: UnicodeError) -> UnalikeError:
    """The error for a file in another character encoding."""
    shown = ""
    if isinstance(error, UnicodeDecodeError):
        near = error.object[max(0, error.start - 9) : error.start + 9].decode("cp1252", "replace")
        shown = f" (which reads {near!r} at the first place where it matters)"
    return UnalikeError(
        f"{path.name} is not written in {charset}; name its character encoding, such as "
        "--charset cp1252, in Python charset='cp1252', for files of Windows in Western "
        f"Europe{shown}, or save it as UTF-8; if it is no text at all, it is damaged or "
        "mislabelled"
    )


def _separator(lines: Sequence[str]) -> str:
    """The mark that divides all lines into equally many fields; if none or several do, the one that the header has most of."""
    if not lines:
        return SEPARATORS[0]

    def fields(mark: str) -> tuple[bool, int]:
        """Whether the lines have equally many fields, more than one, and how many the header has."""
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
        except csv.Error:
            # a long line of many columns is one field where another mark divides it, and longer than fields may be
            return False, 0
        header = widths[0]
        if len(lines) == MAX_HEAD_LINES:
            widths = widths[:-1]  # the last line may stop within quotes
        return len(set(widths)) == 1 < header, header

    return max(SEPARATORS, key=fields)


def _all_numbers(column: pd.Series, decimal: str) -> bool:
    pattern = NUMBERS_WITH[decimal]
    return all(pattern.fullmatch(text.strip()) for text in column.dropna().unique())


def _decimal_mark(column: pd.Series, sep: str) -> str | None:
    """The decimal mark of a column of texts that all are numbers; None for any other column."""
    if kind_of(column) != TEXTS or not all(isinstance(text, str) for text in column.dropna()):
        return None
    marks = [mark for mark in NUMBERS_WITH if _all_numbers(column, mark)]
    if not marks:
        return None
    if len(marks) == 2:  # such as 1,062
        return "." if sep == "," else ","
    return marks[0]


def _numbers(column: pd.Series, decimal: str) -> pd.Series:
    """Texts with this decimal mark as numbers; the other mark groups thousands."""
    thousands = "." if decimal == "," else ","
    texts = column.str.strip()
    texts = texts.str.replace(thousands, "", regex=False)
    texts = texts.str.replace(decimal, ".", regex=False)
    return texts.astype(float)
