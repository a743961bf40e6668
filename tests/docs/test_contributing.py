"""CONTRIBUTING's sections "Add a ..." followed literally, in a copy of the package: their files are written, their commands run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^## (Add an? [\w ]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
FILE = re.compile(r"```python\n# ((?:src|tests)/\S+)\n(.*?)```", re.S)
COMMAND = re.compile(r"^\$ (unalike .*)$", re.M)
WITH_FILES = [title for title, text in SECTIONS.items() if FILE.search(text)]


@pytest.fixture
def repository(tmp_path):
    """A copy of the package and of the helpers of its tests."""
    without_caches = shutil.ignore_patterns("__pycache__")
    # compiled loops take long to compile: the copy uses those of the project
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "loops")
    )
    (tmp_path / "src" / "unalike" / "loops").symlink_to(ROOT / "src" / "unalike" / "loops")
    shutil.copytree(
        ROOT / "tests" / "helpers", tmp_path / "tests" / "helpers", ignore=without_caches
    )
    return tmp_path


def run(repository: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run a Python program with the package of the copy."""
    paths = [repository / "src", repository / "tests" / "helpers"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = [sys.executable, *arguments]
    return subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, text=True, timeout=300
    )


def test_sections_with_files_are_those_that_a_newcomer_follows():
    assert WITH_FILES == ["Add a part", "Add a partition", "Add a data set", "Add a model"]


@pytest.mark.slow
@pytest.mark.parametrize("title", WITH_FILES)
def test_section_followed_literally_works(title, repository):
    tests = []
    for name, text in FILE.findall(SECTIONS[title]):
        path = repository / name
        assert not path.exists(), f"{name} is a file of the project; the example needs another name"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.startswith("tests/"):
            tests.append(name)
    commands = COMMAND.findall(SECTIONS[title])
    assert commands
    for command in commands:
        done = run(repository, "-m", *shlex.split(command))
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    for name in tests:
        done = run(repository, "-m", "pytest", "-q", "-p", "no:cacheprovider", name)
        assert done.returncode == 0, f"{name}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_option_added_as_described_is_a_flag_a_keyword_and_in_no_digest(repository):
    """The steps of "Add an option of a run": a field, a keyword; runs that do not set it stay the same runs."""
    assert "src/unalike/core/options.py" in SECTIONS["Add an option of a run"]
    before = run(repository, "-c", DIGEST)
    options = repository / "src" / "unalike" / "core" / "options.py"
    loop = repository / "src" / "unalike" / "runtime" / "round_loop.py"
    field = '    patience_seconds: Annotated[float, Help("Seconds to wait for a round.")] = 2.5\n'
    insert_after(options, "class TrainingOptions", '"""The training on this machine."""\n', field)
    insert_after(
        loop, "def run(", "    evaluate_every: int = 1,\n", "    patience_seconds: float = 2.5,\n"
    )
    text = loop.read_text()
    documented = "        evaluate_every: number of rounds"
    assert documented in text
    loop.write_text(
        text.replace(
            documented, "        patience_seconds: seconds to wait for a round.\n" + documented, 1
        )
    )

    after = run(repository, "-c", DIGEST)
    assert before.returncode == after.returncode == 0, before.stderr + after.stderr
    assert before.stdout == after.stdout
    assert "--patience-seconds" in run(repository, "-m", "unalike", "run", "--help").stdout
    wrong = run(repository, "-m", "unalike", "run", "--patience-seconds", "soon")
    assert wrong.returncode != 0 and "patience" in wrong.stderr + wrong.stdout


def insert_after(path: Path, owner: str, marker: str, line: str) -> None:
    """Insert a line after the first marker that follows `owner`."""
    text = path.read_text()
    place = text.index(marker, text.index(owner)) + len(marker)
    path.write_text(text[:place] + line + text[place:])


DIGEST = """
import unalike as ua
from unalike.runtime.setup.run_config import configure_run
clients = ua.partition(ua.load("digits"), "iid", clients=3, seed=0)
print(configure_run("fedavg", clients, model="linear", rounds=2).key)
"""
