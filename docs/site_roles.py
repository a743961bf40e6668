"""The page of roles and their hooks, written from their docstrings when the site is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from unalike.methods import attack, compressor, privacy, roles, sampler, screening
from unalike.methods.part import Part

MODULES = (sampler, roles, compressor, screening, attack, privacy)
INTRO = """# Hooks

Which hooks does a part have, who calls them, and what do they return? A part inherits from a **role**, and implements its hooks and
any of those that all parts share. [Methods and parts](methods.md) has their arguments and results with shapes.

Hooks are pure functions: they get [views and values](views.md) and return values, and never change what they were given.
[Class flags](class_flags.md) say what a part needs beside them."""
HEAD = "| Hook | Meaning |\n| --- | --- |"


def all_roles() -> list[type[Part]]:
    """The base class of all parts, then the roles in the order of the code."""
    found = [Part]
    for module in MODULES:
        for value in vars(module).values():
            is_role = inspect.isclass(value) and issubclass(value, Part)
            if is_role and value.__module__ == module.__name__:
                found.append(value)
    return found


def hooks(role: type[Part]) -> dict[str, Callable]:
    """The hooks that a role declares first, by name; not those for which it fills in the role above it."""
    above = {name for base in role.__mro__[1:] for name in vars(base)}
    found = {}
    for name, value in vars(role).items():
        if inspect.isfunction(value) and not name.startswith("_") and name not in above:
            found[name] = value
    return found


def page() -> str:
    """The text of the page: the hooks of every part, then those of each role that declares some."""
    lines = [INTRO]
    for role in all_roles():
        if hooks(role):
            title = "Every part" if role is Part else f"`{role.__name__}`"
            lines += ["", f"## {title}", "", first_paragraph(role), "", HEAD, *_rows(role)]
    return "\n".join([*lines, ""])


def first_paragraph(documented: Callable) -> str:
    text, _, _ = (inspect.getdoc(documented) or "").partition("\n\n")
    return " ".join(text.split())


def _rows(role: type[Part]) -> Iterator[str]:
    for name, hook in hooks(role).items():
        arguments = [*inspect.signature(hook).parameters][1:]
        yield f"| `{name}({', '.join(arguments)})` | {first_paragraph(hook)} |"
