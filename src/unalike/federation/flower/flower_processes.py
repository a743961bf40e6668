"""Flower's processes on the coordinator's machine: SuperLink behind the gateway."""

import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unalike._utils.system.ports import free_port
from unalike._utils.system.supervisor import Supervisor, child_environment
from unalike._utils.tensor_files import write_bytes
from unalike.federation.flower import gateway
from unalike.federation.flower.grid_transport import GridTransport
from unalike.federation.flower.internals import SUPERLINK, ControlClient, RunGrid, RunMessages
from unalike.federation.security.certificates import replace_private

READY_SECONDS = 60.0
"""Seconds in which a process has to start."""
FAREWELL_SECONDS = 3.0
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
    rejected: Callable[[str], None] = lambda line: None,
) -> Iterator[GridTransport]:
    """Start SuperLink and the gateway at host:port, register the sites' keys (PEM, by name), start a run; yield the transport.

    `rejected` gets the gateway's lines, which say once a minute what it has rejected. `folder` holds ca.pem, server.pem and
    server.key; Flower's files are written below it.
    """
    # 1. SuperLink, which listens on this machine only: sites reach it through the gateway.
    inside = free_port()
    authority = (folder / "ca.pem").read_bytes()
    secret = secrets.token_bytes(32)
    secret_file = (folder / "superlink.secret").resolve()
    replace_private(secret_file, secret)
    certificate = str((folder / "server.pem").resolve())
    key_file = str((folder / "server.key").resolve())
    authority_file = str((folder / "ca.pem").resolve())
    # by Python and not by name: an installation for one user may have no commands on PATH
    command = [sys.executable, "-P", "-c", SUPERLINK, "--host", "127.0.0.1", "--port", str(inside)]
    command += ["--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(secret_file), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--ssl-certfile", certificate]
    command += ["--ssl-keyfile", key_file, "--ssl-ca-certfile", authority_file]
    supervisor.start("superlink", command, environment(folder))
    control = ControlClient(inside, authority)
    supervisor.wait_until(control.ready, "the start of Flower's SuperLink", READY_SECONDS)

    # 2. The sites' keys, before anyone can connect with another one, and the run.
    for name, key in keys.items():
        control.register(name, key)
    run = control.start()

    # 3. The gateway, at the address that sites know.
    settings: dict[str, Any] = {
        "host": host,
        "port": port,
        "behind": inside,
        "body_bytes": PIECE_BYTES,
        "keys": {name: key.decode() for name, key in keys.items()},
        "certificate": certificate,
        "key": key_file,
        "authority": authority_file,
        "minute_bytes": 64 * (message_bytes + PIECE_BYTES),
        "reply_bytes": message_bytes + PIECE_BYTES,
    }
    settings_file = folder / "gateway.json"
    write_bytes(settings_file, json.dumps(settings, indent=1).encode())
    # -I: no module of the folder or the environment is imported where strangers' bytes are parsed
    gateway_command = [sys.executable, "-I", gateway.__file__, str(settings_file)]
    gate = supervisor.start("gateway", gateway_command)
    supervisor.wait_until(
        lambda: _listens(host, port), f"listening at {host}:{port}", READY_SECONDS
    )

    def check() -> None:
        supervisor.check()
        for line in gate.new_lines():
            # strangers may make the gateway write other lines, which stay in its log
            if gateway.REPORTED in line:
                rejected(line)

    # 4. This process takes the task of the run, and sends and receives for it.
    opened = RunGrid(f"127.0.0.1:{inside}", secret, authority)
    try:
        transport = GridTransport(RunMessages(opened.grid), keys, message_bytes, check=check)
        yield transport
        transport.close(FAREWELL_SECONDS)
    finally:
        opened.close()
        control.stop(run)


def _listens(host: str, port: int) -> bool:
    """Whether a process listens at host:port."""
    # a server at all addresses of the machine is also at that of the machine itself
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        with socket.create_connection((reachable, port), 1.0):
            return True
    except OSError:
        return False
