"""A folder that one process at a time may write."""

import errno
import fcntl
import os

import pytest

from unalike.core.errors import UnalikeError
from unalike.core.lock import locked


def test_a_second_one_is_told_and_what_goes_wrong_inside_stays_what_it_is(tmp_path):
    with locked(tmp_path, "taken"), pytest.raises(UnalikeError, match="taken"), locked(tmp_path, "taken"):
        raise AssertionError("two are in")
    with pytest.raises(BlockingIOError), locked(tmp_path, "taken"):
        raise BlockingIOError
    with locked(tmp_path, "taken"):
        pass


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    def refuse(handle, operation):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked .*no other process"), locked(tmp_path, "taken"):
        pass
