"""Checks of options: does a value fit the annotation of the builder's parameter, and is a number in its range?"""

import inspect
from collections.abc import Callable, Mapping
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from unalike._utils.errors import InvalidValue, UnalikeError

PLAIN: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    bool: (bool, "True or False"),
    NoneType: (NoneType, "None"),
}
"""The annotations that are checked, alone, in unions and in tuples: the accepted type, and its name in messages."""


def check_kinds(builder: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises `InvalidValue` for an option of another kind than its annotation, where `PLAIN` holds all of that.

    A list passes for a tuple and a whole number for a number, True for neither.
    """
    try:
        parameters = inspect.signature(builder, eval_str=True).parameters
    except NameError:  # names that are imported for type checkers only
        return
    for name, value in options.items():
        if name in parameters and not _fits(value, parameters[name].annotation):
            raise InvalidValue(
                f"found {name}={value!r}, expected {_words(parameters[name].annotation)}"
            )


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _fits(value, get_args(kind)[0])
    if kind in PLAIN:
        return isinstance(value, PLAIN[kind][0]) and (kind is bool or not isinstance(value, bool))
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is not tuple:
        return True
    kinds = get_args(kind)
    if not isinstance(value, tuple | list) or (kinds[-1] is not ... and len(kinds) != len(value)):
        return False
    return all(
        _fits(*pair) for pair in zip(value, kinds[:1] * len(value) if kinds[-1] is ... else kinds)
    )


def _words(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _words(get_args(kind)[0])
    if kind in PLAIN:
        return PLAIN[kind][1]
    if get_origin(kind) is tuple:
        return f"({', '.join('...' if one is ... else _words(one) for one in get_args(kind))})"
    return " or ".join(map(_words, get_args(kind)))


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
