"""Flower's processes: SuperLink behind the gateway on the coordinator's machine, SuperNode and relay on a site's."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.system.supervisor import Child, Supervisor, child_environment
from unalike._utils.tensor_files import write_bytes
from unalike.federation.flower import gateway, relay_app
from unalike.federation.flower.grid_transport import GridTransport
from unalike.federation.flower.internals import ControlClient, RunGrid, deactivate_node, reason_for_refusal

READY_SECONDS = 60.0
PIECE_BYTES = 8 << 20
"""Maximum body of a request at the gateway; Flower sends messages in pieces of 5 MiB."""


def free_port() -> int:
    """A TCP port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of Flower's processes: files in `folder`, no telemetry or update check, log level WARNING.

    (At Flower's default level a message takes eight lines. $FLWR_LOG_LEVEL overrides the level.)
    """
    home = folder / "flwr"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    quiet = {"FLWR_HOME": str(home.resolve()), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return child_environment(**({"FLWR_LOG_LEVEL": os.environ.get("FLWR_LOG_LEVEL", "WARNING")} | quiet | more))


@contextmanager
def superlink(
    folder: Path, supervisor: Supervisor, host: str, port: int, keys: Mapping[str, bytes], message_bytes: int
) -> Iterator[GridTransport]:
    """Start SuperLink and the gateway at host:port, register the sites' keys (PEM, by name), start a run; yield the transport.

    `folder` holds ca.pem, server.pem and server.key; Flower's files are written below it.
    """
    inside, authority = free_port(), (folder / "ca.pem").read_bytes()
    secret = secrets.token_bytes(32)
    secret_file = _secret(folder, "superlink.secret", secret)
    files = {name: str((folder / name).resolve()) for name in ("server.pem", "server.key", "ca.pem")}
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(inside), "--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(secret_file), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--ssl-certfile", files["server.pem"]]
    command += ["--ssl-keyfile", files["server.key"], "--ssl-ca-certfile", files["ca.pem"]]
    supervisor.start("superlink", command, environment(folder))
    control = ControlClient(inside, authority)
    supervisor.wait_until(control.ready, "the start of Flower's SuperLink", READY_SECONDS)
    for name, key in keys.items():
        control.register(name, key)
    run = control.start()

    settings: dict[str, Any] = {"host": host, "port": port, "behind": inside, "body_bytes": PIECE_BYTES}
    settings |= {"keys": [k.decode() for k in keys.values()]}
    settings |= {"certificate": files["server.pem"], "key": files["server.key"], "authority": files["ca.pem"]}
    settings |= {"minute_bytes": 4 * message_bytes + 64 * PIECE_BYTES}
    write_bytes(folder / "gateway.json", json.dumps(settings, indent=1).encode())
    supervisor.start("gateway", [sys.executable, "-I", "-S", gateway.__file__, str(folder / "gateway.json")])
    supervisor.wait_until(lambda: _listens(host, port), f"listening at {host}:{port}", READY_SECONDS)

    opened = RunGrid(f"127.0.0.1:{inside}", secret, authority)
    try:
        yield GridTransport(opened.grid, keys, check=supervisor.check)
    finally:
        opened.close()
        control.stop(run)


class SuperNode:
    """A site's SuperNode and relay process. `restart_ended` restarts them, for example after SuperLink was restarted."""

    def __init__(self, folder: Path, supervisor: Supervisor, address: str, worker_socket: Path, message_bytes: int):
        self.folder, self.supervisor, self.address = folder, supervisor, address
        secret = _secret(folder, "supernode.secret", secrets.token_bytes(32))
        port = free_port()
        more = {relay_app.SOCKET: str(worker_socket.resolve()), relay_app.LIMIT: str(message_bytes)}
        self._environment = environment(folder, **more)
        self._node = ["flower-supernode", "--superlink", address]
        self._node += ["--root-certificates", str((folder / "ca.pem").resolve())]
        self._node += ["--auth-supernode-private-key", str((folder / "node.key").resolve()), "--isolation", "process"]
        self._node += ["--superexec-auth-secret-file", str(secret), "--host", "127.0.0.1", "--port", str(port)]
        self._relay = [
            sys.executable,
            "-m",
            "unalike.federation.flower.relay_process",
            f"127.0.0.1:{port}",
            str(secret),
        ]
        self._children: dict[str, Child] = {}
        self.restart_ended()

    def restart_ended(self) -> list[tuple[str, str]]:
        """Restart both processes if one has ended. Returns the names of those that had, with the reason or the last log line.

        Both, since a relay that outlives its SuperNode in the middle of a message would offer the reply to the next SuperNode,
        which did not send the message.
        """
        children = self._children
        ended = {name: child.last_line() for name, child in children.items() if not child.alive}
        if ended or not children:
            for child in children.values():
                self.supervisor.remove(child)
            self._deactivate()
            if "supernode" in ended:
                ended["supernode"] = reason_for_refusal(*self._identity) or ended["supernode"]
            for name, command in (("supernode", self._node), ("relay", self._relay)):
                children[name] = self.supervisor.start(name, command, self._environment)
        return list(ended.items())

    def _deactivate(self) -> None:
        """Deactivate the node of a SuperNode that was killed: otherwise SuperLink refuses the next one for up to a minute."""
        file = self.folder / relay_app.NODE
        if file.exists() and (number := file.read_text()).isdecimal():
            deactivate_node(*self._identity, int(number))

    @property
    def _identity(self) -> tuple[str, bytes, bytes]:
        """(coordinator's address, certificate authority, node's private key)"""
        return self.address, (self.folder / "ca.pem").read_bytes(), (self.folder / "node.key").read_bytes()


def _secret(folder: Path, name: str, secret: bytes) -> Path:
    file = (folder / name).resolve()
    write_bytes(file, secret)
    file.chmod(0o600)
    return file


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1" if host in ("0.0.0.0", "::") else host, port), 1.0):
            return True
    except OSError:
        return False


def check_port(host: str, port: int) -> None:
    """Raise `UnalikeError` if this process cannot listen at host:port."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise UnalikeError(
            f"cannot listen at {host}:{port}: {error.strerror}; end what has the port, or write another one into network.json and "
            "tell the sites (`unalike join --address`)"
        ) from None
