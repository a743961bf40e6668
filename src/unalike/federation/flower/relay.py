"""The relay process of a site: takes what the SuperNode has received to the trainer, with the code that is installed here.

`python -m unalike.federation.flower.relay ADDRESS SECRET_FILE`, with the trainer's socket in $UNALIKE_SOCKET. It imports no torch.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import httpx

from unalike.federation.flower.apps import client_app
from unalike.federation.flower.internals import TaskType, acquire, executor, work

POLL = 0.05


def main(address: str, secret: str) -> None:
    """Do the work of the SuperNode at `address` for ever; failures are written down and the next piece is taken."""
    client = executor(address, Path(secret).read_bytes(), None)
    while True:
        try:
            token = acquire(client, TaskType.CLIENT_APP)
            if token is not None:
                work(address, token, client_app)
        except (httpx.HTTPError, RuntimeError, OSError, ValueError) as error:
            print(f"relay: {type(error).__name__}: {error}", flush=True)
            time.sleep(1.0)
        time.sleep(POLL)


if __name__ == "__main__":
    main(*sys.argv[1:])
