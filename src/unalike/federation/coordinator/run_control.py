"""The operator's control of a running coordinator, from another thread: status, run, pause, resume, stop."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Event

from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.operator_commands import Answer
from unalike.federation.coordinator.run_queue import QueuedRun
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.roster import Roster
from unalike.federation.protocol.transport import Transport
from unalike.runtime.records.run_directory import RunDirectory

LATECOMERS = 60.0
"""Seconds to wait for further sites once a quorum is connected."""
POLL = 0.5
REPEAT, LONGEST_REPEAT = 10.0, 3600.0
"""Seconds after which the log says again how many sites are connected; doubled each time, up to the longest."""


class Stopped(UnalikeError):
    """The operator stopped the coordinator. Complete rounds are stored; when started again, it continues after them."""


class Control:
    """An operator's commands to the coordinator. `state` is "running", "paused" or "stopped", `why` the reason of a pause.

    `last_answers` is when each site last answered, in seconds since 1970, `late` how many of its answers came late.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self.state, self.why = "running", ""
        self.last_answers: dict[str, float] = {}
        self.late = Counter[str]()

    def pause(self, why: str = "asked for") -> None:
        """Send no new requests until the run is resumed; replies that arrive meanwhile are read then."""
        self._set("paused", why)

    def resume(self) -> None:
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


class OperatorCommands:
    """Carries out the operator's commands."""

    def __init__(self, federation: Federation, transport: Transport, wait: bool):
        self.federation, self.transport, self.control = federation, transport, Control()
        self.round, self.run = 0, Path()
        self._sites_ready = False
        self._begin = Event()
        if not wait:
            self._begin.set()

    @property
    def commands(self) -> dict[str, Callable[[], object]]:
        """Command -> what it does."""
        actions: dict[str, Callable[[], object]] = {
            "status": self.status,
            "run": self._begin.set,
            "stop": self.stop,
        }
        return actions | {"pause": self.control.pause, "resume": self.control.resume}

    def enter(self, queued: QueuedRun) -> None:
        """Go on with this run."""
        self.federation, self.run, self._sites_ready = queued.federation, queued.path, False
        self.round = RunDirectory(queued.path).round

    def status(self) -> Answer:
        connected, members = set(self.transport.sites()), self._members
        rows = [
            {
                **{
                    "name": s.name,
                    "connected": s.name in connected,
                    "samples": s.samples,
                    "revoked": s.revoked,
                },
                "in_run": s.name in members if members else None,
                **{
                    "last_answer": self.control.last_answers.get(s.name),
                    "late": self.control.late[s.name],
                },
            }
            for s in self.federation.sites
        ]
        waiting = self.control.state == "running" and not self._sites_ready
        state = "waiting" if waiting or not self._begin.is_set() else self.control.state
        run = {
            "method": self.federation.method,
            "seed": self.federation.seed,
            "rounds": self.federation.rounds,
        }
        run |= {"folder": self.run.name, "round": self.round}
        return {"state": state, "why": self.control.why, **run, "sites": rows}

    def stop(self) -> None:
        self.control.stop()
        self._begin.set()

    def wait_for_runs(self, log: Callable[[str], None], check: Callable[[], None]) -> None:
        """Wait until the operator adds runs."""
        log("all runs are done; waiting for `unalike federation run FOLDER --method METHOD`")
        self._begin.clear()
        while not self._begin.wait(POLL):
            check()
            self.control.wait()

    def wait_for_sites(self, log: Callable[[str], None], check: Callable[[], None]) -> None:
        """Wait until the operator lets the run begin and a quorum is connected, for `LATECOMERS` seconds the others, too.

        A run that goes on waits for none that it began without, or whose absence is its last event in the log.
        """
        names = [site.name for site in self.federation.sites if not site.revoked]
        members, since = {*names} & (self._members or {*names}), time.monotonic()
        enough, needed = self.federation.answers_needed(len(members)), self._needed(members)
        logged, logged_at, pause = "", time.monotonic(), REPEAT
        while True:
            check()
            self.control.wait()
            connected = set(self.transport.sites())
            missing = [name for name in names if name not in connected]
            is_short = len(connected & members) < enough
            late = [name for name in missing if name in needed or is_short]
            if is_short:
                since = time.monotonic()
            line = f"{len(connected)} of {len(names)} sites are connected"
            line += (
                f", {'' if late else 'not '}waiting for {', '.join((late or missing)[:10])}"
                if missing
                else ""
            )
            if not late and not self._begin.is_set():
                line += "; waiting for `unalike federation run`"
            if line != logged or (late and time.monotonic() - logged_at > pause):
                log(line)
                pause = REPEAT if line != logged else min(2 * pause, LONGEST_REPEAT)
                logged, logged_at = line, time.monotonic()
            if self._begin.is_set() and (not late or time.monotonic() - since > LATECOMERS):
                self._sites_ready = True
                return
            time.sleep(POLL)

    @property
    def _members(self) -> set[str]:
        """The sites that the run began with; none before it has begun."""
        return {*Roster.load(self.run / "roster.json").sites}

    def _needed(self, members: set[str]) -> set[str]:
        """The sites of the run that have not departed."""
        events = RunDirectory(self.run).events
        last = {e["client"]: e["event"] for e in events if e["event"] in ("absent", "connected")}
        return {name for name in members if last.get(name) != "absent"}
