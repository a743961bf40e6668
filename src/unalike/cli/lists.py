"""`unalike list`: the names that may be used in flags and spec texts.

`method_guide.py` finds what methods send and combine with, this file prints it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from unalike.cli.help_pages import CommandApp

if TYPE_CHECKING:
    from unalike._utils.registry import Registry

HELP = """List methods, partitions, transforms, models, metrics and data sets.

\b
unalike list methods
unalike list methods scaffold
"""

COLUMN = 26
"""Width that a column of long words needs, gap included."""

app = CommandApp(help=HELP)


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="A method or part to describe in full.")] = None) -> None:
    """Published methods and the parts they consist of.

    Methods and parts are combined with `+`.

    \b
    unalike list methods
    unalike list methods scaffold
    """
    from unalike.cli import method_guide
    from unalike.methods.part import registry

    if name is not None:
        _describe(name)
        return
    columns = ["spec", "description", "paper", "down", "up", "server keeps", "client keeps", "needs"]
    rows = []
    for method in method_guide.published():
        e = method_guide.entry(method)
        numbers = [method_guide.units(v) for v in (e.down, e.up, e.server, e.client)]
        rows.append([e.usage, e.summary, e.source, *numbers, ", ".join(e.needs)])
    _rows("Methods (sent and kept in units of the model)", columns, rows)
    _table("Parts", registry, method_guide.parts())


def _describe(name: str) -> None:
    from unalike.cli import method_guide
    from unalike.cli.terminal_tables import console
    from unalike.methods.part import registry, spec_text

    screen, e = console(), method_guide.entry(name)
    screen.print(e.usage, style="bold", highlight=False)
    screen.print(inspect.getdoc(registry[name]) or "", highlight=False)
    for part in (p for p in e.parts if p.name != name):
        screen.print(f"\n{spec_text(part)}\n{inspect.getdoc(part)}", highlight=False)
    if e.down == e.down:
        down, up, server, client = (method_guide.units(v) for v in (e.down, e.up, e.server, e.client))
        screen.print(f"\nIn units of the model: {down} down, {up} up; the server keeps {server}, a client {client}.")
        others = [
            n
            for n in method_guide.published()
            if method_guide.entry(n).down == method_guide.entry(n).down and n != name
        ]
        screen.print(f"Combines with: {', '.join(n for n in others if method_guide.combines(name, n) is None)}")
    if e.needs:
        screen.print(f"Needs: {', '.join(e.needs)}")


TABLES = {
    "partitions": (
        "Partitions of a data set among clients.\n\nA change of the samples is added with `+`.",
        {
            "Partitions": "unalike.data.partitioning.scheme",
            "Changes of samples": "unalike.data.partitioning.feature_skew",
        },
    ),
    "transforms": (
        "Normalization and augmentation of batches, combined with `+`.",
        {"Transforms": "unalike.data.transforms"},
    ),
    "models": ("Models by name. In Python, any torch.nn.Module can be used.", {"Models": "unalike.models.registry"}),
    "losses": ("Losses that clients minimize (--loss).", {"Losses": "unalike.core.losses"}),
    "optimizers": ("Local optimizers (--optimizer).", {"Optimizers": "unalike.core.solvers"}),
    "schedules": (
        "Schedules of the local learning rate over the rounds (--schedule).",
        {"Schedules": "unalike.core.schedules"},
    ),
    "metrics": ("Metrics to decide by (--metric).", {"Metrics": "unalike.metrics.named_metrics"}),
    "data": ("Data sets by name. Your own files are given by path.", {"Data": "unalike.data.sources.registry"}),
}
"""Name of each further command -> its help text, and the titles of its tables with the modules of their registries."""


def _command(name: str) -> Callable[[], None]:
    """The command that prints the tables of this name."""
    summary, modules = TABLES[name]

    def command() -> None:
        for title, module in modules.items():
            registry = import_module(module).registry
            _table(title, registry, list(registry))

    command.__doc__ = f"{summary}\n\n\b\nunalike list {name}\n"
    return command


for _name in TABLES:
    app.command(_name)(_command(_name))


def _table(title: str, registry: Registry, names: list[str]) -> None:
    _rows(title, ["spec", "description"], [[registry.usage(name), registry.summary(name)] for name in names])


def _rows(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table, or a paragraph for each row if the terminal is too narrow for the columns."""
    from rich.padding import Padding
    from rich.table import Table

    from unalike.cli.terminal_tables import console

    screen = console()
    if screen.width >= sum(min(COLUMN, max(len(line[i]) for line in (columns, *rows))) for i in range(len(columns))):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column(columns[0], style="bold", min_width=max(len(word) for row in rows for word in row[0].split()))
        for column in columns[1:]:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*row)
        screen.print(table)
        return
    screen.print(title, style="italic")
    for name, what, *others in rows:
        details = "; ".join(
            f"{column}: {cell}" for column, cell in zip(columns[2:], others, strict=True) if cell.strip("-")
        )
        screen.print(name, style="bold", highlight=False)
        screen.print(Padding(f"{what}\n{details}".rstrip(), (0, 0, 0, 4)), highlight=False)
