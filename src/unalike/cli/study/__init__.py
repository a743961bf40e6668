"""`unalike study`: the experiments of papers; one file per command."""

from __future__ import annotations

import typer

from unalike.cli.study import ledger, listing, report, run

HELP = """Published tables and figures as experiments, with verdicts on the claims of their papers.

\b
unalike study list
unalike study run fedmix-quadratic
unalike study report fedmix-quadratic
"""

NAME = "study"
app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
for module in (listing, run, report, ledger):
    app.command(module.NAME)(module.command)
