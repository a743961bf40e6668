"""The command line: one file per command. `unalike --help` says what there is."""

from __future__ import annotations

import os
import sys
import warnings

import click
import typer

from unalike.cli import compare, dashboard, evaluate, federation, join, lists, partition, predict, report, run
from unalike.core.errors import UnalikeError

HELP = """Federated learning on data that differs between clients: find the method that suits your data.

\b
unalike partition --data digits --partition 'dirichlet(alpha=0.1)' --clients 10
unalike compare --data digits --method fedavg --method 'fedprox(mu=0.1) + lws' --out results
unalike report results
"""

INTERRUPTED = 130

app = typer.Typer(
    help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
for module in (compare, run, report, partition, evaluate, predict, join, dashboard):
    app.command(module.NAME)(module.command)
app.add_typer(lists.app, name="list")
app.add_typer(federation.app, name="federation")


def _print_version(wanted: bool) -> None:
    if wanted:
        from unalike import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and leave."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point. Exit status: 0 done, 2 input that cannot be used, 130 interrupted, 1 anything else."""
    warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
    try:
        status = app(standalone_mode=False) or 0
        if status == INTERRUPTED:  # what Typer makes of a KeyboardInterrupt
            raise KeyboardInterrupt
        sys.exit(status)
    except UnalikeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; with --out, the same command goes on from here", file=sys.stderr)
        sys.exit(INTERRUPTED)
