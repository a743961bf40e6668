"""The transport over Flower: a site's node, `server_app` for its runtime, and the coordinator's processes.

Imports `coordinator/` and what is below. Start reading at `flower_processes.py`. In an app of your own: `serverapp =
"unalike.federation.flower:server_app"` (examples/flower_app). Needs the extra `flower`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unalike.federation.flower.coordinator_app import server_app

__all__ = ["server_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unalike.federation import require_federation

    require_federation()
    from unalike.federation.flower.coordinator_app import server_app

    return server_app
