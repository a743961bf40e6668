"""Checks of options: does a value fit the annotation of the builder's parameter, and is a number in its range?"""

import inspect
from collections.abc import Callable, Mapping
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from unalike._utils.errors import InvalidValue, UnalikeError

CHECKED_TYPES: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    bool: (bool, "True or False"),
    NoneType: (NoneType, "None"),
}
"""The annotations that are checked, alone, in unions and in tuples: the accepted type, and its name in messages."""


def check_kinds(builder: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises `InvalidValue` for an option of another kind than its annotation, where `CHECKED_TYPES` holds all of that.

    A list passes for a tuple and a whole number for a number, True for neither.
    """
    try:
        parameters = inspect.signature(builder, eval_str=True).parameters
    except NameError:
        # the builder's file imports names of its annotations for type checkers only
        return
    for name, value in options.items():
        if name not in parameters:
            continue
        kind = parameters[name].annotation
        if not _fits(value, kind):
            raise InvalidValue(f"found {name}={value!r}, expected {_describe(kind)}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the kind that an annotation names; True where the annotation is not among the checked ones."""
    if get_origin(kind) is Annotated:
        return _fits(value, get_args(kind)[0])
    if kind in CHECKED_TYPES:
        accepted, _ = CHECKED_TYPES[kind]
        # True is a whole number to Python, and none here
        if isinstance(value, bool) and kind is not bool:
            return False
        return isinstance(value, accepted)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return _fits_tuple(value, get_args(kind))
    return True


def _fits_tuple(value: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether a value is a tuple or list of these kinds; `(kind, ...)` stands for any number of items of one kind."""
    if not isinstance(value, tuple | list):
        return False
    if kinds[-1] is ...:
        return all(_fits(item, kinds[0]) for item in value)
    if len(kinds) != len(value):
        return False
    return all(_fits(item, kind) for item, kind in zip(value, kinds, strict=True))


def _describe(kind: Any) -> str:
    """The words for an annotation in a message."""
    if kind is ...:
        return "..."
    if get_origin(kind) is Annotated:
        return _describe(get_args(kind)[0])
    if kind in CHECKED_TYPES:
        _, words = CHECKED_TYPES[kind]
        return words
    descriptions = [_describe(one) for one in get_args(kind)]
    if get_origin(kind) is tuple:
        return f"({', '.join(descriptions)})"
    return " or ".join(descriptions)


def check_whole(least: int, /, **values: object) -> None:
    """Raise `UnalikeError` for an argument that is not a whole number, `least` or more; True is none."""
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise UnalikeError(f"found {name}={value!r}, expected a whole number, {least} or more")


def check_positive(name: str, **values: float) -> None:
    """Raise `UnalikeError` for a parameter that is not a finite number above 0."""
    for parameter, value in values.items():
        if not (isinstance(value, Real) and 0 < value < inf):
            raise UnalikeError(
                f"{name}: found {parameter}={value!r}, expected a finite number above 0"
            )


def check_not_negative(name: str, **values: float) -> None:
    """Raise `UnalikeError` for a parameter that is not a finite number of 0 or more."""
    for parameter, value in values.items():
        if not (isinstance(value, Real) and 0 <= value < inf):
            raise UnalikeError(
                f"{name}: found {parameter}={value!r}, expected a finite number of 0 or more"
            )


def check_count(name: str, least: int = 1, /, **values: int) -> None:
    """Raise `UnalikeError` for a parameter that is not a whole number of `least` or more."""
    for parameter, value in values.items():
        if not (isinstance(value, Integral) and value >= least):
            raise UnalikeError(
                f"{name}: found {parameter}={value!r}, expected a whole number of {least} or more"
            )
