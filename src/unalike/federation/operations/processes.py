"""Child processes that never outlive their parent: started, watched, and ended for sure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from unalike._utils.errors import UnalikeError

LEASH = Path(__file__).with_name("child_process.py")
LAST_LINES = 12
"""Lines of a log that an error shows."""
PATIENCE = 12.0
"""Seconds that a leash has to end what it holds, before it is killed itself."""
POLL = 0.05


class Terminated(SystemExit):
    """SIGTERM, as an exception, so that `with` blocks are left in order."""


class Child:
    """A command held on a leash (`leash.py`): it ends with everything below it when `stop` is called or this process dies."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None):
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._leash = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LEASH), *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self._leash.poll() is None

    @property
    def pid(self) -> int:
        """The id of the leash; the command is its only child."""
        return self._leash.pid

    @property
    def status(self) -> int | None:
        """The exit status of the command, None while it runs."""
        return self._leash.poll()

    def stop(self) -> None:
        """End the command and everything below it; return when it has ended."""
        if self._leash.stdin is not None and not self._leash.stdin.closed:
            self._leash.stdin.close()
        try:
            self._leash.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._leash.kill()
            self._leash.wait()

    def last_lines(self) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        except OSError:
            return ""

    def last_words(self) -> str:
        """The last line of its log that says something."""
        lines = [line.strip() for line in self.last_lines().splitlines()]
        return next((line for line in reversed(lines) if line), "nothing was said")


class Supervisor:
    """The children of a command. Leaving the `with` block ends them all, whatever the reason: an error, Ctrl-C, SIGTERM.

    A child that must not end is watched: `check` raises when one has.
    """

    def __init__(self, logs: Path):
        self.logs = logs
        self.children: list[Child] = []
        self._handler: Any = None

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Start a command; its output goes to `<name>.log`."""
        child = Child(name, command, self.logs / f"{name}.log", env)
        self.children.append(child)
        return child

    def forget(self, child: Child) -> None:
        """Stop a child, or make sure that one which ended left nothing behind."""
        child.stop()
        if child in self.children:
            self.children.remove(child)

    def stop(self) -> None:
        """End all children, the newest first and without waiting for each other."""
        enders = [threading.Thread(target=child.stop) for child in reversed(self.children)]
        for thread in enders:
            thread.start()
        for thread in enders:
            thread.join()
        self.children.clear()

    def check(self) -> None:
        """Raise `UnalikeError` if a child has ended."""
        for child in self.children:
            if not child.alive:
                raise UnalikeError(
                    f"{child.name} ended unexpectedly (status {child.status}); the end of {child.log}:\n{child.last_lines()}"
                )

    def wait_until(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait for a condition while the children live. Raises `UnalikeError` when it takes too long or a child ends."""
        deadline = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise UnalikeError(f"{what} did not happen within {seconds:.0f} s; look into {self.logs}")
            time.sleep(POLL)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, _terminated)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            if self._handler is not None:
                signal.signal(signal.SIGTERM, self._handler)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment with the folder of its Python first on PATH, so that commands are found by bare name."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **more}
