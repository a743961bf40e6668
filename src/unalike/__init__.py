"""Federated learning for clients whose data is not alike: compare remedies fairly, then run the winner for real.

The public names are those of `unalike.api`. They load at first use, so that `import unalike` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unalike._utils.version import __version__

if TYPE_CHECKING:
    from unalike.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'unalike' has no attribute {name!r}")
    try:
        return import_module(f"unalike.{name}")  # a folder
    except ModuleNotFoundError as error:
        if error.name != f"unalike.{name}":
            raise
    try:
        return getattr(import_module("unalike.api"), name)
    except AttributeError:
        raise AttributeError(f"module 'unalike' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *import_module("unalike.api").__all__])


__all__ = ["__version__"]
