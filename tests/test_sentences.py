"""Code is read aloud: what CONTRIBUTING says about sentences, as far as a test can hold it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "src", ROOT / "studies" / "src")
FILES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict)


def folded(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines with a comprehension in a comprehension, and with an argument that unpacks what is written in the call."""
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            inner = [part for part in ast.walk(node) if isinstance(part, COMPREHENSIONS)]
            if len(inner) > 1:
                yield node.lineno, "a comprehension in a comprehension: write a loop"
        if isinstance(node, ast.Call):
            unpacked = [part.value for part in node.args if isinstance(part, ast.Starred)]
            unpacked += [keyword.value for keyword in node.keywords if keyword.arg is None]
            if any(isinstance(part, DISPLAYS + COMPREHENSIONS) for part in unpacked):
                yield node.lineno, "an argument unpacks what is written there: give it a name"


@pytest.mark.parametrize(
    "code", ["[[x for x in a] for a in b]", "f(*(a, b))", "f(*(g(x) for x in a))", "f(**{n: x})"]
)
def test_folded_sentence_is_found(code):
    assert len(list(folded(ast.parse(code)))) == 1


def test_no_sentence_is_folded():
    found = []
    for path in FILES:
        for line, why in folded(ast.parse(path.read_text())):
            found.append(f"{path.relative_to(ROOT)}:{line}: {why}")
    assert found == []
