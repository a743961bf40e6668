"""The coordinator as a Flower ServerApp, for an existing Flower deployment where runs are started with `flwr run`."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unalike.federation.coordinator.coordinator import run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.flower.grid_transport import GridTransport
from unalike.federation.flower.internals import RunMessages

server_app = ServerApp()
"""Runs the federation in the folder of the run configuration: `flwr run . --run-config 'folder="/srv/hospitals"'`."""


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the remaining rounds. Sites are recognized by the node keys that `unalike federation init` made."""
    folder = FederationFolder(str(context.run_config["folder"]))
    transport = GridTransport(RunMessages(grid), folder.nodes, folder.federation.message_bytes)
    with folder.held():
        run_rounds(folder, transport, lambda line: print(line, flush=True))
