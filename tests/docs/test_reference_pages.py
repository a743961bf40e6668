"""The reference pages list every public name and every command."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import typer
from docs_scripts import script

import unalike as ua
from unalike.cli import app
from unalike.cli.lists import LISTS
from unalike.cli.names import registries
from unalike.core import types, views

DOCS = Path(__file__).parents[2] / "docs"


def test_reference_has_every_public_name():
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    listed = {
        path.rpartition(".")[2] for path in re.findall(r"^::: (unalike\.\S+)", pages, re.MULTILINE)
    }
    assert set(ua.__all__) - {"__version__"} - listed == set(), (
        "add `::: module.name` to a page of docs/reference"
    )


def test_docstrings_of_views_and_values_list_their_fields():
    shown = (
        *(views.ClientView, views.ServerView, views.Cohort, views.ClientBatches),
        *(views.StageSettings, views.Members),
        *(types.Batch, types.Output, types.ClientUpdate),
    )
    for cls in shown:
        told = inspect.getdoc(cls).partition("Attributes:\n")[2]
        assert re.findall(r"^    (\w+): ", told, re.MULTILINE) == list(inspect.get_annotations(cls))


def test_every_page_is_in_the_navigation_of_the_site():
    listed = set(
        re.findall(
            r"^ +- (?:[^#\n]+: )?(\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE
        )
    )
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages - listed == set(), "add the page to `nav` in mkdocs.yml"
    assert listed - pages == set()


def test_page_of_the_command_line_has_every_command_and_option():
    made = script("site_cli")
    page = made.page()
    for name, command in made.commands(typer.main.get_command(app), "unalike"):
        assert f"## {name}\n" in page
        assert [
            option
            for parameter in command.params
            for option in parameter.opts
            if option not in page
        ] == []


def test_page_of_all_names_has_every_name_of_every_list(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    page = importlib.import_module("site_catalogue").page()
    for kind in LISTS:
        assert f"## {kind.capitalize()}\n" in page
        for registry in registries(kind).values():
            missing = [name for name in registry if f"| `{registry.usage(name)}` | " not in page]
            assert missing == []
