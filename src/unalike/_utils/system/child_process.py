"""Wrapper process around one command: ends the command and all its descendants when the parent ends. Standard library only.

`python -I -S child_process.py command...`: the parent holds the other end of standard input. When it closes, because the parent
closed it or was killed (`kill -9` included), every descendant of this process is ended: first SIGTERM, after GRACE seconds
SIGKILL. This also ends processes that moved to a session of their own (as Flower's `flower-superexec` does): this process is a
subreaper, so orphans become its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux's prctl."""


def descendants() -> list[int]:
    """Ids of all living descendants of this process."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if state != "Z":
            parents[int(name)] = int(parent)
    found, newest = [], {os.getpid()}
    while newest := {child for child, parent in parents.items() if parent in newest}:
        found += sorted(newest)
    return found


def end() -> None:
    """End all descendants of this process."""
    deadline = time.monotonic() + GRACE
    for kind in (signal.SIGTERM, signal.SIGKILL):
        for pid in descendants():
            _signal(pid, kind)
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


def _signal(pid: int, kind: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, kind)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
