"""The one command that repeats a run or a comparison."""

from __future__ import annotations

import shlex
from typing import Any

ORDER = ("data", "partition", "clients", "method", "baseline", "model", "rounds", "seeds", "seed")
"""Flags that come first; the others follow as they stand."""


def command_line(command: str, config: dict[str, Any]) -> str:
    """`unalike compare --data digits ...` from a configuration whose keys are the flags; lists repeat their flag.

    A configuration with data that only a program holds cannot be repeated from a shell: the text then says what to write.
    """
    if "data" not in config:
        return f"# the clients came from a program: call ua.{command}(...) there with the configuration below"
    known = [k for k in ORDER if k in config]
    words = ["unalike", command]
    for key in [*known, *(k for k in config if k not in known)]:
        values = config[key] if isinstance(config[key], list | tuple) else [config[key]]
        for value in values:
            words += flag(key, value)
    return shlex.join(words)


def flag(key: str, value: Any) -> list[str]:
    """One flag as it stands on a command line; switches have no value, None says nothing."""
    name = "--" + key.replace("_", "-")
    if value is None or value is False:
        return []
    return [name] if value is True else [name, str(value)]
