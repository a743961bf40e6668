"""`unalike list`: the names that may be used in flags and spec texts.

`method_guide.py` finds what methods send and combine with, this file prints it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from unalike._utils.errors import unknown
from unalike.cli.flags import AsJson
from unalike.cli.help_pages import CommandApp
from unalike.cli.names import beginning, registries

if TYPE_CHECKING:
    from unalike._utils.registry import Registry

HELP = """List the names that flags take: of methods, partitions, models, metrics, data sets and more.

\b
unalike list methods
unalike list methods scaffold
"""

Rows = list[list[str]]

SUMMARY = ["spec", "description"]
"""The columns of a list of names."""
COLUMN = 26
"""Width that a column of long words needs, gap included."""

app = CommandApp(help=HELP)


def _complete(context: typer.Context, incomplete: str) -> list[str]:
    return beginning(context.info_name or "", incomplete)


Name = Annotated[
    str | None, typer.Argument(help="A name to describe in full.", autocompletion=_complete)
]


@app.command()
def methods(
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Published methods and the parts they consist of.

    Methods and parts are combined with `+`.

    \b
    unalike list methods
    unalike list methods scaffold
    unalike list methods --json
    """
    from unalike.cli import method_guide
    from unalike.methods.part import registry

    if name is not None:
        _describe_method(registry.spelled(name))
        return
    columns = [
        "spec",
        "description",
        "paper",
        "down",
        "up",
        "server keeps",
        "client keeps",
        "needs",
    ]
    rows = []
    for method in method_guide.published():
        e = method_guide.entry(method)
        numbers = [method_guide.units(v) for v in (e.down, e.up, e.server, e.client)]
        rows.append([e.usage, e.summary, e.source, *numbers, ", ".join(e.needs)])
    parts = _described(registry, method_guide.parts())
    _show(
        {
            "Methods (sent and kept in units of the model)": (columns, rows),
            "Parts": (SUMMARY, parts),
        },
        as_json,
    )


def _describe_method(name: str) -> None:
    from unalike._utils.registry import documentation
    from unalike.cli import method_guide
    from unalike.cli.terminal_tables import console
    from unalike.methods.part import registry, spec_text

    screen, e = console(), method_guide.entry(name)
    _describe(registry, name)
    for part in (p for p in e.parts if p.name != name):
        screen.print(f"\n{spec_text(part)}\n{documentation(type(part))}", highlight=False)
    if e.down == e.down:
        down, up, server, client = (
            method_guide.units(v) for v in (e.down, e.up, e.server, e.client)
        )
        screen.print(
            f"\nIn units of the model: {down} down, {up} up; the server keeps {server}, a client {client}."
        )
        others = [
            n
            for n in method_guide.published()
            if method_guide.entry(n).down == method_guide.entry(n).down and n != name
        ]
        screen.print(
            f"Combines with: {', '.join(n for n in others if method_guide.combines(name, n) is None)}"
        )
    if e.needs:
        screen.print(f"Needs: {', '.join(e.needs)}")


def _describe(registry: Registry, name: str) -> None:
    """Print the usage of a name, and its whole docstring."""
    from unalike._utils.registry import documentation
    from unalike.cli.terminal_tables import console

    screen = console()
    screen.print(registry.usage(registry.spelled(name)), style="bold", highlight=False)
    screen.print(documentation(registry[name]), highlight=False)


LISTS = {
    "partitions": "Partitions of a data set among clients.\n\nA change of the samples is added with `+`.",
    "transforms": "Normalization and augmentation of batches, combined with `+`.",
    "models": "Models by name. In Python, any torch.nn.Module can be used.",
    "losses": "Losses that clients minimize (--loss).",
    "optimizers": "Local optimizers (--optimizer).",
    "schedules": "Schedules of the local learning rate over the rounds (--schedule).",
    "metrics": "Metrics to decide by (--metric).",
    "data": "Data sets by name. Your own files are given by path.",
}
"""Name of each further command -> its help text."""


def _command(kind: str) -> Callable[..., None]:
    """The command that prints the tables of this list, or one of its names in full."""

    def command(name: Name = None, as_json: AsJson = False) -> None:
        found = registries(kind)
        if name is None:
            _show(
                {title: (SUMMARY, _described(one, list(one))) for title, one in found.items()},
                as_json,
            )
            return
        registry = next((one for one in found.values() if one.spelled(name) in one), None)
        if registry is None:
            raise unknown(next(iter(found.values())).kind, name, beginning(kind, ""))
        _describe(registry, name)

    command.__doc__ = f"{LISTS[kind]}\n\n\b\nunalike list {kind}\n"
    return command


for _kind in LISTS:
    app.command(_kind)(_command(_kind))


def _described(registry: Registry, names: list[str]) -> Rows:
    return [[registry.usage(name), registry.summary(name)] for name in names]


def _show(tables: dict[str, tuple[list[str], Rows]], as_json: bool) -> None:
    """Print tables with their titles, or as JSON: title -> one record a row."""
    if as_json:
        records = {
            t: [dict(zip(columns, row, strict=True)) for row in rows]
            for t, (columns, rows) in tables.items()
        }
        print(json.dumps(records, indent=1, ensure_ascii=False))
        return
    for title, (columns, rows) in tables.items():
        _rows(title, columns, rows)


def _rows(title: str, columns: list[str], rows: Rows) -> None:
    """Print a table, or a paragraph for each row if the terminal is too narrow for the columns."""
    from rich.padding import Padding
    from rich.table import Table

    from unalike.cli.terminal_tables import console

    screen = console()
    if screen.width >= sum(
        min(COLUMN, max(len(line[i]) for line in (columns, *rows))) for i in range(len(columns))
    ):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column(
            columns[0],
            style="bold",
            min_width=max(len(word) for row in rows for word in row[0].split()),
        )
        for column in columns[1:]:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*row)
        screen.print(table)
        return
    screen.print(title, style="italic")
    for name, what, *others in rows:
        details = "; ".join(
            f"{column}: {cell}"
            for column, cell in zip(columns[2:], others, strict=True)
            if cell.strip("-")
        )
        screen.print(name, style="bold", highlight=False)
        screen.print(Padding(f"{what}\n{details}".rstrip(), (0, 0, 0, 4)), highlight=False)
