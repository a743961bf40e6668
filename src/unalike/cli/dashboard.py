"""`unalike dashboard`: a run as it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "dashboard"


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of a federation, or of `unalike run --out`.")],
    host: Annotated[str, typer.Option(help="The address that listens; other machines need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.")] = 8050,
    token: Annotated[str | None, typer.Option(help="The token; made up where one is needed and none is given.")] = None,
) -> None:
    """Watch a federation or a simulation in a browser.

    It shows sites, the running round, curves, refused reports, the log.

    \b
    unalike dashboard hospitals
    unalike dashboard runs/prox --port 9000

    It reads the folder and changes nothing. On another address than this machine's it speaks plain HTTP with a token: put it
    behind a proxy with TLS, or forward the port by SSH.
    """
    from unalike.dashboard.state import Followed
    from unalike.federation.operations.extras import require_extra

    require_extra("starlette", "uvicorn", what="the dashboard")
    from unalike.dashboard.server import serve

    serve(Followed(folder), host, port, token)
