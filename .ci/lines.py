"""Print the size and the density of each folder of a package: `python .ci/lines.py src/unalike`.

Lines, lines of code, expressions for each line of code, and comments for each hundred of them. The numbers are information and no
targets: other well-kept code bases have 3 to 4 expressions a line and 7 to 14 comments.
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
PRAGMAS = ("noqa", "type:", "fmt:")
"""Comments that speak to a tool."""


def size_of(source: str) -> Counter[str]:
    """Lines, lines of code, expressions and comments of a module; docstrings and blank lines are no code."""
    tokens = list(tokenize.generate_tokens(StringIO(source).readline))
    code: set[int] = set()
    for token in tokens:
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.Expr) and _is_text(node.value):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return Counter(
        lines=len(source.splitlines()),
        code=len(code),
        expressions=sum(isinstance(n, ast.expr) and n.lineno in code for n in nodes),
        comments=sum(not any(word in c.string for word in PRAGMAS) for c in comments),
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def print_package(package: Path) -> None:
    """Print one line for each folder of a package, and their sum."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for file in sorted(package.rglob("*.py")):
        folder, *_ = file.relative_to(package).parent.parts or ["."]
        totals[folder].update(size_of(file.read_text()))
    totals["total"] = sum(totals.values(), Counter())

    print(
        f"{package.name:<18}{'lines':>9}{'code':>9}{'expressions a line':>20}{'comments in 100':>17}"
    )
    for folder, total in totals.items():
        code = max(total["code"], 1)
        density = total["expressions"] / code
        comments = 100 * total["comments"] / code
        print(
            f"  {folder:<16}{total['lines']:>9,}{total['code']:>9,}{density:>20.1f}{comments:>17.1f}"
        )


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print_package(Path(folder))
