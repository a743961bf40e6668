"""The relay process of a site: passes messages from the SuperNode to the site worker, with the installed code.

`python -m unalike.federation.flower.relay_process ADDRESS SECRET_FILE`, with the site worker's socket in $UNALIKE_SOCKET. It
imports no torch.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import httpx

from unalike.federation.flower.internals import TaskType, acquire_task, run_task, runtime_client
from unalike.federation.flower.relay_app import client_app

POLL = 0.05


def main(address: str, secret: str) -> None:
    """Run the tasks of the SuperNode at `address` without end. A failure is logged and the next task is taken."""
    client = runtime_client(address, Path(secret).read_bytes(), None)
    while True:
        try:
            token = acquire_task(client, TaskType.CLIENT_APP)
            if token is not None:
                run_task(address, token, client_app)
        except (httpx.HTTPError, RuntimeError, OSError, ValueError) as error:
            print(f"relay: {type(error).__name__}: {error}", flush=True)
            time.sleep(1.0)
        time.sleep(POLL)


if __name__ == "__main__":
    main(*sys.argv[1:])
