"""Spec text such as `"fedprox(mu=0.1) + lws"`: read with `ast`, never evaluated; and as a name of a file."""

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from unalike._utils.errors import UnalikeError

MAX_TEXT_LETTERS = 10_000
"""Most letters of a spec text; texts of strangers are read, too."""


@dataclass(frozen=True)
class Call:
    """One name with its keyword parameters: `dirichlet(alpha=0.1)` is `Call("dirichlet", {"alpha": 0.1})`."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        written = [f"{name}={value!r}" for name, value in self.parameters.items()]
        return f"{self.name}({', '.join(written)})"


def parse(text: str) -> list[Call]:
    """Read `a(x=1) + b` into its calls, left to right.

    >>> [str(call) for call in parse("fedprox(mu=0.1) + lws")]
    ['fedprox(mu=0.1)', 'lws()']

    Raises `UnalikeError` for anything but names, keyword parameters with literal values and `+`, and for very long texts.
    """
    if len(text) > MAX_TEXT_LETTERS:
        raise UnalikeError(
            f"cannot read {text[:60]!r}...: found {len(text):,} letters, expected at most {MAX_TEXT_LETTERS:,}"
        )
    try:
        return _calls(_expression(text), text)
    except (RecursionError, MemoryError):
        # Python's parser has these, too, for an expression that nests too deeply
        raise UnalikeError(
            f"cannot read {text[:60]!r}...: it has too many terms, or nests too deeply"
        ) from None


def _expression(text: str) -> ast.expr:
    """The text as an expression of Python."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        why = "it is empty"
        if text.strip():
            why = getattr(error, "msg", str(error))
        raise UnalikeError(
            f"cannot read {text!r}: {why}; write for example 'fedprox(mu=0.1) + lws'"
        ) from None


def parse_one(text: str) -> Call:
    """Read a text that holds exactly one call, such as a partition or a model."""
    calls = parse(text)
    if len(calls) != 1:
        raise UnalikeError(
            f"{text!r} joins {len(calls)} names with '+'; expected a single name such as {calls[0]}"
        )
    return calls[0]


def _calls(node: ast.expr, text: str) -> list[Call]:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _calls(left, text) + _calls(right, text)
        case ast.Name(id=name):
            return [Call(name)]
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if _differ(keywords):
            parameters = {_keyword(k, text): _literal(k.value, text) for k in keywords}
            return [Call(name, parameters)]
        case ast.Call(func=ast.Name(id=name)):
            raise UnalikeError(
                f"{text!r}: {name} takes each parameter once and by name, as in '{name}(parameter=value)'"
            )
    raise UnalikeError(
        f"cannot read {text!r}: {ast.unparse(node)!r} is not a name, a call with keywords or a sum of them"
    )


def _differ(keywords: list[ast.keyword]) -> bool:
    """Whether no two keywords have the same name."""
    names = {keyword.arg for keyword in keywords}
    return len(names) == len(keywords)


def _keyword(keyword: ast.keyword, text: str) -> str:
    if keyword.arg is None:
        raise UnalikeError(
            f"cannot read {text!r}: '**' is not allowed, write each parameter with its name"
        )
    return keyword.arg


def _literal(node: ast.expr, text: str) -> Any:
    """The value of a literal; also of `inf`, `-inf` and `nan`, and of tuples and lists, which become tuples."""
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_literal(item, text) for item in node.elts)
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name() as name):
            return -_literal(name, text)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        source = ast.unparse(node)
        raise UnalikeError(
            f"{text!r}: {source!r} is not a literal; expected a number, text, True, False, None or a tuple"
        ) from None


def slug(text: str) -> str:
    """The text in lower case with a hyphen for anything but letters, digits and dots: `fedprox(mu=0.1)` is `fedprox-mu-0.1`."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
