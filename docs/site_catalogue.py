"""The page of the names that flags and spec texts take, written from their docstrings when the site is built."""

from __future__ import annotations

from site_cli import escaped

from unalike.cli.lists import LISTS
from unalike.cli.names import registries

INTRO = """# All names

Which data sets, partitions, models, tasks, losses, metrics and other things have a name? `unalike list models` prints a section of
this page, and `unalike list models cnn` describes one name in full. Methods have a [gallery](../methods/index.md)."""
HEAD = "| Name and options | Meaning |\n| --- | --- |"


def page() -> str:
    """The text of the page: a section for each list, with a table for each of its registries."""
    lines = [INTRO]
    for kind in LISTS:
        tables = registries(kind)
        lines += ["", f"## {kind.capitalize()}"]
        for title, registry in tables.items():
            if len(tables) > 1:
                lines += ["", f"*{title}*"]
            lines += ["", HEAD]
            for name in registry:
                lines.append(f"| `{registry.usage(name)}` | {escaped(registry.summary(name))} |")
    return "\n".join([*lines, ""])
