"""`unalike federation`: the same method with real sites, one file per command."""

from __future__ import annotations

import typer

from unalike.cli.federation import init, pause, renew, resume, revoke, run, status, stop, up

HELP = """Federations over a network: sites that keep their data.

\b
unalike federation up --local 3 --data digits --method fedmix --rounds 2 --out fed   # everything on this machine
unalike federation init hospitals --sites 5 --like sample.npz --host fed.example.org # or for real: make keys,
unalike federation up hospitals                                                      # start the coordinator,
unalike join site-1.zip --data mine.npz                                              # and this on every site
"""

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
for module in (init, up, status, run, pause, resume, stop, renew, revoke):
    app.command(module.NAME)(module.command)
