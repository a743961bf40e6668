"""The reference pages list every public name and every command."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import unalike as ua

DOCS = Path(__file__).parents[2] / "docs"


def test_reference_has_every_public_name():
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    listed = {path.rpartition(".")[2] for path in re.findall(r"^::: (unalike\.\S+)", pages, re.MULTILINE)}
    assert set(ua.__all__) - {"__version__"} - listed == set(), "add `::: module.name` to a page of docs/reference"


def test_page_of_the_command_line_equals_the_help_texts():
    spec = importlib.util.spec_from_file_location("make_cli", DOCS / "make_cli.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text() == script.page(), "run: python docs/make_cli.py"
