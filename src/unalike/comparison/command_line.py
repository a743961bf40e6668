"""The command line that repeats a comparison or a run."""

import shlex
from typing import Any

from unalike.core.option import options_of
from unalike.core.options import TuningOptions

FIRST_FLAGS = (
    "data",
    "partition",
    "clients",
    "method",
    "baseline",
    "model",
    "rounds",
    "seeds",
    "seed",
)
"""Flags that come first, in this order; the others keep the order of the configuration."""
ON_BY_DEFAULT = [
    name for name, option in options_of(TuningOptions).items() if option.default is True
]
"""Options that are on unless a flag turns them off."""


def command_line(command: str, config: dict[str, Any]) -> str:
    """The command line for a configuration with flags as keys; a list repeats its flag.

    Without `data` the clients came from a program, and no shell command can repeat the run. The result is then a comment
    that says how to repeat it.
    """
    if "data" not in config:
        return f"# the clients came from a program: call ua.{command}(...) there with the configuration below"
    first = [key for key in FIRST_FLAGS if key in config]
    others = [key for key in config if key not in first]
    words = ["unalike", command]
    for key in [*first, *others]:
        value = config[key]
        repeated = value if isinstance(value, list | tuple) else [value]
        for one in repeated:
            words += flag(key, one)
    return shlex.join(words)


def flag(key: str, value: Any) -> list[str]:
    """The words of one flag. None is no flag; True is a flag without a value, and False one with `no` if True is the default."""
    name = key.replace("_", "-")
    if value is None or (value is False and key not in ON_BY_DEFAULT):
        return []
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    return [f"--{name}", str(value)]
