"""TCP ports of this machine."""

import os
import socket

from unalike._utils.errors import UnalikeError


def free_port() -> int:
    """A TCP port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, remedy: str) -> None:
    """Raise `UnalikeError`, which ends with the `remedy`, if this process cannot listen at host:port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            pass
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UnalikeError(f"cannot listen at {host}:{port}: {why}; {remedy}") from None
