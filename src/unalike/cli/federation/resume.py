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
    from unalike.federation.operations.commands import command as send
    from unalike.federation.operations.extras import require_extra

    require_extra()
    print(send(folder / "control", NAME)["state"])
