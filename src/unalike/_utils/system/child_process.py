"""Wrapper process around one command: ends the command and all its descendants when the parent ends.

`python -P child_process.py command...`: the parent holds the other end of standard input. When it closes, because the parent
closed it or was killed (`kill -9` included), every descendant of this process is ended: first SIGTERM, after GRACE_SECONDS
SIGKILL. This also ends processes that moved to a session of their own (as Flower's `flower-superexec` does): this process is a
subreaper, so orphans become its children.

A log that grows too long becomes `<name>.log.1`, in place of an older one: what other machines send cannot fill the disk.
"""

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

MAX_LOG_BYTES = 8 << 20
"""Bytes from which on a log begins anew; the one before stays."""
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
PR_SET_CHILD_SUBREAPER = 36
"""The option of Linux's prctl that makes orphaned descendants children of this process."""


def descendants() -> list[psutil.Process]:
    """All living descendants of this process."""
    return [child for child in psutil.Process().children(recursive=True) if _lives(child)]


def end() -> None:
    """End all descendants of this process."""
    deadline = time.monotonic() + GRACE_SECONDS
    for kind in (signal.SIGTERM, signal.SIGKILL):
        for child in descendants():
            # a child may just have ended
            with suppress(psutil.NoSuchProcess):
                child.send_signal(kind)
        while descendants() and time.monotonic() < deadline:
            time.sleep(0.02)
        deadline += GRACE_SECONDS


def main(command: list[str]) -> int:
    """Run the command until it ends, the parent ends, or a signal asks for its end. Returns its exit status."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # signals and the parent's end only set this event: the loop below ends the descendants
    release = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, lambda *_: release.set())
    threading.Thread(target=_wait_for_parent, args=(release,), daemon=True).start()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while child.poll() is None and not release.wait(0.05):
        rotate_log()
    end()
    status = child.wait()
    # a command that a signal ended has the signal's negative number; shells report 128 + number
    return status if status >= 0 else 128 - status


def rotate_log() -> None:
    """Begin the log anew if it is too long. The command goes on writing to the same file, at its end."""
    log = os.fstat(1)
    if not stat.S_ISREG(log.st_mode) or log.st_size < MAX_LOG_BYTES:
        return
    # a full disk, which is the reason to begin anew
    with suppress(OSError):
        path = os.readlink("/proc/self/fd/1")
        shutil.copyfile(path, f"{path}.1")
    os.ftruncate(1, 0)


def _wait_for_parent(release: threading.Event) -> None:
    """Set the event when the parent closes its end of standard input, or has ended."""
    while os.read(0, 1):
        pass
    release.set()


def _lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; a zombie has."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
