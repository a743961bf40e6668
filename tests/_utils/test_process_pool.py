"""Processes that apply a function to many items."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from unalike._utils.system.process_pool import in_processes

SCRIPT = """
import os, sys, time
from pathlib import Path
from unalike._utils.system.process_pool import in_processes

def work(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    list(in_processes(work, [sys.argv[1]] * 2, jobs=2, threads=1))
"""


def halved(number: int) -> float:
    if number < 0:
        raise ValueError(f"found {number}")
    return number / 2


def test_in_processes_gives_all_results_and_the_first_error():
    assert sorted(in_processes(halved, range(4), jobs=2, threads=1)) == [0, 0.5, 1, 1.5]
    with pytest.raises(ValueError, match="found -1"):
        list(in_processes(halved, [-1], jobs=1, threads=1))


def noted(folder: Path, number: int) -> None:
    """Write a file with the number of this process, and wait until both processes have one; then fail, or work for long."""
    (folder / str(os.getpid())).touch()
    _wait(lambda: len(os.listdir(folder)) == 2)
    if number < 0:
        raise ValueError(f"found {number}")
    time.sleep(600)


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads the state of processes from /proc"
)
def test_in_processes_after_an_error_no_process_goes_on(tmp_path):
    with pytest.raises(ValueError, match="found -1"):
        list(in_processes(partial(noted, tmp_path), [-1, 1], jobs=2, threads=1))
    _wait(lambda: all(map(_ended, os.listdir(tmp_path))))


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads the state of processes from /proc"
)
def test_in_processes_killed_parent_takes_its_processes_along(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder)])
    try:
        _wait(lambda: len(os.listdir(folder)) == 2)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        _wait(lambda: all(map(_ended, os.listdir(folder))))
    finally:
        parent.kill()
        for pid in os.listdir(folder):
            if not _ended(pid):
                os.kill(int(pid), signal.SIGKILL)


def _ended(pid: str) -> bool:
    """Whether a process is gone, or dead and not waited for."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def _wait(happened, seconds=60):
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.1)
