"""The coordinator's process: Flower's SuperLink behind its gate, the rounds, the commands of the operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Event
from typing import Any

from unalike.core.errors import UnalikeError
from unalike.deploy.commands import Answer, listening
from unalike.deploy.control import Control, Stopped
from unalike.deploy.coordinator import Coordinator
from unalike.deploy.folder import Folder
from unalike.deploy.processes import Supervisor
from unalike.deploy.transport import Transport

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
