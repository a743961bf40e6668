"""Write the table of docs/how_to/unlike_networks.md from the classes of the parts: python docs/make_unlike_networks.py"""

from __future__ import annotations

from pathlib import Path

from unalike.methods.method import Method
from unalike.methods.part import Part, registry
from unalike.methods.plan import plan

PAGE = Path(__file__).with_name("how_to") / "unlike_networks.md"
BEGIN = "<!-- made by docs/make_unlike_networks.py -->\n"
END = "<!-- end -->\n"
HEAD = "| Method | Where networks differ |\n| :-- | :-- |\n"


def answer(method: Method) -> str:
    """What a method does where clients' networks differ."""
    needy = [p.name for p in method.parts if p.unlike_networks == "refused"]
    if needy:
        return f"refused: `{'`, `'.join(needy)}`"
    if method.aggregator.unlike_networks == "corners":
        return "averages what networks have in common, and the leading corners of larger tensors"
    return "averages over all clients what it shares, which must have equal shapes in all networks"


def table() -> str:
    """A row for each method; those that are refused have one together."""
    rows = ""
    refused = []
    for name in sorted(registry):
        builder = registry[name]
        # a part alone is shown as the methods that it makes
        if isinstance(builder, type) and issubclass(builder, Part):
            continue
        built = plan(name)
        if not isinstance(built, Method):
            refused.append(name)
            continue
        text = answer(built)
        if text.startswith("refused"):
            refused.append(name)
        else:
            rows += f"| `{name}` | {text} |\n"
    return f"{HEAD}{rows}| `{'`, `'.join(refused)}` | refused: they need one network |\n"


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
