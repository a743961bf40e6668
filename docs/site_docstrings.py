"""Griffe extensions of the documentation site: doctests are shown as code, and defaults by their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
FLAG = re.compile(r"\s*# doctest:.*")
SECTION = re.compile(r"^Examples?:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Puts doctests of every docstring between fences."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute that has doctests."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            text = SECTION.sub(lambda found: re.sub("(?m)^ {4}", "", found[1]), obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"```pycon\n{FLAG.sub('', found[0])}\n```\n", text
            )


class Defaults(griffe.Extension):
    """Shows a default that is a constant of a module, such as `ROUNDS`, by its value."""

    def on_package(self, *, pkg: griffe.Module, **options: Any) -> None:
        """Replace such defaults in all functions of the package."""
        for function in _functions(pkg):
            for parameter in function.parameters:
                if isinstance(parameter.default, griffe.ExprName):
                    parameter.default = _value(pkg, parameter.default)


def _functions(module: griffe.Module) -> Iterator[griffe.Function]:
    """The functions of a module and of the modules below it."""
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_module:
            yield from _functions(member)
        elif member.is_function:
            yield member


def _value(package: griffe.Module, name: griffe.ExprName) -> Any:
    """The value of a constant of the package; any other name as it is."""
    try:
        return package[name.canonical_path.removeprefix(f"{package.name}.")].value
    except (KeyError, AttributeError):
        return name
