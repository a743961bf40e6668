"""Every Python block of a tutorial runs, in the order of the page and in one namespace."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_blocks(page: Path, namespace: dict[str, object]) -> None:
    """Execute a page's Python blocks; a traceback shows the lines of the page."""
    text = page.read_text()
    for block in PYTHON_BLOCK.finditer(text):
        first_line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * first_line + block[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_code_runs(page, monkeypatch, tmp_path, capsys):
    module = ModuleType(f"tutorial_{page.stem}")  # classes are looked up by the name of their module
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    run_blocks(page, vars(module))
    assert "fedavg" in capsys.readouterr().out  # the comparison was printed
