"""Child processes that never outlive their parent: start, supervise and end them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

from unalike._utils.errors import UnalikeError
from unalike._utils.printable import printable

CHILD_PROCESS = Path(__file__).with_name("child_process.py")
LAST_LINES = 12
"""Lines of a log that an error message shows."""
ENDING_SECONDS = 12.0
"""Time that the wrapper process has to end its descendants before it is killed."""
POLL_SECONDS = 0.05
"""Time between two looks whether children are ready."""


class Terminated(SystemExit):
    """SIGTERM as an exception, so that `with` blocks are exited properly."""


class Child:
    """A command in a wrapper process (`child_process.py`): it ends with all descendants on `stop` or when this process ends."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ):
        self.name = name
        self.log = log
        self._read_bytes = log.stat().st_size if log.exists() else 0
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._wrapper = subprocess.Popen(
                [sys.executable, "-P", str(CHILD_PROCESS), *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def pid(self) -> int:
        """Process id of the wrapper; the command is its only child."""
        return self._wrapper.pid

    @property
    def status(self) -> int | None:
        """Exit status of the command, None while it runs."""
        return self._wrapper.poll()

    def stop(self) -> None:
        """End the command and all its descendants; return when they have ended."""
        # the wrapper ends its descendants when standard input is closed; it is killed only if it does not
        if self._wrapper.stdin is not None and not self._wrapper.stdin.closed:
            self._wrapper.stdin.close()
        try:
            self._wrapper.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._wrapper.kill()
            self._wrapper.wait()

    def new_lines(self) -> list[str]:
        """The lines of its log since the last call, without control characters."""
        with open(self.log, "rb") as file:
            # a log that began anew is shorter
            if os.fstat(file.fileno()).st_size < self._read_bytes:
                self._read_bytes = 0
            file.seek(self._read_bytes)
            text, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(text) + len(end)
        return [printable(line) for line in text.decode(errors="replace").splitlines()]

    def last_lines(self) -> str:
        """The last lines of its log, which may hold texts of other machines, without control characters."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(map(printable, lines[-LAST_LINES:]))


class Supervisor:
    """Starts child processes and ends all of them when the `with` block exits, also by an error, Ctrl-C or SIGTERM.

    `check` raises if a child has ended.
    """

    def __init__(self, logs: Path):
        self.logs = logs
        self.children: list[Child] = []
        self._stack = ExitStack()

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Child:
        """Start a command with its output in `<name>.log`."""
        child = Child(name, command, self.logs / f"{name}.log", env)
        self.children.append(child)
        return child

    def stop(self) -> None:
        """End all children in parallel."""
        threads = [threading.Thread(target=child.stop) for child in reversed(self.children)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.children.clear()

    def check(self) -> None:
        """Raise `UnalikeError` if a child has ended."""
        for child in self.children:
            if not child.alive:
                raise UnalikeError(
                    f"{child.name} ended unexpectedly (status {child.status}); "
                    f"the end of {child.log}:\n{child.last_lines()}"
                )

    def wait_until(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until `ready()`. Raises `UnalikeError` after `seconds` or if a child ends."""
        deadline = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise UnalikeError(
                    f"{what} took longer than {seconds:.0f} s; see the logs in {self.logs}"
                )
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> Self:
        self._stack.enter_context(exit_at_sigterm())
        self._stack.callback(self.stop)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


@contextmanager
def exit_at_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in this block, in the main thread; in another thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment and `more`, for a Python process whose lines are written at once."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}
