"""Runs one command, and ends it with everything that it started when the parent lets go. Standard library only.

`python -I -S leash.py command...`: standard input is the leash. When it closes, because the parent closed it or died of
whatever (`kill -9` included), every process below this one is ended: first SIGTERM, after GRACE seconds SIGKILL. Processes that
moved to a session of their own (as Flower's `flower-superexec` does) are still below it: a subreaper adopts the orphans.
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
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux's prctl."""


def descendants() -> list[int]:
    """The ids of all living processes below this one."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:  # gone in the meantime
            continue
        if state != "Z":
            parents[int(name)] = int(parent)
    found, newest = [], {os.getpid()}
    while newest := {child for child, parent in parents.items() if parent in newest}:
        found += sorted(newest)
    return found


def end() -> None:
    """End every process below this one."""
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
    with contextlib.suppress(ProcessLookupError):  # it has ended in the meantime
        os.kill(pid, kind)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
