"""The coordinator's process: Flower's SuperLink behind its gate, the rounds, the commands of the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unalike.deploy.folder import Folder
from unalike.deploy.processes import Supervisor

Tell = Callable[[str], None]


def coordinate(
    folder: Folder,
    tell: Tell,
    *,
    wait: bool = False,
    port: int | None = None,
    beside: Callable[[Supervisor], None] = lambda supervisor: None,
) -> Any:
    """Bring the federation up, run its rounds, end everything. `beside` starts more children, such as sites of this machine."""
    from unalike.deploy.flower.link import check_port, link

    federation, network = folder.federation, folder.network
    host, port = network["listen"], port or network["port"]
    with folder.held():
        check_port(host, port)
        with (
            Supervisor(folder.logs) as supervisor,
            link(folder.path, supervisor, host, port, folder.nodes, federation.message_bytes) as transport,
        ):
            ...
