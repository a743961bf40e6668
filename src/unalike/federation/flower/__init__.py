"""The transport over Flower: `server_app` and `client_app` for its runtime, and its processes.

Imports `coordinator/` and what is below. Start reading at `flower_processes.py`. In an app of your own: `serverapp =
"unalike.federation.flower:server_app"`, `clientapp = "unalike.federation.flower:client_app"` (examples/flower_app). Needs the
extra `flower`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unalike.federation.flower.coordinator_app import server_app
    from unalike.federation.flower.relay_app import client_app

__all__ = ["client_app", "server_app"]

_MODULES = {"client_app": "relay_app", "server_app": "coordinator_app"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unalike.federation import require_federation

    require_federation()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
