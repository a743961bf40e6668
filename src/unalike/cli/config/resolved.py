"""The config of a command as it is resolved: every option with its value, as a TOML file that `--config` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from unalike.cli.config.schema import NOT_IN_FILES

SOURCES = {"COMMANDLINE": "", "DEFAULT_MAP": "  # from the config file", "ENVIRONMENT": "  # from the environment"}
"""Source of an option -> remark; all others are defaults."""
WIDTH = 44
"""Column of the remarks."""


def resolved_config(context: typer.Context, **known: Any) -> str:
    """Lines of TOML, one per option that has a value; defaults are marked.

    Args:
        context: the command that was called.
        known: values that the command found out, such as the number of clients of a data set.
    """
    lines = []
    for name in (option.name or "" for option in context.command.params):
        given = context.params.get(name)
        value = known.get(name) if given is None else given
        if name in NOT_IN_FILES or value is None or value in ([], ()):
            continue
        source = context.get_parameter_source(name)
        remark = SOURCES.get(source.name if source is not None else "", "  # default")
        lines.append(f"{f'{name} = {_toml(value)}':<{WIDTH}}{remark}".rstrip())
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value on one line; texts, numbers and lists of them are the same in TOML and JSON."""
    plain = [str(item) for item in value] if isinstance(value, list | tuple) else value
    return json.dumps(str(plain) if isinstance(plain, Path) else plain, ensure_ascii=False)
