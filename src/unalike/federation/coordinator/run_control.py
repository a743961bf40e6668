"""The operator's control of a running coordinator, from another thread: status, run, pause, resume, stop."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Event

from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.late_sites import why_sites_are_fixed
from unalike.federation.coordinator.operator_commands import Answer
from unalike.federation.coordinator.run_queue import QueuedRun
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.roster import Roster
from unalike.federation.protocol.transport import Transport
from unalike.runtime.records.run_directory import RunDirectory

POLL_SECONDS = 0.5
"""Seconds between two looks at the operator's commands and at the connected sites."""
FIRST_REPEAT_SECONDS = 10.0
"""Seconds after which the log says again how many sites are connected; doubled each time."""
LONGEST_REPEAT_SECONDS = 3600.0
"""Maximum seconds between two such lines."""
MAX_LISTED_SITES = 10
"""Maximum number of missing sites that a line names."""


class Stopped(UnalikeError):
    """The operator stopped the coordinator. Complete rounds are stored; when started again, it continues after them."""


class Control:
    """An operator's commands to the coordinator. `state` is "running", "paused" or "stopped", `why` the reason of a pause.

    `last_answers` is when each site last answered, in seconds since 1970, `late` how many of its answers came late.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self.state = "running"
        self.why = ""
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
                self.state = state
                self.why = why
            self._changed.notify_all()


class OperatorCommands:
    """Carries out the operator's commands."""

    def __init__(self, federation: Federation, transport: Transport, wait: bool):
        self.federation = federation
        self.transport = transport
        self.control = Control()
        self.round = 0
        self.run = Path()
        self._sites_ready = False
        self._begin = Event()
        if not wait:
            self._begin.set()

    @property
    def commands(self) -> dict[str, Callable[[], object]]:
        """Command -> what it does."""
        return {
            "status": self.status,
            "run": self._begin.set,
            "stop": self.stop,
            "pause": self.control.pause,
            "resume": self.control.resume,
        }

    def enter(self, queued: QueuedRun) -> None:
        """Go on with this run."""
        self.federation = queued.federation
        self.run = queued.path
        self._sites_ready = False
        self.round = RunDirectory(queued.path).round

    def status(self) -> Answer:
        """The state of the run and of each site, as plain values."""
        connected = set(self.transport.sites())
        members = self._members
        rows = []
        for site in self.federation.sites:
            row = {
                "name": site.name,
                "connected": site.name in connected,
                "samples": site.samples,
                "revoked": site.revoked,
                "in_run": site.name in members if members else None,
                "last_answer": self.control.last_answers.get(site.name),
                "late": self.control.late[site.name],
            }
            rows.append(row)
        state = self.control.state
        waits_for_sites = state == "running" and not self._sites_ready
        if waits_for_sites or not self._begin.is_set():
            state = "waiting"
        return {
            "state": state,
            "why": self.control.why,
            "method": self.federation.method,
            "seed": self.federation.seed,
            "rounds": self.federation.rounds,
            "folder": self.run.name,
            "round": self.round,
            "sites": rows,
        }

    def stop(self) -> None:
        self.control.stop()
        self._begin.set()

    def wait_for_runs(self, log: Callable[[str], None], check: Callable[[], None]) -> None:
        """Wait until the operator adds runs."""
        log("all runs are done; waiting for `unalike federation run FOLDER --method METHOD`")
        self._begin.clear()
        while not self._begin.wait(POLL_SECONDS):
            check()
            self.control.wait()

    def wait_for_sites(self, log: Callable[[str], None], check: Callable[[], None]) -> None:
        """Wait until the operator lets the run begin and a quorum is connected, for some time the others, too.

        A run that goes on waits for none that it began without, or whose absence is its last event in the log.
        """
        names = [site.name for site in self.federation.sites if not site.revoked]
        members = set(names) & (self._members or set(names))
        quorum = self.federation.answers_needed(len(members))
        needed = self._needed(members)
        quorum_since = time.monotonic()
        last_line = ""
        last_logged = time.monotonic()
        repeat_after = FIRST_REPEAT_SECONDS
        while True:
            check()
            self.control.wait()

            # Below a quorum all sites are waited for, with one only those that the run needs.
            connected = set(self.transport.sites())
            missing = [name for name in names if name not in connected]
            is_short = len(connected & members) < quorum
            awaited = [name for name in missing if name in needed or is_short]
            if is_short:
                quorum_since = time.monotonic()

            # What has not changed is said again ever more rarely.
            line = self._line_on_sites(len(connected), len(names), missing, awaited)
            if awaited and not is_short and not self._members:
                seconds = f"{self.federation.latecomers:g} s"
                later = "is in the next run" if why_sites_are_fixed(self.federation) else "joins it"
                line += f"; the run begins without them after {seconds} (latecomers), and who comes later {later}"
            is_new = line != last_line
            if is_new or (awaited and time.monotonic() - last_logged > repeat_after):
                log(line)
                repeat_after = min(2 * repeat_after, LONGEST_REPEAT_SECONDS)
                if is_new:
                    repeat_after = FIRST_REPEAT_SECONDS
                last_line = line
                last_logged = time.monotonic()

            waited_enough = time.monotonic() - quorum_since > self.federation.latecomers
            if self._begin.is_set() and (not awaited or waited_enough):
                self._sites_ready = True
                return
            time.sleep(POLL_SECONDS)

    def _line_on_sites(
        self, connected: int, enrolled: int, missing: list[str], awaited: list[str]
    ) -> str:
        """The line of the log on the sites that are connected, and those that are missing."""
        line = f"{connected} of {enrolled} sites are connected"
        if awaited:
            line += f", waiting for {', '.join(awaited[:MAX_LISTED_SITES])}"
        elif missing:
            line += f", not waiting for {', '.join(missing[:MAX_LISTED_SITES])}"
        if not awaited and not self._begin.is_set():
            line += "; waiting for `unalike federation run`"
        return line

    @property
    def _members(self) -> set[str]:
        """The sites that the run began with; none before it has begun."""
        return {*Roster.load(self.run / "roster.json").sites}

    def _needed(self, members: set[str]) -> set[str]:
        """The sites of the run that have not departed."""
        last_events = {}
        for event in RunDirectory(self.run).events:
            if event["event"] in ("absent", "connected"):
                last_events[event["client"]] = event["event"]
        return {name for name in members if last_events.get(name) != "absent"}
