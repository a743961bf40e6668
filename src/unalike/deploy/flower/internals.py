"""What we use of Flower that it does not publish, in one place: how a process of ours takes the part of its executors.

Flower runs the code of a bundle (FAB) that whoever starts a run has shipped. We run SuperLink and SuperNode with
`--isolation process`, a published option: they then start nothing, and a process of ours, which knows the secret
(`--superexec-auth-secret-file`), asks for the work and does it with the code that is installed. The bundle is never unpacked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

BUNDLE = {
    "pyproject.toml": b"""[project]
name = "unalike-relay"
version = "1.0.0"
description = "Names the relay that every site has installed; nothing in this bundle is executed."
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "unalike"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "unalike.deploy.flower:server_app"
clientapp = "unalike.deploy.flower:client_app"
""",
    "LICENSE": b"Apache-2.0\n",
}


def bundle() -> bytes:
    """The bundle that a run needs a name for: the same bytes everywhere."""
    fab, _ = build_fab_from_files(dict(BUNDLE))
    return fab


class Control:
    """Registers sites and starts the run, over the Control API on the own machine."""

    def __init__(self, port: int, authority: bytes):
        self._client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}", False, authority, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        )

    def ready(self) -> bool:
        """Whether SuperLink answers."""
        try:
            return bool(self._client._client.get(f"{self._client._base_url}/health").status_code < 500)
        except httpx.TransportError:
            return False

    def register(self, name: str, key: bytes) -> None:
        """Enrol a site's public key (PEM)."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def start(self) -> int:
        """Start a run of the bundle; its number."""
        fab = bundle()
        found = self._client.StartRun(StartRunRequest(fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab)))
        return int(found.run_id)

    def stop(self, run: int) -> None:
        """End a run."""
        self._client.StopRun(StopRunRequest(run_id=run))
