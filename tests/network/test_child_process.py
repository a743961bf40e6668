"""Child processes and their descendants end with the parent, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from unalike._utils.errors import UnalikeError
from unalike._utils.system.supervisor import Supervisor

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), 0, flush=True)
time.sleep(600)
"""

PARENT = """
import sys, time
from pathlib import Path
from unalike._utils.system.supervisor import Supervisor
with Supervisor(Path(sys.argv[1])) as supervisor:
    supervisor.start("family", [sys.executable, "-c", sys.argv[2]])
    print("up", flush=True)
    time.sleep(600)
"""


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def awaited(ready, seconds=30):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(log):
    awaited(lambda: log.exists() and len(log.read_text().split()) == 2)
    return [int(word) for word in log.read_text().split()]


def test_supervisor_exit_ends_children_in_other_sessions(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("family", [sys.executable, "-c", FAMILY])
        family = pids(tmp_path / "family.log")
        assert all(map(alive, family))
    assert not any(map(alive, family))


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_killed_parent_ends_children(tmp_path, kind):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), FAMILY],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert parent.stdout.readline() == b"up\n"
        family = pids(tmp_path / "family.log")
        assert all(map(alive, family))
        parent.send_signal(kind)
        parent.wait(30)
        awaited(lambda: not any(map(alive, family)))
    finally:
        parent.kill()


def test_supervisor_error_ends_children(tmp_path):
    with pytest.raises(ZeroDivisionError), Supervisor(tmp_path) as supervisor:
        supervisor.start("family", [sys.executable, "-c", FAMILY])
        family = pids(tmp_path / "family.log")
        _ = 1 / 0
    assert not any(map(alive, family))


def test_child_ignoring_sigterm_is_killed(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        supervisor.start("stubborn", [sys.executable, "-c", STUBBORN])
        pid, _ = pids(tmp_path / "stubborn.log")
    assert not alive(pid)


def test_ended_child_raises_with_last_log_lines(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start(
            "short", [sys.executable, "-c", "print('no more'); raise SystemExit(3)"]
        )
        awaited(lambda: not child.alive)
        with pytest.raises(
            UnalikeError, match=r"short ended unexpectedly \(status 3\)[\s\S]*no more"
        ):
            supervisor.check()


CHATTY = """
import sys, time
line = "x" * 99 + chr(10)
for _ in range(300):
    sys.stdout.write(line * 1000)
    sys.stdout.flush()
    time.sleep(0.005)
print("\\x1b[2J end", flush=True)
"""


def test_log_of_a_chatty_child_begins_anew(tmp_path):
    """N2: 30 MB of lines leave two files of a few MB; what is shown of them has no control characters."""
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("chatty", [sys.executable, "-c", CHATTY])
        awaited(lambda: not child.alive)
        log, former = tmp_path / "chatty.log", tmp_path / "chatty.log.1"
        assert 0 < former.stat().st_size < 20 << 20 and log.stat().st_size < 20 << 20
        assert log.stat().st_size + former.stat().st_size < 30_000_000
        assert child.last_lines().endswith(" [2J end")


def test_new_lines_of_a_log_are_read_once(tmp_path):
    (tmp_path / "log.log").write_text("of an earlier start\n")
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start("log", [sys.executable, "-c", "print('one'); print('\\x07two')"])
        awaited(lambda: not child.alive)
        assert child.new_lines() == ["one", " two"] and child.new_lines() == []
        (tmp_path / "log.log").write_text("anew\npart")
        assert child.new_lines() == ["anew"]


def test_descendants_of_ended_child_are_ended(tmp_path):
    leaving = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); print(c.pid, 0, flush=True)"
    with Supervisor(tmp_path) as supervisor:
        child = supervisor.start(
            "leaving", [sys.executable, "-c", leaving, "import time; time.sleep(600)"]
        )
        awaited(lambda: not child.alive)
        assert not alive(int((tmp_path / "leaving.log").read_text().split()[0]))
