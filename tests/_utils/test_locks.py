"""A folder that one process at a time may write."""

import errno
import fcntl
import os
import time

import pytest

from unalike._utils.errors import UnalikeError
from unalike._utils.system.locks import is_locked, locked


def test_lock_held_twice_raises_and_passes_inner_errors(tmp_path):
    with (
        locked(tmp_path, "taken"),
        pytest.raises(UnalikeError, match="taken"),
        locked(tmp_path, "taken"),
    ):
        raise AssertionError("two are in")
    with pytest.raises(BlockingIOError), locked(tmp_path, "taken"):
        raise BlockingIOError
    with locked(tmp_path, "taken"):
        pass


def test_lock_inspection_sees_holder_and_blocks_no_one(tmp_path, monkeypatch):
    assert is_locked(tmp_path) is False
    with locked(tmp_path, "taken"):
        assert is_locked(tmp_path) is True
    assert is_locked(tmp_path) is False

    looking = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda seconds: os.close(looking))  # it looks away
    with locked(tmp_path, "taken"):
        assert is_locked(tmp_path) is True


def test_lock_unsupported_file_system_warns(tmp_path, monkeypatch):
    def refuse(handle, operation):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.warns(UserWarning, match="cannot be locked .*no other process"),
        locked(tmp_path, "taken"),
    ):
        pass
    assert is_locked(tmp_path) is None
