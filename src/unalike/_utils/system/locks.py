"""A lock on a folder: one process at a time may work in it."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from unalike._utils.errors import BusyFolder, UnalikeError, warn

if sys.platform == "win32":
    import msvcrt

    def _acquire(handle: int, shared: bool) -> None:
        """Lock the file's first byte; locks are never shared. Raises `BlockingIOError` where another process has it."""
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None

else:
    import fcntl

    def _acquire(handle: int, shared: bool) -> None:
        """Lock the file. Raises `BlockingIOError` where another process has a lock that excludes this one."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(handle, kind | fcntl.LOCK_NB)


WAITING_SECONDS = 0.5
"""Time after which a lock that another process has is tried again."""
LOCK_TEST_SECONDS = 0.05
"""Time to wait for a process that only tests the lock (`is_locked`)."""


@contextmanager
def locked(folder: Path, otherwise: str) -> Iterator[None]:
    """Keep others out while the block runs; the lock ends with the process, however it ends.

    Raises `BusyFolder` where another process has the lock, and `UnalikeError` for a folder that cannot be written.
    """
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UnalikeError(
            f"cannot write {folder / '.lock'}: {error.strerror}; choose another folder"
        ) from None
    try:
        _acquire_alone(handle, folder, otherwise)
        yield
    finally:
        os.close(handle)


@contextmanager
def locked_in_turn(folder: Path) -> Iterator[None]:
    """Keep others out while the block runs, and wait for those who are in before."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder, f"another process works in {folder}"))
                break
            except BusyFolder:
                time.sleep(WAITING_SECONDS)
        yield


def is_locked(folder: Path) -> bool | None:
    """Whether a process works in the folder; None where the file system does not say."""
    try:
        handle = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        _acquire(handle, shared=True)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def _acquire_alone(handle: int, folder: Path, otherwise: str) -> None:
    """Lock the file for this process alone; where the file system cannot, warn. Raises `BusyFolder` if another has it."""
    try:
        try:
            _acquire(handle, shared=False)
        except BlockingIOError:
            # perhaps by a process that only tests the lock (`is_locked`)
            time.sleep(LOCK_TEST_SECONDS)
            _acquire(handle, shared=False)
    except BlockingIOError:
        raise BusyFolder(otherwise) from None
    except OSError as error:
        # as on file systems of some clusters
        warn(
            f"{folder} cannot be locked ({error.strerror}): see to it that no other process writes it"
        )
