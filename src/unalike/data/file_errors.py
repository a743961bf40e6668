"""Errors of damaged files as one message that names the file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

from unalike._utils.errors import UnalikeError

DAMAGED: tuple[type[Exception], ...] = (
    *(OSError, ValueError, EOFError, LookupError, NotImplementedError, MemoryError),
    *(TokenError, BadZipFile, zlib.error),
)
"""Errors that decoders raise for damaged files, found by damaging files of every format."""


@contextmanager
def reading(path: Path, kind: str, *more: type[Exception]) -> Iterator[None]:
    """Convert the errors of a decoder, for a damaged or mislabelled file, to one `UnalikeError` that names the file.

    `more` are further errors of this decoder. Put only the call of the decoder into the block.
    """
    try:
        yield
    except UnalikeError:
        raise
    except (*DAMAGED, *more) as error:
        raise UnalikeError(
            f"{path} cannot be read as {kind} ({error!r}); the file is damaged or mislabelled: fetch or save it again"
        ) from None
