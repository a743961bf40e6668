"""Frozen dataclasses with checked fields and readable errors."""

from functools import wraps
from typing import Any, TypeVar, dataclass_transform

import pydantic

from unalike._utils.errors import InvalidValue
from unalike._utils.keywords import check_keywords, fields_of

C = TypeVar("C", bound=type)


@dataclass_transform(frozen_default=True)
def validated(cls: C, *, repr: bool = True) -> C:
    """Class decorator: a frozen pydantic dataclass that raises `InvalidValue` instead of pydantic's own error.

    With repr=False it keeps the `__repr__` of a base class.
    """
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    make = pydantic.dataclasses.dataclass(frozen=True, repr=repr, config=config)
    checked_class: Any = make(cls)
    original, known = checked_class.__init__, fields_of(checked_class)

    @wraps(original)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        owner = f"{'ua.' if checked_class.__name__ == 'Work' else ''}{checked_class.__name__}"
        check_keywords(owner, kwargs, known, kind=checked_class)
        try:
            original(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            raise InvalidValue(explain_errors(error)) from None

    checked_class.__init__ = checked
    return checked_class


def explain_errors(error: pydantic.ValidationError) -> str:
    """A validation error in one line: which parameter, what was found, what was expected.

    Pydantic also reports each field that lacks the invalid values within it; this is left out.
    """
    rows = error.errors()
    within = {row["loc"][:depth] for row in rows for depth in range(1, len(row["loc"]))}
    return "; ".join(_said(row) for row in rows if row["loc"] not in within)


def _said(row: Any) -> str:
    """One row of it. A check of several fields together names them in its own message."""
    where, message = ".".join(map(str, row["loc"])), row["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{where}={row.get('input')!r}: {message}" if where else message
