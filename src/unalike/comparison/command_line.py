"""The command line that repeats a comparison or a run."""

import shlex
from typing import Any

from unalike.core.options import TuningOptions, options_of

FIRST = ("data", "partition", "clients", "method", "baseline", "model", "rounds", "seeds", "seed")
"""Flags that come first, in this order; the others keep the order of the configuration."""
ON = [name for name, option in options_of(TuningOptions).items() if option.default is True]
"""Options that are on unless a flag turns them off."""


def command_line(command: str, config: dict[str, Any]) -> str:
    """The command line for a configuration with flags as keys; a list repeats its flag.

    Without `data` the clients came from a program, and no shell command can repeat the run. The result is then a comment
    that says how to repeat it.
    """
    if "data" not in config:
        return f"# the clients came from a program: call ua.{command}(...) there with the configuration below"
    known = [k for k in FIRST if k in config]
    words = ["unalike", command]
    for key in [*known, *(k for k in config if k not in known)]:
        values = config[key] if isinstance(config[key], list | tuple) else [config[key]]
        for value in values:
            words += flag(key, value)
    return shlex.join(words)


def flag(key: str, value: Any) -> list[str]:
    """The words of one flag. None is no flag; True is a flag without a value, and False one with `no` if True is the default."""
    name = key.replace("_", "-")
    if value is None or (value is False and key not in ON):
        return []
    return (
        [f"--{name}"]
        if value is True
        else [f"--no-{name}"]
        if value is False
        else [f"--{name}", str(value)]
    )
