"""The coordinator as a Flower ServerApp: for those who run Flower's own SuperLink and start runs with `flwr run`."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unalike.federation.flower.transport import GridTransport
from unalike.federation.operations.federation_folder import FederationFolder
from unalike.federation.operations.run_coordinator import rounds

server_app = ServerApp()
"""Runs the federation in the folder that the run's configuration names: `flwr run . --run-config 'folder="/srv/hospitals"'`."""


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """The rounds that the federation still lacks; its sites are known by the keys that `unalike federation init` made."""
    folder = FederationFolder(str(context.run_config["folder"]))
    # no pings: here every message starts a process at the site
    with folder.held():
        rounds(
            folder,
            GridTransport(grid, folder.nodes, pings=0),
            lambda line: print(line, flush=True),
        )
