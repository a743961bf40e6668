"""The distribution `unalike-studies`: its version, its libraries, and its command."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import unalike

STUDIES = Path(__file__).parents[1]
PROJECT = tomllib.loads((STUDIES / "pyproject.toml").read_text())["project"]
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn", "pot": "ot"}
"""Distribution -> module, where they differ."""


def test_version_is_that_of_unalike():
    assert (
        PROJECT["version"] == unalike.__version__
        and f"unalike=={unalike.__version__}" in PROJECT["dependencies"]
    )


def test_imported_libraries_are_the_declared_dependencies():
    names = [re.match(r"[\w-]+", line).group() for line in PROJECT["dependencies"]]
    imported = set()
    for file in (STUDIES / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) - {"unalike_studies"} == {
        MODULES.get(name, name) for name in names
    }


def test_entry_point_is_the_app_of_the_commands():
    module, _, name = PROJECT["entry-points"]["unalike.commands"]["study"].partition(":")
    assert [
        command.name or command.callback.__name__
        for command in getattr(import_module(module), name).registered_commands
    ] == [
        "list",
        "run",
        "gather",
        "report",
        "ledger",
    ]
