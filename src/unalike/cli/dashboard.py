"""`unalike dashboard`: watch a run or a comparison in a browser."""

from pathlib import Path
from typing import Annotated

import typer

NAME = "dashboard"


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of a federation, of `unalike run --out`, or of `unalike compare --out`."
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; requests from other machines need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8050,
    token: Annotated[
        str | None, typer.Option(help="Token; generated if one is needed and none is given.")
    ] = None,
) -> None:
    """Watch a federation, a simulation or a comparison in a browser.

    The page shows sites, the current round, curves, refused updates and the log. Of a comparison it shows the standings: seeds
    done, score and time left of each method.

    \b
    unalike dashboard hospitals
    unalike dashboard results
    unalike dashboard runs/prox --port 9000

    The folder is only read. If other machines can reach the address, note that the dashboard uses plain HTTP with a token: put it
    behind a proxy with TLS, or forward the port by SSH.
    """
    from unalike._utils.errors import require_extra

    require_extra("flower", "starlette", "uvicorn", what="the dashboard")
    from unalike.dashboard.server import followed_folder, serve

    serve(followed_folder(folder), host, port, token)
