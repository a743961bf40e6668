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
from unalike.cli.names import names_beginning, registries

if TYPE_CHECKING:
    from unalike._utils.registry import Registry

HELP = """List the names that flags take: of methods, partitions, models, metrics, data sets and more.

\b
unalike list methods
unalike list methods scaffold
"""

Rows = list[list[str]]

SUMMARY_COLUMNS = ["spec", "description"]
"""The columns of a list of names."""
METHOD_COLUMNS = [
    "spec",
    "description",
    "paper",
    "down",
    "up",
    "server keeps",
    "client keeps",
    "needs",
]
"""The columns of the list of methods."""
COLUMN_WIDTH = 26
"""Width in characters that a column of long words needs, gap included."""

app = CommandApp(help=HELP)


def _complete(context: typer.Context, incomplete: str) -> list[str]:
    return names_beginning(context.info_name or "", incomplete)


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
    rows = []
    for method in method_guide.published():
        entry = method_guide.entry(method)
        sizes = [
            method_guide.units(value)
            for value in (entry.down, entry.up, entry.server, entry.client)
        ]
        needs = ", ".join(entry.needs)
        rows.append([entry.usage, entry.summary, entry.source, *sizes, needs])
    parts = _summaries(registry, method_guide.parts())
    tables = {
        "Methods (sent and kept in units of the model)": (METHOD_COLUMNS, rows),
        "Parts": (SUMMARY_COLUMNS, parts),
    }
    _show(tables, as_json)


def _describe_method(name: str) -> None:
    """Print all about a method: its docstring, its parts, what is sent and kept, what it combines with and needs."""
    from unalike._utils.registry import documentation
    from unalike.cli import method_guide
    from unalike.cli.terminal_tables import console
    from unalike.methods.part import registry, spec_text

    screen = console()
    entry = method_guide.entry(name)
    _describe(registry, name)
    for part in entry.parts:
        if part.name != name:
            screen.print(f"\n{spec_text(part)}\n{documentation(type(part))}", highlight=False)
    # NaN, which equals nothing: a plan is not measured, and not combined with others
    if entry.down == entry.down:
        down = method_guide.units(entry.down)
        up = method_guide.units(entry.up)
        server = method_guide.units(entry.server)
        client = method_guide.units(entry.client)
        screen.print(
            f"\nIn units of the model: {down} down, {up} up; the server keeps {server}, a client {client}."
        )
        partners = []
        for other in method_guide.published():
            is_measured = method_guide.entry(other).down == method_guide.entry(other).down
            if is_measured and other != name and method_guide.combines(name, other) is None:
                partners.append(other)
        screen.print(f"Combines with: {', '.join(partners)}")
    if entry.needs:
        screen.print(f"Needs: {', '.join(entry.needs)}")


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
    "devices": "Traits of simulated devices, combined with `+` (--devices).",
    "models": "Models by name. In Python, any torch.nn.Module can be used.",
    "tasks": "Tasks: kinds of labels with their loss and metrics (--task).",
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
        by_title = registries(kind)
        if name is None:
            tables = {
                title: (SUMMARY_COLUMNS, _summaries(registry, list(registry)))
                for title, registry in by_title.items()
            }
            _show(tables, as_json)
            return
        for registry in by_title.values():
            if registry.spelled(name) in registry:
                _describe(registry, name)
                return
        main_registry, *_ = by_title.values()
        raise unknown(main_registry.kind, name, names_beginning(kind, ""))

    command.__doc__ = f"{LISTS[kind]}\n\n\b\nunalike list {kind}\n"
    return command


for _kind in LISTS:
    app.command(_kind)(_command(_kind))


def _summaries(registry: Registry, names: list[str]) -> Rows:
    """The rows of a list of names: the usage of each, and the first line of its docstring."""
    return [[registry.usage(name), registry.summary(name)] for name in names]


def _show(tables: dict[str, tuple[list[str], Rows]], as_json: bool) -> None:
    """Print tables with their titles, or as JSON: title -> one record a row."""
    if as_json:
        records = {}
        for title, (columns, rows) in tables.items():
            records[title] = [dict(zip(columns, row, strict=True)) for row in rows]
        print(json.dumps(records, indent=1, ensure_ascii=False))
        return
    for title, (columns, rows) in tables.items():
        _print_table(title, columns, rows)


def _print_table(title: str, columns: list[str], rows: Rows) -> None:
    """Print a table, or a paragraph for each row if the terminal is too narrow for the columns."""
    from rich.padding import Padding
    from rich.table import Table

    from unalike.cli.terminal_tables import console

    screen = console()
    if screen.width >= _needed_width(columns, rows):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        longest_word = max(len(word) for row in rows for word in row[0].split())
        table.add_column(columns[0], style="bold", min_width=longest_word)
        for column in columns[1:]:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*row)
        screen.print(table)
        return
    screen.print(title, style="italic")
    for name, description, *others in rows:
        # a cell of hyphens says that there is nothing
        details = [
            f"{column}: {cell}"
            for column, cell in zip(columns[2:], others, strict=True)
            if cell.strip("-")
        ]
        text = f"{description}\n{'; '.join(details)}".rstrip()
        screen.print(name, style="bold", highlight=False)
        screen.print(Padding(text, (0, 0, 0, 4)), highlight=False)


def _needed_width(columns: list[str], rows: Rows) -> int:
    """The width in characters from which on a table is readable: long cells are folded."""
    width = 0
    for i in range(len(columns)):
        longest = max(len(line[i]) for line in (columns, *rows))
        width += min(COLUMN_WIDTH, longest)
    return width
