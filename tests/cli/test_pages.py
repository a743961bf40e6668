"""Pages that scripts write from the code are up to date: run the scripts in docs/ after a change of a docstring."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_methods_pages_equal_output_of_their_script():
    written = {page.name: page.read_text() for page in (DOCS / "methods").glob("*.md")}
    assert load_script("make_methods").pages() == written


@pytest.mark.parametrize("page", ["client_view.md", "server_view.md"])
def test_view_page_equals_output_of_its_script(page, tmp_path):
    load_script("make_views").main(tmp_path)
    assert (tmp_path / page).read_text() == (DOCS / "views" / page).read_text()
