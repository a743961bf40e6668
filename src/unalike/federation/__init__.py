"""A real federation: a coordinator and sites that keep their data, training with the same methods as a simulation.

Five floors; each folder imports those below it alone, and the folders of a floor do not import each other:

    operations             commands that start processes: the coordinator's, a site's, all of a federation on one machine
    flower                 transport over Flower: its processes, the gateway
    coordinator | site     the coordinator's folder, rounds and control | a site's answers, and the files that it stores
    protocol               federation file, bundle, envelopes, requests, roster, and the interface of a transport
    security               keys and certificates

Imports `experiments` and everything below it. Start reading at `coordinator/coordinator.py` and `site/site_worker.py`.
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
