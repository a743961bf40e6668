"""Errors that users can correct: each says what was found, what was expected and what to do."""

import csv
import difflib
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

DECODING_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    EOFError,
    LookupError,
    NotImplementedError,
    MemoryError,
    TokenError,
    BadZipFile,
    zlib.error,
    RecursionError,
    csv.Error,
)
"""Errors that decoders raise for damaged files, found by damaging files of every format."""


class UnalikeError(ValueError):
    """Input that cannot be used. The command line prints its message without a traceback and exits with status 2."""


class DamagedRun(UnalikeError):
    """A file of a run that is missing, or cannot be read: which, and why."""


class BusyFolder(UnalikeError):
    """A folder in which another process works."""


class InvalidValue(UnalikeError):
    """A field of a part or of the work that is out of its range: which, what was found, what was expected."""


def warn(note: str | Warning) -> None:
    """Warn of input that is probably not meant, at the line outside this library that led here."""
    frame = sys._getframe(1)
    # the level of `warnings.warn`: 1 is this function, 2 its caller
    level = 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("unalike"):
        frame = frame.f_back
        level += 1
    warnings.warn(note, stacklevel=level)


def refuse_empty_path(what: str, value: object) -> None:
    """Raise `UnalikeError` for an empty text in the place of a path: it would stand for the current folder."""
    if isinstance(value, str) and not value.strip():
        raise UnalikeError(
            f"found {value!r} for {what}, expected a path such as 'results' (is a variable of the shell empty?), or '.' for the "
            "current folder"
        )


MAX_LISTED_NAMES = 30
"""Most known names that an error lists."""


def unknown(kind: str, name: str, known: Iterable[str], elsewhere: str = "") -> UnalikeError:
    """The error for a name that is not known, with the nearest known names or else all; of very many it says `elsewhere`."""
    names = sorted(known)
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if similar:
        hint = f"did you mean {' or '.join(map(repr, similar))}?"
    elif elsewhere and len(names) > MAX_LISTED_NAMES:
        hint = elsewhere
    else:
        hint = f"known: {', '.join(names)}"
    return UnalikeError(f"unknown {kind} {name!r}; {hint}")


def require_extra(extra: str, *modules: str, what: str) -> None:
    """Raise `UnalikeError` if one of the modules that an extra installs is missing. `what` needs them."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UnalikeError(
            f"{what} needs {' and '.join(missing)}; install the extra: pip install 'unalike[{extra}]'"
        )


@contextmanager
def reading(path: Path, kind: str, *more: type[Exception]) -> Iterator[None]:
    """Convert the errors of a decoder, for a damaged or mislabelled file, to one `UnalikeError` that names the file.

    `more` are further errors of this decoder. Put only the call of the decoder into the block.
    """
    try:
        yield
    except UnalikeError:
        raise
    except FileNotFoundError:
        raise UnalikeError(f"found no {path}, expected {kind}") from None
    except (*DECODING_ERRORS, *more) as error:
        raise UnalikeError(
            f"{path} cannot be read as {kind} ({error!r}); the file is damaged or mislabelled: fetch or save it again"
        ) from None
