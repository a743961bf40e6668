"""The JSON schema of config files, made from the options of `unalike run` and `unalike compare`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

Schema = dict[str, Any]

COMMANDS = ("run", "compare")
"""Commands with `--config`; where both have an option, the schema has it as the last one takes it."""
NOT_IN_FILES = ("config", "help", "dry_run", "profile")
TYPES = {"integer": "integer", "float": "number", "boolean": "boolean"}
"""Type of an option -> type of its value in a file; all others are text."""


def config_schema(app: click.Command) -> Schema:
    """The schema (draft 7, which editors for TOML read). Every option is a property, and there are no others."""
    commands: dict[str, click.Command] = getattr(app, "commands")  # noqa: B009  (a group; new releases of Typer have their own)
    options = {o.name: o for name in COMMANDS for o in commands[name].params if o.name not in NOT_IN_FILES}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Config file of unalike",
        "description": "Options of `unalike run` and `unalike compare`, for --config.",
        "type": "object",
        "properties": {name: _property(option) for name, option in options.items()},
        "additionalProperties": False,
    }


def _property(option: Any) -> Schema:
    kind = TYPES.get(option.type.name, "string")
    default = option.default() if callable(option.default) else option.default
    value: Schema = {"type": ["string", "integer"] if _is_number(default) else kind}
    if option.multiple:
        value = {"anyOf": [value, {"type": "array", "items": value}]}
    found = {"description": inspect.cleandoc(option.help or "").replace("\n", " "), **value}
    return found if default is None or default == [] else {**found, "default": _plain(default)}


def _is_number(default: Any) -> bool:
    """Whether a text option holds a number unless something else is given, such as `--batch-size full`."""
    return isinstance(default, str) and default.isdecimal()


def _plain(default: Any) -> Any:
    if isinstance(default, list | tuple):
        return [str(item) for item in default]
    return default if isinstance(default, bool | int | float) else str(default)
