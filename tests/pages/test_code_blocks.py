"""Every Python block of the README and of the tutorials runs, in the order of the page and in one namespace."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def run_blocks(monkeypatch, tmp_path):
    """Function that executes a page's Python blocks in an empty folder; tracebacks have the line numbers of the page."""
    monkeypatch.chdir(tmp_path)

    def run(page: Path) -> None:
        module = ModuleType(f"page_{page.stem}")  # a class is found by the name of its module
        monkeypatch.setitem(sys.modules, module.__name__, module)
        text = page.read_text()
        for block in PYTHON_BLOCK.finditer(text):
            first_line = text.count("\n", 0, block.start(1))
            if block[1].startswith(">>>"):
                example = doctest.DocTestParser().get_doctest(block[1], vars(module), page.name, str(page), first_line)
                assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
            else:
                exec(compile("\n" * first_line + block[1], str(page), "exec"), vars(module))

    return run


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_code_runs_and_prints_a_comparison(page, run_blocks, capsys):
    run_blocks(page)
    assert "fedavg" in capsys.readouterr().out


@pytest.mark.slow
def test_readme_code_runs(run_blocks, tmp_path):
    run_blocks(ROOT / "README.md")
    assert (tmp_path / "report.html").exists()
