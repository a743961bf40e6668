"""The JSON schema of config files, made from the options of `unalike run` and `unalike compare`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

Schema = dict[str, Any]

COMMANDS = ("run", "compare")
"""Commands with `--config`; where both have an option, the schema has it as the last one takes it."""
NOT_IN_FILES = ("config", "help", "dry_run", "profile")
TYPES = {int: "integer", float: "number", bool: "boolean"}
"""Type of an option -> type of its value in a file; all others are text."""


def config_schema(commands: Iterable[Callable[..., Any]]) -> Schema:
    """The schema (draft 7, which editors for TOML read). Every option is a property, and there are no others."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config file of unalike",
        "description": "Options of `unalike run` and `unalike compare`, for --config.",
        "type": "object",
        "properties": {name: schema for command in commands for name, schema in _properties(command)},
        "additionalProperties": False,
    }


def _properties(command: Callable[..., Any]) -> Iterator[tuple[str, Schema]]:
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if get_origin(parameter.annotation) is Annotated and parameter.name not in NOT_IN_FILES:
            yield parameter.name, _property(parameter)


def _property(parameter: inspect.Parameter) -> Schema:
    kind, option = get_args(parameter.annotation)
    default, repeated = parameter.default, get_origin(kind) is list
    # an optional value or a list of values: the type of one value
    (kind,) = [inner for inner in get_args(kind) or (kind,) if inner is not NoneType]
    value: Schema = {"type": ["string", "integer"] if _is_number(default) else TYPES.get(kind, "string")}
    if repeated:
        value = {"anyOf": [value, {"type": "array", "items": value}]}
    found = {"description": option.help, **value}
    return found if default is None or default == [] else {**found, "default": _plain(default)}


def _is_number(default: Any) -> bool:
    """Whether a text option holds a number unless something else is given, such as `--batch-size full`."""
    return isinstance(default, str) and default.isdecimal()


def _plain(default: Any) -> Any:
    return default if isinstance(default, bool | int | float | list) else str(default)
