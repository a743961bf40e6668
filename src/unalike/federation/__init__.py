"""A real federation: a coordinator and sites that keep their data, training with the same methods as a simulation.

`docs/architecture.md` shows its six floors. Imports `comparison` and everything below it. Start reading at
`coordinator/coordinator.py` and `site/site_worker.py`.
"""

import sys

from unalike._utils.errors import UnalikeError, require_extra


def require_federation() -> None:
    """Raise `UnalikeError` if this machine cannot run a federation: for lack of the extra `flower`, or of Linux."""
    require_extra("flower", "cryptography", "flwr", what="a federation")
    if sys.platform != "linux":
        raise UnalikeError(
            f"a federation needs Linux, found {sys.platform}: its processes end with their parent by prctl; simulations run here"
        )
