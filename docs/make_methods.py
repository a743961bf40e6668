"""Write docs/methods.md from the docstrings of the catalogue: python docs/make_methods.py"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from unalike.cli import method_guide
from unalike.methods.part import registry

HEAD = """# Methods

A method is a sum of parts, and any two methods that combine can be added: `"fedprox(mu=0.1) + lws"`. This page is written from
the docstrings by `docs/make_methods.py`. What is sent and kept is counted in units of the model (parameters of a small network),
per client and round.

"""

ESCAPED = {"_": "\\_", "*": "\\*", "<": "&lt;"}


def table(entries: list[method_guide.Entry]) -> str:
    rows = ["| method | paper | down | up | server keeps | client keeps | needs |", "|---|---|---:|---:|---:|---:|---|"]
    for e in entries:
        numbers = " | ".join(method_guide.units(v) for v in (e.down, e.up, e.server, e.client))
        rows.append(f"| [`{e.name}`](#{e.name}) | {e.source} | {numbers} | {', '.join(e.needs)} |")
    return "\n".join(rows)


def matrix(names: list[str]) -> str:
    """Which pairs combine: a dot for yes, a cross for no."""
    rows = ["| | " + " | ".join(f"`{n}`" for n in names) + " |", "|---|" + ":-:|" * len(names)]
    for a in names:
        marks = ["" if a == b else "·" if method_guide.combines(a, b) is None else "×" for b in names]
        rows.append(f"| `{a}` | " + " | ".join(marks) + " |")
    return "\n".join(rows)


def section(e: method_guide.Entry) -> str:
    text = inspect.getdoc(registry[e.name]) or ""
    others = [p for p in e.parts if p.name != e.name]
    parts = [f"**`{method_guide.call(p)}`**\n\n{as_text(inspect.getdoc(p) or '')}" for p in others]
    return "\n\n".join([f"### {e.name}", f"`{e.usage}`", as_text(text), *parts])


def as_text(docstring: str) -> str:
    """A docstring as Markdown: formulas may hold signs that Markdown would read, but within backticks."""
    return re.sub("`[^`]*`|[_*<]", lambda found: ESCAPED.get(found[0], found[0]), docstring.replace("<-", "←"))


def main() -> None:
    entries = [method_guide.entry(name) for name in method_guide.published()]
    adding = [e.name for e in entries if e.down == e.down]
    parts = [f"**`{registry.usage(n)}`**\n\n{as_text(inspect.getdoc(registry[n]) or '')}" for n in method_guide.parts()]
    page = [
        HEAD + table(entries),
        "## Which combine\n\nA dot: `a + b` is a method. A cross: refused, with the reason in the message.\n\n"
        + matrix(adding),
        "## One by one",
        *(section(e) for e in entries),
        "## All parts",
        *parts,
    ]
    Path(__file__).with_name("methods.md").write_text("\n\n".join(page) + "\n")


if __name__ == "__main__":
    main()
