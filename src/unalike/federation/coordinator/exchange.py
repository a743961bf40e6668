"""An exchange: requests to many sites, until all have answered, or by the deadline a quorum of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from unalike._utils.errors import UnalikeError
from unalike.core.codec import Facts, Malformed
from unalike.core.types import Tree
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.protocol.envelope import Envelope
from unalike.federation.protocol.messages import ANSWER

T = TypeVar("T")
Make = Callable[[], Request]
"""Makes a request when it is sent: not all of them lie in memory at once."""


@dataclass
class Exchange(Generic[T]):
    """Requests to many sites, and their answers.

    Without a quorum by the deadline the deadline is extended, `more` sites are asked in addition, and after `patience` attempts of
    the federation file the run is paused. At each attempt the sites that were unable (a full disk, a lost file) are asked again.

    Args:
        mailbox: sends and receives messages.
        place: stage and round, as messages say them.
        requests: site -> makes its request.
        read: makes a value of an answer; an `UnalikeError` that it raises refuses the answer.
        counts: the sites that count towards the quorum.
        quorum: usable answers that are needed of them.
        more: (attempt, answers lacking) -> requests to other sites.
        sift: all values -> site -> why it is refused in comparison with the others.
        keep: makes of a value what is kept of it until the exchange ends. An error in it is the coordinator's, not the site's.
        unable: is told of a site that could not do what it was asked.
        values: usable answers by site.
        faults: site -> what went wrong.
        willing: sites that were unable and have not been asked again.
    """

    mailbox: Mailbox
    place: Place
    requests: dict[str, Make]
    read: Callable[[str, Facts, Tree], T]
    counts: set[str] = field(default_factory=set)
    quorum: int = 0
    more: Callable[[int, int], Mapping[str, Make]] = lambda attempt, lacking: {}
    sift: Callable[[Mapping[str, T]], Mapping[str, str]] = lambda values: {}
    keep: Callable[[str, T], T] = lambda site, value: value
    unable: Callable[[str], None] = lambda site: None
    values: dict[str, T] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    willing: set[str] = field(default_factory=set)
    _repeat_at: float = field(default=0.0, init=False)

    def run(self) -> Exchange[T]:
        """Ask all sites, and wait for all answers, or by the deadline for a quorum of them."""
        self.mailbox.control.wait()
        self.mailbox.begin(self.place)
        self._ask(self.requests)
        self._repeat_at = _after(self.mailbox.federation.repeat)
        self._collect()
        attempt = 0
        while not self._has_quorum():
            attempt = self._ask_again(attempt + 1)
            self._collect()
        for site in self.silent:
            self.faults[site] = "absent: no answer by the deadline"
            self.mailbox.note("absent", site, "no answer by the deadline")
        return self

    def _collect(self) -> None:
        """Take in answers until no site is silent, or to the deadline; repeat requests that stay without an answer."""
        federation = self.mailbox.federation
        deadline = _after(federation.deadline)
        while True:
            pause = self._wait_while_paused()
            deadline, self._repeat_at = deadline + pause, self._repeat_at + pause
            silent = self.silent
            if not silent or time.monotonic() >= deadline:
                return
            if time.monotonic() >= self._repeat_at:
                self._ask({site: self.requests[site] for site in silent})
                self._repeat_at = _after(federation.repeat)
            seconds = min(deadline, self._repeat_at, _after(0.5)) - time.monotonic()
            for site, answer in self.mailbox.receive(max(0.0, seconds)):
                self._take(site, answer)

    @property
    def silent(self) -> list[str]:
        """The sites that have not answered yet."""
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

    def _has_quorum(self) -> bool:
        """Whether enough answers are left when those are refused that stand out among the others."""
        for site, why in self.sift(self.values).items():
            del self.values[site]
            self._refuse(site, why)
        return len(self.counts & self.values.keys()) >= self.quorum

    def _ask_again(self, attempt: int) -> int:
        """Without a quorum: ask other sites too, or pause for the operator. Returns the attempts since the last pause."""
        mailbox, usable = self.mailbox, len(self.counts & self.values.keys())
        mailbox.event(
            "no quorum", round=mailbox.number, attempt=attempt, sound=usable, quorum=self.quorum, absent=self.silent
        )
        others = self.more(attempt, self.quorum - usable)
        self.requests |= others
        self.counts |= set(others)
        for site in others:
            self.values.pop(site, None)
            self.faults.pop(site, None)
        if attempt >= mailbox.federation.patience:
            self._pause(f"{usable} valid answers of {self.quorum} after {attempt} attempts")
            attempt = 0
        for site in self.willing:
            self.faults.pop(site, None)
        self.willing.clear()
        self._ask({site: self.requests[site] for site in self.silent})
        return attempt

    def _pause(self, why: str) -> None:
        """Pause the run until the operator resumes it."""
        mailbox = self.mailbox
        mailbox.event("paused", round=mailbox.number, why=why)
        mailbox.control.pause(why)
        mailbox.control.wait()
        mailbox.event("resumed", round=mailbox.number)

    def _ask(self, requests: Mapping[str, Make]) -> None:
        """Send to the sites that can be reached; the others are tried again later."""
        reachable = set(self.mailbox.transport.sites())
        for site, make in requests.items():
            if site in reachable:
                self.mailbox.send(site, make())

    def _wait_while_paused(self) -> float:
        """Wait while the operator has paused the run. Returns the seconds that it took."""
        started = time.monotonic()
        self.mailbox.control.wait()
        return time.monotonic() - started


def _after(seconds: float) -> float:
    return time.monotonic() + seconds
