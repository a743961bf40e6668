"""`unalike federation run`: start the rounds of a waiting federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "run"


def command(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """Start the rounds of a waiting federation.

    The federation was started with `unalike federation up --wait`.

    \b
    unalike federation run hospitals
    """
    from unalike.federation.operations.commands import command as send
    from unalike.federation.operations.extras import require_extra

    require_extra()
    print(send(folder / "control", NAME)["state"])
