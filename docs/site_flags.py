"""The page of class flags, written from the docstrings of class attributes and properties when the site is built."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import NamedTuple

from unalike.methods import (
    attack,
    base_plan,
    client_query,
    compressor,
    part,
    privacy,
    roles,
    sampler,
    screening,
)
from unalike.methods.flag_checks import OF_HOOKS, OF_READS

MODULES = (part, roles, sampler, compressor, screening, privacy, attack, base_plan, client_query)
CONSEQUENCE = "Without it:"
INTRO = """# Class flags

Which class attributes does a part, a plan or a client query have, and what happens if one is missing? A flag is written in the
class, `needs_data = True`, or as a property where it depends on the fields."""
HEAD = "| Flag | Meaning | Without it |\n| --- | --- | --- |"
CHECKS = """## Checks of the class

`@ua.part` refuses a class with one of these names that lacks the flag:

| The class | needs | Otherwise |
| --- | --- | --- |
"""


class Flag(NamedTuple):
    """A flag: the class that declares it, its name, its meaning, and what happens without it."""

    owner: str
    name: str
    meaning: str
    without: str


def flags() -> list[Flag]:
    """The flags of all roles, of plans and of client queries, in the order of the code."""
    found = []
    for module in MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                found += [Flag(node.name, *texts) for texts in _flags_of(node)]
    return found


def _flags_of(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Name, meaning and consequence of each flag that a class declares."""
    for statement, following in zip(node.body, [*node.body[1:], None]):
        text = ""
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            name = ast.unparse(statement.target)
            text = ast.literal_eval(following.value)
        elif isinstance(statement, ast.FunctionDef) and "property" in _decorators(statement):
            name = statement.name
            text = ast.get_docstring(statement) or ""
        meaning, found, without = " ".join(text.split()).partition(CONSEQUENCE)
        if found:
            yield name, meaning.strip(), without.strip()


def _decorators(function: ast.FunctionDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in function.decorator_list]


def page() -> str:
    """The text of the page: the flags of every part, those of roles, plans and queries, and the checks."""
    lines = [INTRO, "", "## Every part", "", HEAD]
    lines += [row(flag, flag.name) for flag in flags() if flag.owner == "Part"]
    lines += ["", "## Roles, plans, client queries", "", HEAD]
    lines += [row(flag, f"{flag.owner}.{flag.name}") for flag in flags() if flag.owner != "Part"]
    lines += ["", CHECKS.rstrip()]
    for needed in OF_HOOKS:
        lines.append(f"| has `{needed.name}` | `{needed.line}` | {needed.otherwise} |")
    for needed in OF_READS:
        lines.append(f"| reads `{needed.name}` | `{needed.line}` | {needed.otherwise} |")
    return "\n".join([*lines, ""])


def row(flag: Flag, name: str) -> str:
    without = flag.without[0].upper() + flag.without[1:]
    return f"| `{name}` | {flag.meaning} | {without} |"
