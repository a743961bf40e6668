"""Flower's processes on the coordinator's machine: SuperLink behind the gateway."""

import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unalike._utils.system.ports import free_port
from unalike._utils.system.supervisor import Supervisor, child_environment
from unalike._utils.tensor_files import write_bytes
from unalike.federation.flower import gateway
from unalike.federation.flower.grid_transport import GridTransport
from unalike.federation.flower.internals import ControlClient, RunGrid, RunMessages
from unalike.federation.security.certificates import replace_private

READY_SECONDS = 60.0
LAST_SECONDS = 3.0
"""Seconds in which sites can fetch the last messages."""
PIECE_BYTES = 8 << 20
"""Maximum body of a request at the gateway; messages are sent in pieces of 4 MiB."""


def environment(folder: Path) -> dict[str, str]:
    """The environment of Flower's processes: files in `folder`, no telemetry or update check, log level WARNING.

    (At Flower's default level a message takes eight lines. $FLWR_LOG_LEVEL overrides the level.)
    """
    home = folder / "flwr"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    quiet = {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    return child_environment(FLWR_LOG_LEVEL=os.environ.get("FLWR_LOG_LEVEL", "WARNING"), **quiet)


@contextmanager
def superlink(
    folder: Path,
    supervisor: Supervisor,
    host: str,
    port: int,
    keys: Mapping[str, bytes],
    message_bytes: int,
) -> Iterator[GridTransport]:
    """Start SuperLink and the gateway at host:port, register the sites' keys (PEM, by name), start a run; yield the transport.

    `folder` holds ca.pem, server.pem and server.key; Flower's files are written below it.
    """
    inside, authority = free_port(), (folder / "ca.pem").read_bytes()
    secret = secrets.token_bytes(32)
    secret_file = (folder / "superlink.secret").resolve()
    replace_private(secret_file, secret)
    files = {
        name: str((folder / name).resolve()) for name in ("server.pem", "server.key", "ca.pem")
    }
    command = [
        "flower-superlink",
        "--host",
        "127.0.0.1",
        "--port",
        str(inside),
        "--isolation",
        "process",
    ]
    command += ["--superexec-auth-secret-file", str(secret_file), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--ssl-certfile", files["server.pem"]]
    command += ["--ssl-keyfile", files["server.key"], "--ssl-ca-certfile", files["ca.pem"]]
    supervisor.start("superlink", command, environment(folder))
    control = ControlClient(inside, authority)
    supervisor.wait_until(control.ready, "the start of Flower's SuperLink", READY_SECONDS)
    for name, key in keys.items():
        control.register(name, key)
    run = control.start()

    settings: dict[str, Any] = {
        "host": host,
        "port": port,
        "behind": inside,
        "body_bytes": PIECE_BYTES,
    }
    settings |= {"keys": [k.decode() for k in keys.values()]}
    settings |= {
        "certificate": files["server.pem"],
        "key": files["server.key"],
        "authority": files["ca.pem"],
    }
    settings |= {"minute_bytes": 64 * (message_bytes + PIECE_BYTES)}
    write_bytes(folder / "gateway.json", json.dumps(settings, indent=1).encode())
    supervisor.start(
        "gateway", [sys.executable, "-I", "-S", gateway.__file__, str(folder / "gateway.json")]
    )
    supervisor.wait_until(
        lambda: _listens(host, port), f"listening at {host}:{port}", READY_SECONDS
    )

    opened = RunGrid(f"127.0.0.1:{inside}", secret, authority)
    try:
        transport = GridTransport(
            RunMessages(opened.grid), keys, message_bytes, check=supervisor.check
        )
        yield transport
        transport.close(LAST_SECONDS)
    finally:
        opened.close()
        control.stop(run)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection(
            ("127.0.0.1" if host in ("0.0.0.0", "::") else host, port), 1.0
        ):
            return True
    except OSError:
        return False
