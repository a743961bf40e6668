"""`unalike federation resume`: continue a paused run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "resume"


def command(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """Continue after a pause.

    The pause was requested, or too few sites were connected.

    \b
    unalike federation resume hospitals
    """
    from unalike.federation.operations.commands import command as send
    from unalike.federation.operations.extras import require_extra

    require_extra()
    print(send(folder / "control", NAME)["state"])
