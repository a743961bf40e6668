"""`unalike federation resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "resume"


def command(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """Go on after a pause.

    After one that was asked for, or one for want of sites.

    \b
    unalike federation resume hospitals
    """
    from unalike.deploy.commands import command as send
    from unalike.deploy.extra import require

    require()
    print(send(folder / "control", NAME)["state"])
