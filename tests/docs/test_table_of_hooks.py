"""The table of hooks lists every hook of every role, with its arguments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from unalike.methods import attack, compressor, privacy, roles, sampler, screening
from unalike.methods.part import Part

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hooks.md"


def test_table_lists_every_hook_with_its_arguments():
    listed: dict[str, dict[str, str]] = {}
    for role, hooks in re.findall(
        r"^\| (`\w+`|every part) \| (`[^|]+`) \|", PAGE.read_text(), re.MULTILINE
    ):
        listed.setdefault(role.strip("`"), {}).update(re.findall(r"`(\w+)\(([^)]*)\)`", hooks))
    declared = {name: _hooks(role) for name, role in _roles().items()}
    for name, hooks in listed.items():  # a role may be listed with hooks that it inherits
        assert hooks == {hook: _arguments(getattr(_roles()[name], hook)) for hook in hooks}
    assert {name: listed[name] for name in listed if declared[name]} == {
        n: hooks for n, hooks in declared.items() if hooks
    }


def _roles() -> dict[str, type[Part]]:
    names = {
        n: r
        for module in (roles, attack, compressor, sampler, screening, privacy)
        for n, r in vars(module).items()
    }
    found = {
        n: r
        for n, r in names.items()
        if isinstance(r, type) and issubclass(r, Part) and r is not Part
    }
    return {"every part": Part} | found


def _hooks(role: type[Part]) -> dict[str, str]:
    """The hooks that a role declares itself, with their arguments; not those for which it fills in the role above it."""
    own = {n: f for n, f in vars(role).items() if inspect.isfunction(f) and not n.startswith("_")}
    above = {n for base in role.__mro__[1:] for n in vars(base)}
    return {n: _arguments(f) for n, f in own.items() if n not in above}


def _arguments(hook: Any) -> str:
    return ", ".join([*inspect.signature(hook).parameters][1:])
