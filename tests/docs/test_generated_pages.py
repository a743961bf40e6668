"""Pages that scripts write from the code are up to date: run the scripts in docs/ after a change of a docstring."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_methods_pages_equal_output_of_their_script():
    """In a new process: tests define parts of their own, which would be on the page."""
    script = "import json, make_methods; print(json.dumps(make_methods.pages(in_full=False)))"
    made = subprocess.run(
        [sys.executable, "-c", script], cwd=DOCS, capture_output=True, text=True, check=True
    )
    written = {page.name: page.read_text() for page in (DOCS / "methods").glob("*.md")}
    assert json.loads(made.stdout) == written


@pytest.mark.parametrize("name", ["tasks", "unlike_networks"])
def test_table_of_methods_equals_output_of_its_script(name):
    script = f"import make_{name} as m; print(m.page(m.PAGE.read_text()), end='')"
    made = subprocess.run(
        [sys.executable, "-c", script], cwd=DOCS, capture_output=True, text=True, check=True
    )
    assert made.stdout == (DOCS / "how_to" / f"{name}.md").read_text()
