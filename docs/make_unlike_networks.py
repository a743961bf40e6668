"""Write the table of docs/how_to/unlike_networks.md from the classes of the parts: python docs/make_unlike_networks.py"""

from __future__ import annotations

from pathlib import Path

from marked_table import with_table

from unalike.methods.method import Method
from unalike.methods.part import Part, registry
from unalike.methods.plan import plan

PAGE = Path(__file__).with_name("how_to") / "unlike_networks.md"
HEAD = "| Methods | Where networks differ |\n| :-- | :-- |\n"


CORNERS = "average what networks have in common, and the leading corners of larger tensors"
EQUAL = "average over all clients what they share, which must have equal shapes in all networks"
OTHERS = "| all others | refused: they need one network |\n"


def answer(method: Method) -> str:
    """What a method does where clients' networks differ; empty where it is refused."""
    if any(part.unlike_networks == "refused" for part in method.parts):
        return ""
    return CORNERS if method.aggregator.unlike_networks == "corners" else EQUAL


def table() -> str:
    """A row for each answer, with the methods that have it."""
    names: dict[str, list[str]] = {}
    for name in sorted(registry):
        builder = registry[name]
        # a part alone is shown as the methods that it makes
        if isinstance(builder, type) and issubclass(builder, Part):
            continue
        built = plan(name)
        text = answer(built) if isinstance(built, Method) else ""
        if text:
            names.setdefault(text, []).append(name)
    rows = [f"| `{'`, `'.join(found)}` | {text} |\n" for text, found in names.items()]
    return HEAD + "".join(rows) + OTHERS


def page(text: str) -> str:
    """The page with the table as it is now."""
    return with_table(text, "make_unlike_networks", table())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
