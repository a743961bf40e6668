"""Our transport on Flower: `server_app` and `client_app` for its runtime, and the processes around it.

In an app of your own: `serverapp = "unalike.federation.flower:server_app"`, `clientapp = "unalike.federation.flower:client_app"`
(examples/flower_app). Needs the extra `flower`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unalike.federation.flower.apps import client_app
    from unalike.federation.flower.server import server_app

__all__ = ["client_app", "server_app"]

_HOMES = {"client_app": "apps", "server_app": "server"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unalike.federation.operations.extras import require_extra

    require_extra()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
