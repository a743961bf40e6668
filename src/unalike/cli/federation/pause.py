"""`unalike federation pause`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "pause"


def command(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """Let the running round end and ask for nothing new.

    Until `unalike federation resume`.

    \b
    unalike federation pause hospitals
    """
    from unalike.federation.operations.commands import command as send
    from unalike.federation.operations.extras import require_extra

    require_extra()
    print(send(folder / "control", NAME)["state"])
