"""Pause, resume and stop a running coordinator from another thread."""

from __future__ import annotations

from threading import Condition

from unalike._utils.errors import UnalikeError


class Stopped(UnalikeError):
    """The coordinator was told to stop. What was done is kept; started again, it goes on."""


class Control:
    """An operator's commands to the coordinator. `state` is "running", "paused" or "stopped", `why` the reason of a pause."""

    def __init__(self) -> None:
        self._changed = Condition()
        self.state, self.why = "running", ""

    def pause(self, why: str = "asked for") -> None:
        """Ask nothing new from now on; what is on its way is taken in when the run goes on."""
        self._set("paused", why)

    def resume(self) -> None:
        """Go on."""
        self._set("running", "")

    def stop(self) -> None:
        """End the run as soon as possible, keeping what is complete. Final."""
        self._set("stopped", "asked for")

    def wait(self, seconds: float | None = None) -> bool:
        """Return at once while running, else wait to be resumed. Raises `Stopped`. True if it runs."""
        with self._changed:
            self._changed.wait_for(lambda: self.state != "paused", seconds)
            if self.state == "stopped":
                raise Stopped("the coordinator was stopped; start it again to go on")
            return self.state == "running"

    def _set(self, state: str, why: str) -> None:
        with self._changed:
            if self.state != "stopped":
                self.state, self.why = state, why
            self._changed.notify_all()
