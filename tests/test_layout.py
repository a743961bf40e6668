"""The layout of the package and of its tests: shallow folders, and no circle of imports between files.

`lint-imports` (in `make lint`) checks which folder may import which; see docs/architecture.md.
"""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "unalike"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES} - {Path(".")})

LOOSE_MODULES = {"__init__.py", "__main__.py", "api.py"}
MAX_DEPTH = 3
"""unalike/federation/coordinator/mailbox.py has depth 3."""

TASK_NAMES = ("classification", "binary", "regression")
TESTS_OF_EVERYTHING = {"benchmarks", "contract", "devices", "docs", "helpers", "network", "pages"}
"""Folders of tests with no folder of that name in the package."""


def test_tests_have_the_folders_of_the_package():
    tests = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/*.py")}
    assert tests - TESTS_OF_EVERYTHING == {folder.parts[0] for folder in FOLDERS}


def test_architecture_page_shows_the_layers_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = [
        [re.split(r"  +", line)[0] for line in block.splitlines()]
        for block in re.findall(r"```text\n(.*?)```", page, re.S)
    ]
    for layers in [contract["layers"] for contract in contracts if "layers" in contract]:
        assert [layer for layer in layers if layer not in ("__main__", "api")] in shown


def test_files_import_each_other_without_a_circle():
    graph = grimp.build_graph(
        "unalike", "unalike_studies", cache_dir=None
    )  # counts imports under TYPE_CHECKING, too
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail("imports form a circle: " + " is imported by ".join(error.args[1]))


def test_package_root_has_only_the_public_modules():
    assert {path.name for path in MODULES if path.parent == Path(".")} == LOOSE_MODULES


def test_folders_are_at_most_two_deep():
    assert [str(path) for path in MODULES if len(path.parts) > MAX_DEPTH] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_folder_has_a_docstring(folder):
    assert (PACKAGE / folder / "__init__.py").read_text().startswith('"""')


def names_a_task(node: ast.AST) -> bool:
    """Whether an expression is the name of a task: `task.name`, `settings.task.name`, or a text such as "binary"."""
    if isinstance(node, ast.Constant):
        return node.value in TASK_NAMES
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    owner = node.value
    word = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    return word.lower().endswith("task")


def questions_about_names_of_tasks(source: str) -> list[int]:
    """The lines that compare a task's name, or look something up by it."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            asked = [node.subject]
        elif isinstance(node, ast.Subscript):
            asked = [node.slice]
        if any(map(names_a_task, asked)):
            lines.append(node.lineno)
    return lines


def test_task_is_asked_and_not_compared_by_name():
    """A new task is one class: no file outside `core/tasks` knows which tasks there are."""
    found = {}
    for module in MODULES:
        if module.parts[:2] == ("core", "tasks"):
            continue
        lines = questions_about_names_of_tasks((PACKAGE / module).read_text())
        if lines:
            found[str(module)] = lines
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        'if settings.task.name == "regression": pass',
        'has_classes = schema.task != "classification"',
        "loss = LOSSES[task.name]",
        "match plan.task.name:\n    case _: pass",
        "if self.task.name in names: pass",
    ],
)
def test_question_about_the_name_of_a_task_is_found(line):
    assert questions_about_names_of_tasks(line) == [1]
