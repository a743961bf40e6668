"""Write docs/views/client_view.md and docs/views/server_view.md from the docstrings of the views: python docs/make_views.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods import attack, compressor, privacy, roles, screening
from unalike.methods.part import Part

FOLDER = Path(__file__).with_name("views")
NOTE = "This page is written from the docstrings in `core/views.py` by `docs/make_views.py`."
PAGES: dict[str, tuple[type, ...]] = {
    "client_view": (ClientView,),
    "server_view": (ServerView, Cohort),
}


def attributes(view: type) -> dict[str, tuple[str, str]]:
    """Field -> (meaning, when it is set), from the section `Attributes:` of the docstring."""
    section = (inspect.getdoc(view) or "").partition("Attributes:\n")[2]
    rows = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in rows}
    return {
        name: (text.partition(" Set in ")[0], text.partition(" Set in ")[2].rstrip("."))
        for name, text in texts.items()
    }


def fields(view: type) -> str:
    """The table of the fields. Raises `ValueError` for a field that the docstring lacks."""
    told, types = (
        attributes(view),
        {
            name: getattr(kind, "__forward_arg__", kind)
            for name, kind in inspect.get_annotations(view).items()
        },
    )
    names = (
        [f.name for f in dataclasses.fields(view)]
        if dataclasses.is_dataclass(view)
        else list(view._fields)
    )
    if names != list(told):
        raise ValueError(f"{view.__name__}: the docstring lists {list(told)}; expected {names}")
    return table(
        ("field", "type", "meaning", "set in"),
        [(f"`{n}`", f"`{types[n]}`", *told[n]) for n in names],
    )


def members(view: type) -> str:
    """The table of the properties and methods."""
    rows = []
    for name, member in vars(view).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        given = [p for p in inspect.signature(function).parameters if p != "self"]
        call = name if isinstance(member, property) else f"{name}({', '.join(given)})"
        text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        rows.append((f"`{call}`", f"`{inspect.get_annotations(function)['return']}`", text))
    return table(("property or method", "type", "meaning"), rows)


def hooks(view: type) -> str:
    """The hooks of parts that are given this view, by role."""
    names = {
        n: c
        for module in (roles, attack, compressor, screening, privacy)
        for n, c in vars(module).items()
    }
    classes = [
        c for c in ({"Part": Part} | names).values() if inspect.isclass(c) and issubclass(c, Part)
    ]
    found: list[str] = []
    for role in classes:
        for name, function in vars(role).items():
            inherited = any(name in vars(base) for base in role.__mro__[1:])
            if (
                inspect.isfunction(function)
                and any(
                    kind in (view, view.__name__)
                    for kind in inspect.get_annotations(function).values()
                )
                and not inherited
            ):
                found.append(f"`{role.__name__}.{name}`")
    return "Hooks that are given it: " + ", ".join(found) + "."


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def section(view: type) -> str:
    intro = (
        (inspect.getdoc(view) or "")
        .partition("Attributes:")[0]
        .strip()
        .replace("\n", " ")
        .replace("  ", "\n\n")
    )
    return "\n\n".join([f"# {view.__name__}", intro, hooks(view), fields(view), members(view)])


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for page, views in PAGES.items():
        text = "\n\n".join(section(view) for view in views)
        (folder / f"{page}.md").write_text(f"{text}\n\n{NOTE}\n")


if __name__ == "__main__":
    main()
