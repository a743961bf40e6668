"""`unalike federation rollback`: go back to an earlier round."""

from __future__ import annotations

from typing import Annotated

import typer

from unalike.cli.federation.control import Folder


def rollback(folder: Folder, to: Annotated[int, typer.Option(help="Round whose models the run goes on from.")]) -> None:
    """Go back to the models of an earlier round.

    Every tenth round is kept (`keep_every` in federation.toml). Sites begin without the states that a method keeps at clients.

    \b
    unalike federation stop hospitals
    unalike federation rollback hospitals --to 40
    unalike federation up hospitals
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder

    home = FederationFolder(folder)
    with home.held():
        home.roll_back(to)
    print(f"the run is at round {to}; then `unalike federation up {folder}`")
