"""One question to many sites, until everybody has answered, or the deadline has passed and a quorum has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree
from unalike.federation.coordinator.mailbox import ANSWER, Mailbox, Place, Request
from unalike.federation.protocol.envelope import Envelope
from unalike.federation.protocol.packing import Facts, Malformed

T = TypeVar("T")
Make = Callable[[], Request]
"""Makes a request when it is sent: not all of them lie in memory at once."""


def _nobody(attempt: int, lacking: int) -> Mapping[str, Make]:
    return {}


def _as_it_is(site: str, value: T) -> T:
    return value


def _all_fair(values: Mapping[str, object]) -> Mapping[str, str]:
    return {}


def _as_before(site: str) -> None:
    pass


@dataclass
class Exchange(Generic[T]):
    """What was asked and what came of it: `values` of sound answers, `faults` of the others.

    `read` makes a value of an answer or raises `UnalikeError`: then it is refused. `quorum` sound answers of the sites in
    `counts` are needed; without them the deadline is extended, `more` names others to ask in addition, and after `patience`
    attempts the run is paused. At each attempt who was unable (a full disk, a lost file) is asked again; `unable` hears of such a
    site. `sift` finds those who are refused for what they are among the others. `keep` makes of a sound value what is kept of it
    until then; where it fails, the coordinator does, and no site is to blame.
    """

    mailbox: Mailbox
    place: Place
    requests: dict[str, Make]
    read: Callable[[str, Facts, Tree], T]
    counts: set[str] = field(default_factory=set)
    quorum: int = 0
    more: Callable[[int, int], Mapping[str, Make]] = _nobody
    sift: Callable[[Mapping[str, T]], Mapping[str, str]] = _all_fair
    keep: Callable[[str, T], T] = _as_it_is
    unable: Callable[[str], None] = _as_before
    values: dict[str, T] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    willing: set[str] = field(default_factory=set)
    """Who was unable and has not been asked again."""

    def run(self) -> Exchange[T]:
        """Ask, and wait."""
        mailbox, federation = self.mailbox, self.mailbox.federation
        mailbox.control.wait()
        mailbox.begin(self.place)
        self._ask(self.requests)
        end, again, attempts = self._after(federation.deadline), self._after(federation.repeat), 0
        while True:
            end, again = (moment + pause for moment, pause in zip((end, again), [self._paused()] * 2, strict=True))
            silent = self.silent
            if not silent or time.monotonic() >= end:
                if self._enough():
                    break
                attempts = self._lacking(attempts + 1)
                end = self._after(federation.deadline)
                continue
            if time.monotonic() >= again:
                self._ask({site: self.requests[site] for site in silent})
                again = self._after(federation.repeat)
            for site, answer in mailbox.receive(max(0.0, min(end, again, self._after(0.5)) - time.monotonic())):
                self._take(site, answer)
        for site in self.silent:
            self.faults[site] = "absent: no answer by the deadline"
            mailbox.note("absent", site, "no answer by the deadline")
        return self

    @property
    def silent(self) -> list[str]:
        """Who has not answered yet."""
        return [site for site in self.requests if site not in self.values and site not in self.faults]

    def _take(self, site: str, answer: Envelope) -> None:
        if site not in self.silent:
            return
        try:
            facts, tensors = answer.open(self.mailbox.limits)
            if answer.head.kind != ANSWER:
                self.willing.add(site)
                self.unable(site)
                raise Malformed(f"{answer.head.kind}: {str(facts.get('why'))[:1000]}")
            value = self.read(site, facts, tensors)
        except UnalikeError as error:
            self._refuse(site, str(error))
        else:
            self.values[site] = self.keep(site, value)

    def _refuse(self, site: str, why: str) -> None:
        self.faults[site] = f"refused: {why}"
        self.mailbox.note("refused", site, why)

    def _enough(self) -> bool:
        for site, why in self.sift(self.values).items():
            del self.values[site]
            self._refuse(site, why)
        return len(self.counts & self.values.keys()) >= self.quorum

    def _lacking(self, attempt: int) -> int:
        """There is no quorum: ask others too, or wait for the operator. The attempts that count."""
        mailbox, sound = self.mailbox, len(self.counts & self.values.keys())
        mailbox.event(
            "no quorum", round=mailbox.number, attempt=attempt, sound=sound, quorum=self.quorum, absent=self.silent
        )
        others = self.more(attempt, self.quorum - sound)
        self.requests |= others
        self.counts |= set(others)
        for site in others:
            self.values.pop(site, None)
            self.faults.pop(site, None)
        if attempt >= mailbox.federation.patience:
            why = f"{sound} sound reports of {self.quorum} after {attempt} attempts"
            mailbox.event("paused", round=mailbox.number, why=why)
            mailbox.control.pause(why)
            mailbox.control.wait()
            mailbox.event("resumed", round=mailbox.number)
            attempt = 0
        for site in self.willing:
            self.faults.pop(site, None)
        self.willing.clear()
        self._ask({site: self.requests[site] for site in self.silent})
        return attempt

    def _ask(self, requests: Mapping[str, Make]) -> None:
        """Send to those who can be reached; the others are tried again."""
        reachable = set(self.mailbox.transport.sites())
        for site, make in requests.items():
            if site in reachable:
                self.mailbox.send(site, make())

    def _paused(self) -> float:
        """Wait while the operator wants it; the seconds that it took."""
        started = time.monotonic()
        self.mailbox.control.wait()
        return time.monotonic() - started

    def _after(self, seconds: float) -> float:
        return time.monotonic() + seconds
