"""`unalike federation stop`: stop the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "stop"


def command(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """Stop the coordinator. Finished rounds are kept.

    `unalike federation up` continues from there.

    \b
    unalike federation stop hospitals
    """
    from unalike.federation.operations.commands import command as send
    from unalike.federation.operations.extras import require_extra

    require_extra()
    print(send(folder / "control", NAME)["state"])
