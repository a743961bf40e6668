"""Write the pages of docs/views from the docstrings of views and values: python docs/make_views.py"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from unalike.core import types
from unalike.core.model import Model
from unalike.core.types import Batch, ClientUpdate, Output
from unalike.core.views import (
    ClientBatches,
    ClientView,
    Cohort,
    Members,
    ServerView,
    StageSettings,
)

FOLDER = Path(__file__).with_name("views")
NOTE = "This page is written from docstrings by `docs/make_views.py`."
SET_IN = "A field without another word is set in every hook that is given the view; [hooks](../reference/hooks.md) lists them."
OF_MODEL = (
    "__call__",
    "features",
    "head",
    "head_size",
    "in_head",
    "in_norm",
    "within",
    "trainable",
    "redrawn",
)
"""The methods of `Model` that parts call."""


class Page(NamedTuple):
    """A page: a text that stands first, and its classes, each a section."""

    start: str
    classes: tuple[type, ...]


PAGES = {
    "client_view": Page("", (ClientView,)),
    "server_view": Page("", (ServerView, Cohort)),
    "values": Page(
        "# Batch, output, model\n\nWhich fields and shapes have the values that hooks are given beside the views "
        "[`ClientView`](client_view.md), [`ServerView` and `Cohort`](server_view.md)?",
        (Batch, Output, Model, ClientBatches, StageSettings, Members, ClientUpdate),
    ),
}


# ---- fields ----


class Field(NamedTuple):
    """A field of a class: its meaning, and the hooks in which it is set, empty for all alike."""

    meaning: str
    set_in: str

    @property
    def text(self) -> str:
        return f"{self.meaning} {self.set_in}".rstrip()


def documented_fields(cls: type) -> dict[str, Field]:
    """The fields in the section `Attributes:` of the docstring, by name."""
    section = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    found = {}
    for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
        meaning, _, hooks = " ".join(text.split()).partition(" Set in ")
        found[name] = Field(meaning, places(hooks))
    return found


def places(hooks: str) -> str:
    """A sentence on the hooks in which a field is set: what differs between them, or which ones have it."""
    if not hooks.startswith("every hook"):
        return f"Only in {hooks}" if hooks else ""
    differs = hooks.removeprefix("every hook").lstrip(";: ").rstrip(".")
    return f"{differs[0].upper()}{differs[1:]}." if differs else ""


def field_names(cls: type) -> list[str]:
    """The fields that a class declares; of one without declared fields those of the docstring."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(getattr(cls, "_fields", documented_fields(cls)))


def table_of_fields(cls: type) -> str:
    """The table of the fields; empty if there are none. Raises `ValueError` where the docstring lists others."""
    documented = documented_fields(cls)
    names = field_names(cls)
    if names != list(documented):
        raise ValueError(
            f"{cls.__name__}: the docstring lists {list(documented)}; expected {names}"
        )
    if not names:
        return ""

    annotations = inspect.get_annotations(cls)
    head = ["field", "type", "meaning"]
    if not annotations:
        head.remove("type")
    rows = []
    for name, field in documented.items():
        kind = annotations.get(name, "")
        cells = {
            "field": f"`{name}`",
            "type": f"`{getattr(kind, '__forward_arg__', kind)}`",
            "meaning": field.text,
        }
        rows.append([cells[column] for column in head])
    return table(head, rows)


# ---- properties and methods ----


def table_of_members(cls: type) -> str:
    """The table of the properties and methods; empty if there are none."""
    rows = []
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and is_shown(cls, name):
            text = first_paragraph(function)
            kind = inspect.get_annotations(function)["return"]
            rows.append([f"`{call(cls, name, member)}`", f"`{kind}`", text])
    return table(["property or method", "type", "meaning"], rows) if rows else ""


def is_shown(cls: type, name: str) -> bool:
    if cls is Model:
        return name in OF_MODEL
    return not name.startswith("_")


def call(cls: type, name: str, member: Any) -> str:
    """A property or the call of a method, as a hook writes it: `head(params, features)`."""
    if isinstance(member, property):
        return name
    given = [p for p in inspect.signature(member).parameters if p != "self"]
    called = cls.__name__.lower() if name == "__call__" else name
    return f"{called}({', '.join(given)})"


def first_paragraph(function: Any) -> str:
    """The first paragraph of a docstring; of `Model.__call__` the second, too, which has the shapes."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    count = 2 if function.__name__ == "__call__" else 1
    return " ".join(" ".join(paragraphs[:count]).split())


# ---- types ----


def section_of_types() -> str:
    """The types of trees, from the texts below them in `core/types.py`."""
    rows = []
    body = ast.parse(inspect.getsource(types)).body
    for statement, following in pairwise(body):
        is_documented = isinstance(following, ast.Expr)
        if isinstance(statement, ast.Assign) and is_documented:
            [name] = statement.targets
            text = " ".join(ast.literal_eval(following.value).split())
            rows.append([f"`{ast.unparse(name)}`", f"`{ast.unparse(statement.value)}`", text])
    return "## Trees and facts\n\n" + table(["name", "type", "meaning"], rows)


# ---- pages ----


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    written = []
    for line in lines:
        cells = [cell.replace("|", "\\|") for cell in line]
        written.append(f"| {' | '.join(cells)} |")
    return "\n".join(written)


def section(cls: type, level: str) -> str:
    """Introduction, fields and members of a class."""
    told = (inspect.getdoc(cls) or "").partition("Attributes:")[0].strip()
    intro = "\n\n".join(" ".join(paragraph.split()) for paragraph in told.split("\n\n"))
    pieces = [
        f"{level} {cls.__name__}",
        intro,
        table_of_fields(cls),
        table_of_members(cls),
    ]
    return "\n\n".join(piece for piece in pieces if piece)


def page(name: str) -> str:
    start, classes = PAGES[name]
    level = "##" if start else "#"
    pieces = [start] if start else []
    pieces += [section(cls, level) for cls in classes]
    pieces.append(section_of_types() if start else SET_IN)
    return "\n\n".join([*pieces, NOTE]) + "\n"


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name in PAGES:
        (folder / f"{name}.md").write_text(page(name))


if __name__ == "__main__":
    main()
