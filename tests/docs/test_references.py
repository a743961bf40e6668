"""Files and names that the documentation mentions exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from unalike.cli.method_guide import published
from unalike.methods.part import registry

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src" / "unalike", ROOT / "studies" / "src", ROOT)
"""Folders that paths are below."""
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

PACKAGE_FILE = re.compile(r"`((?:src/unalike/)?[a-z_]+(?:/[a-z_]+)*/[a-z_]+\.py)(?::(\w+))?`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def source(file: str) -> Path | None:
    return next((folder / file for folder in SOURCES if (folder / file).exists()), None)


def defines(path: Path, name: str) -> bool:
    return bool(
        re.search(
            rf"^(?:async def|def|class) {name}\b|^{name}\s*[:=]", path.read_text(), re.MULTILINE
        )
    )


def test_glossary_defines_every_term_once():
    terms = [
        line.split("|")[1].strip()
        for line in GLOSSARY.read_text().splitlines()
        if line.startswith("| ")
    ]
    assert [
        term for term in set(terms) if terms.count(term) > 1 and term not in ("Term", ":--", "Not")
    ] == []


@pytest.mark.parametrize(
    "page",
    [GLOSSARY, ROOT / "docs/architecture.md", ROOT / "CONTRIBUTING.md"],
    ids=lambda page: page.name,
)
def test_page_names_files_and_functions_that_exist(page):
    missing = []
    for file, name in PACKAGE_FILE.findall(page.read_text()):
        path = source(file)
        if path is None or (name and not defines(path, name)):
            missing.append(f"{file}:{name}" if name else file)
    assert missing == []


def test_page_of_remedies_names_every_published_method():
    ours = [name for name in published() if registry[name].__module__.startswith("unalike.")]
    page = (ROOT / "docs" / "explanation" / "remedies.md").read_text()
    assert sorted({*ours} - {*re.findall(r"\w+", page)}) == ["diagnosis", "fedsgd"]


def test_docstrings_of_modules_name_files_that_exist():
    missing = []
    for folder in SOURCES[:2]:
        for path in folder.rglob("*.py"):
            named = re.findall(
                r"`([\w/]+\.py)`", ast.get_docstring(ast.parse(path.read_text())) or ""
            )
            missing += [
                f"{path}: {file}"
                for file in named
                if not any((place / file).exists() for place in path.parents)
            ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_page_lead_to_files(page):
    targets = [target for target in LINK.findall(page.read_text()) if not target.startswith("http")]
    assert [target for target in targets if not (page.parent / target).exists()] == []
