"""`unalike federation status`: print the state of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "status"


def command(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """Print a federation's state, round and sites.

    \b
    unalike federation status hospitals
    """
    from rich.table import Table

    from unalike.cli.terminal_tables import console
    from unalike.federation import require_federation
    from unalike.federation.coordinator.operator_commands import command as send

    require_federation()
    found, screen = send(folder / "control", NAME), console()
    why = f" ({found['why']})" if found["why"] else ""
    screen.print(f"{found['state']}{why}, {found['round']} of {found['rounds']} rounds done", highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("site", "connected", "most samples"):
        table.add_column(name)
    for site in found["sites"]:
        table.add_row(site["name"], "yes" if site["connected"] else "no", str(site["samples"]))
    screen.print(table)
