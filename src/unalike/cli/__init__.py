"""The command line: one file per command; `unalike --help` lists them.

Imports everything below. `flags.py` makes flags of the options of `core/options.py`, `finished_run.py` reads finished runs,
`terminal_tables.py` prints tables. Start reading at `run.py`.
"""

import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import typer
import typer.core

from unalike._utils.errors import UnalikeError
from unalike._utils.printable import without_controls
from unalike.cli import (
    coefficients,
    compare,
    config_file,
    cross_site,
    dashboard,
    diagnose,
    doctor,
    evaluate,
    export,
    federation,
    join,
    lists,
    partition,
    predict,
    report,
    run,
    tune,
)
from unalike.cli.help_pages import CommandApp
from unalike.cli.plugins import add_plugins

HELP = """Federated learning on heterogeneous data: find the method that suits your data.

\b
unalike partition --data digits --partition 'dirichlet(alpha=0.1)' --clients 10
unalike compare --data heart_disease --within '10 min' --out answer
unalike compare --data digits --method fedavg --method 'fedprox(mu=0.1) + lws' --out results
unalike report results
"""

INTERRUPTED = 130
"""The exit status that Typer gives a command that Ctrl-C ended."""

KEEPING = (run.NAME, compare.NAME, tune.NAME)
"""Commands that keep their results in --out."""

typer.core.HAS_RICH = (
    False  # plain help text; with Rich, Typer up to 0.20 prints a backslash before every default
)

app = CommandApp(
    help=HELP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    compare,
    run,
    report,
    partition,
    diagnose,
    tune,
    evaluate,
    predict,
    cross_site,
    coefficients,
    export,
    join,
    dashboard,
    doctor,
    config_file,
):
    app.command(module.NAME)(module.command)
app.add_typer(lists.app, name="list")
app.add_typer(federation.app, name="federation")
add_plugins(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from unalike._utils.version import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False,
        "--version",
        is_eager=True,
        callback=_print_version,
        help="Print the version and exit.",
    ),
) -> None:
    pass


def main() -> None:
    """Entry point. Exit status: 0 done, 2 invalid input, 130 interrupted, 1 any other error."""
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # where a terminal lacks a character, print a question mark
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Notes and errors may quote a file of another machine, whose control characters a terminal would act on.
    warnings.showwarning = lambda message, *_, **__: print(
        f"note: {without_controls(str(message))}", file=sys.stderr
    )
    given: dict[str, Any] = {}
    try:
        app(prog_name="unalike", obj=given)
    except (UnalikeError, OSError) as error:
        lines = [without_controls(line) for line in str(error).splitlines()]
        print("error:", "\n".join(lines), file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:  # Typer has handled everything else
        if end.code == INTERRUPTED:
            print(f"interrupted{_how_to_continue(sys.argv[1], given.get('out'))}", file=sys.stderr)
        raise


def _how_to_continue(command: str, out: Path | None) -> str:
    if command in KEEPING:
        kept = f"the same command continues from what is kept in {out}"
        return f"; {kept if out else 'nothing was kept: with --out FOLDER, the same command would continue'}"
    return "; the same command continues from here" if command in (join.NAME, "federation") else ""
