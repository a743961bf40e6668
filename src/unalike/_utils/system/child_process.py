"""Wrapper process around one command: ends the command and all its descendants when the parent ends.

`python -I child_process.py command...`: the parent holds the other end of standard input. When it closes, because the parent
closed it or was killed (`kill -9` included), every descendant of this process is ended: first SIGTERM, after GRACE seconds
SIGKILL. This also ends processes that moved to a session of their own (as Flower's `flower-superexec` does): this process is a
subreaper, so orphans become its children.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux's prctl."""


def descendants() -> list[psutil.Process]:
    """All living descendants of this process."""
    return [child for child in psutil.Process().children(recursive=True) if _lives(child)]


def end() -> None:
    """End all descendants of this process."""
    deadline = time.monotonic() + GRACE
    for kind in (signal.SIGTERM, signal.SIGKILL):
        for child in descendants():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                child.send_signal(kind)
        while descendants() and time.monotonic() < deadline:
            time.sleep(0.02)
        deadline += GRACE


def main(command: list[str]) -> int:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    release = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, lambda *_: release.set())
    threading.Thread(target=_wait_for_parent, args=(release,), daemon=True).start()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while child.poll() is None and not release.wait(0.05):
        pass
    end()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _wait_for_parent(release: threading.Event) -> None:
    while os.read(0, 1):
        pass
    release.set()


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
