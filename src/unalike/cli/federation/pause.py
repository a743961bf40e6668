"""`unalike federation pause`: pause the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "pause"


def command(folder: Annotated[Path, typer.Argument(help="The federation's folder.")]) -> None:
    """Finish the current round and start no other.

    `unalike federation resume` continues the run.

    \b
    unalike federation pause hospitals
    """
    from unalike.federation.operations.commands import command as send
    from unalike.federation.operations.extras import require_extra

    require_extra()
    print(send(folder / "control", NAME)["state"])
