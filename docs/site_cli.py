"""The page of the command line, written from the help texts of the commands when the site is built."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
import typer

from unalike.cli import app

HEAD = """# Command line

Every command and option. `unalike COMMAND --help` prints the same texts. Options of `run` and `compare` can also stand in a
[config file](config_file.md). Exit status: 0 done, 1 an unexpected error, 2 invalid input, 130 interrupted.

- `unalike --install-completion` makes the shell complete commands, options, and the names of methods, models, partitions, data sets
  and metrics: `unalike run --method fed<TAB>`. It takes effect in the next terminal; `--show-completion` prints the script instead.
- `--json` prints tables as JSON on standard output, with the numbers in full; messages go to standard error.
- Names are read in any case: `FedAvg`, `FedProx(mu=0.1)`. `unalike list models cnn` describes one name of a list in full.
- Tables fit the terminal: columns that do not fit follow below. Piped, they are 160 characters wide, or as wide as `COLUMNS` says.
"""

ESCAPED = {"|": "\\|", "<": "&lt;", "*": "\\*"}


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The commands below a group, depth first, with their full names."""
    if isinstance(command, click.Group):
        for part, inner in command.commands.items():
            yield from commands(inner, f"{name} {part}")
    else:
        yield name, command


def section(name: str, command: click.Command) -> str:
    """Usage, description and table of options of a command."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    text = described(command.help or "")
    rows = [row for parameter in command.params if (row := option(parameter, context))]
    table = ["| option | meaning |", "| :-- | :-- |", *rows] if rows else []
    return "\n\n".join(
        filter(None, [f"## {name}", f"```text\n{usage}\n```", text, "\n".join(table)])
    )


def described(text: str) -> str:
    """A help text as Markdown: a paragraph marked by \\b keeps its lines."""
    paragraphs = inspect.cleandoc(text.replace("\f", "")).split("\n\n")
    return "\n\n".join(
        f"```text\n{paragraph.removeprefix(chr(8)).strip()}\n```"
        if paragraph.startswith("\b")
        else escaped(paragraph)
        for paragraph in paragraphs
    )


def option(parameter: click.Parameter, context: click.Context) -> str | None:
    """Row of the table: names and value, meaning and default."""
    record = parameter.get_help_record(context)
    if record is None or "--help" in record[0]:
        return None
    return f"| `{record[0].replace('|', chr(92) + '|')}` | {escaped(' '.join(record[1].split()))} |"


def escaped(text: str) -> str:
    """The text with the signs that Markdown would read as format, except within backticks."""
    return re.sub(r"`[^`]*`|[|<*]", lambda found: ESCAPED.get(found[0], found[0]), text)


def page() -> str:
    """The text of the page."""
    command = typer.main.get_command(app)
    return (
        "\n\n".join(
            [HEAD.strip(), *(section(name, inner) for name, inner in commands(command, "unalike"))]
        )
        + "\n"
    )
