"""Print lines and lines of code by folder and in total: `python .ci/lines.py src/unalike`.

Imports are lines of code; docstrings, comments and blank lines are not.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter, defaultdict
from io import StringIO
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
"""Tokens that are not code."""


def lines_of(source: str) -> tuple[int, int]:
    """Lines and lines of code of a module."""
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    code = {
        line
        for token in tokens
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            code.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(source.splitlines()), len(code)


def print_package(package: Path) -> None:
    """Print one line for each folder of a package, and their sum."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for file in sorted(package.rglob("*.py")):
        folder, *_ = file.relative_to(package).parent.parts or ["."]
        lines, code = lines_of(file.read_text())
        totals[folder].update(lines=lines, code=code)
    totals["total"] = sum(totals.values(), Counter())
    print(f"{package.name:<18}{'lines':>9}{'code':>9}")
    for folder, total in totals.items():
        print(f"  {folder:<16}{total['lines']:>9,}{total['code']:>9,}")


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print_package(Path(folder))
