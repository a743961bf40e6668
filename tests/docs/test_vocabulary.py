"""Source code and pages use the terms of docs/glossary.md, and docstrings begin with what a thing is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "unalike"
MODULES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "studies" / "src").rglob("*.py")])
EXCEPT = {ROOT / "docs" / "glossary.md"}
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")} - EXCEPT
)

UNUSED = (
    "drawers",
    "mail",
    "teamwork",
    "lesson",
    "lessons",
    "survey",
    "surveys",
    "thaw",
    "leash",
    "parcel",
)
"""Words that stood for terms of the glossary and have no other meaning here."""
FORMS = ("remember", "remembers", "remembered", "forget", "forgets", "forgotten", "learnt")
UNUSED_IN_SOURCE = (*UNUSED, *FORMS, "people")
"""Words that have another meaning on pages only, such as the people at a site."""
RIDDLE = re.compile(r"(?:What|Who|Whose|Whom|Which|Where|When|Why|How|That|Those)\b")


def uses(path: Path, words: tuple[str, ...]) -> list[str]:
    """The lines of a file with one of these words."""
    word = re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for match in word.finditer(line)
    ]


def docstrings(path: Path) -> list[str]:
    """The docstrings of a module, its classes and its functions."""
    nodes = ast.walk(ast.parse(path.read_text()))
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [text for node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]


def test_source_uses_no_old_word():
    assert [hit for path in MODULES for hit in uses(path, UNUSED_IN_SOURCE)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_uses_no_old_word(page):
    assert uses(page, UNUSED) == []


def test_docstrings_say_what_a_thing_is():
    riddles = [
        f"{path.relative_to(ROOT)}: {text[:60]!r}" for path in MODULES for text in docstrings(path)
    ]
    assert [line for line in riddles if RIDDLE.match(line.partition(": ")[2][1:])] == []
