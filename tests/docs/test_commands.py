"""README, quick start and tutorials, followed literally: in an empty folder and a new process, with each command by bash.

`tests/pages` runs the code of all other pages, and lists the commands that are not run, with their reasons.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import READ_FIRST, ROOT, blocks_of

PAGES = [str(page.relative_to(ROOT)) for page in READ_FIRST]
WITH_NETWORK = [
    str(page.relative_to(ROOT))
    for page in READ_FIRST
    if any(block.mark == "network" for block in blocks_of(page))
]


@pytest.fixture
def follow_page(tmp_path):
    """Function that follows a page in an empty folder, and shows what went wrong."""
    programs, folder = tmp_path / "bin", tmp_path / "folder"
    programs.mkdir()
    folder.mkdir()
    (programs / "python").symlink_to(sys.executable)
    program = programs / "unalike"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m unalike "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "studies" / "src")]),
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).parents[1] / "helpers" / "follow_page.py"

    def follow(page: str, *options: str) -> None:
        words = [sys.executable, str(script), str(ROOT / page), *options]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return follow


def test_readme_quick_start_and_tutorials_are_followed():
    assert {"README.md", "docs/quick_start.md", "docs/tutorials/own_table.md"} <= {*PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page_followed_literally_works(page, follow_page):
    follow_page(page)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("page", WITH_NETWORK)
def test_page_followed_literally_with_a_network_works(page, follow_page):
    follow_page(page, "--network")
