"""An exchange: requests to many sites, until all have answered, or by the deadline a quorum of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from unalike._utils.errors import UnalikeError
from unalike.core.codec import Facts, Malformed
from unalike.core.types import Tree
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.protocol.envelope import Envelope
from unalike.federation.protocol.messages import ANSWER

T = TypeVar("T")


class Requests(Generic[T]):
    """The requests of an exchange: each site's request, and the check and storage of its answer."""

    def request(self, site: str) -> Request:
        """The request to a site. It is made when it is sent, so that not all of them are in memory at once."""
        raise NotImplementedError

    def read(self, site: str, facts: Facts, tensors: Tree) -> T:
        """The value of an answer. An `UnalikeError` refuses the answer."""
        raise NotImplementedError

    def store(self, site: str, value: T) -> T:
        """Store an accepted value and return what stays in RAM. An error is the coordinator's, not the site's."""
        return value

    def outliers(self, values: Mapping[str, T]) -> Mapping[str, str]:
        """The sites whose value is refused after comparison with the others, with the reason."""
        return {}

    def substitutes(self, attempt: int, lacking: int) -> Sequence[str]:
        """Other sites to ask as well, where so many answers are lacking for a quorum."""
        return ()

    def note_unable(self, site: str) -> None:
        """Record a site that could not carry out its request (a full disk, a lost file)."""


@dataclass
class SameRequest(Requests[T]):
    """One request, the same for all sites; `value_of` reads an answer."""

    content: Request
    value_of: Callable[[str, Facts, Tree], T]

    def request(self, site: str) -> Request:
        return self.content

    def read(self, site: str, facts: Facts, tensors: Tree) -> T:
        return self.value_of(site, facts, tensors)


@dataclass
class Exchange(Generic[T]):
    """Requests to many sites, and their answers.

    Without a quorum by the deadline the deadline is extended, substitutes are asked in addition, and after `patience` attempts of
    the federation file the run is paused. At each attempt the sites that were unable are asked again.

    `sites` are asked; `quorum` usable answers are needed of those that are `counted`. `values` are usable answers by site,
    `faults` say what went wrong.
    """

    mailbox: Mailbox
    place: Place
    requests: Requests[T]
    sites: list[str]
    counted: set[str]
    quorum: int
    values: dict[str, T] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    _unable: set[str] = field(default_factory=set, init=False)
    """Sites that were unable and have not been asked again."""
    _repeat_at: float = field(default=0.0, init=False)

    def run(self) -> Exchange[T]:
        """Send all requests, and wait for all answers, or by the deadline for a quorum of them."""
        self.mailbox.control.wait()
        self.mailbox.begin(self.place)
        self._ask(self.sites)
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
        """Read answers until every site has answered, or to the deadline; repeat requests without an answer."""
        federation = self.mailbox.federation
        deadline = _after(federation.deadline)
        while True:
            pause = self._wait_while_paused()
            deadline, self._repeat_at = deadline + pause, self._repeat_at + pause
            silent = self.silent
            if not silent or time.monotonic() >= deadline:
                return
            if time.monotonic() >= self._repeat_at:
                self._ask(silent)
                self._repeat_at = _after(federation.repeat)
            seconds = min(deadline, self._repeat_at, _after(0.5)) - time.monotonic()
            for site, answer in self.mailbox.receive(max(0.0, seconds)):
                self._take(site, answer)

    @property
    def silent(self) -> list[str]:
        """The sites that have not answered yet."""
        return [site for site in self.sites if site not in self.values and site not in self.faults]

    def _take(self, site: str, answer: Envelope) -> None:
        if site not in self.silent:
            return
        try:
            facts, tensors = answer.open(self.mailbox.limits)
            if answer.head.kind != ANSWER:
                self._unable.add(site)
                self.requests.note_unable(site)
                raise Malformed(f"{answer.head.kind}: {str(facts.get('why'))[:1000]}")
            value = self.requests.read(site, facts, tensors)
        except UnalikeError as error:
            self._refuse(site, str(error))
        else:
            self.values[site] = self.requests.store(site, value)

    def _refuse(self, site: str, why: str) -> None:
        self.faults[site] = f"refused: {why}"
        self.mailbox.note("refused", site, why)

    def _has_quorum(self) -> bool:
        """Whether enough answers are left when those are refused that stand out among the others."""
        for site, why in self.requests.outliers(self.values).items():
            del self.values[site]
            self._refuse(site, why)
        return len(self.counted & self.values.keys()) >= self.quorum

    def _ask_again(self, attempt: int) -> int:
        """Without a quorum: ask other sites too, or pause for the operator. Returns the attempts since the last pause."""
        mailbox, usable = self.mailbox, len(self.counted & self.values.keys())
        mailbox.event(
            "no quorum", round=mailbox.number, attempt=attempt, sound=usable, quorum=self.quorum, absent=self.silent
        )
        substitutes = self.requests.substitutes(attempt, self.quorum - usable)
        self.sites += [site for site in substitutes if site not in self.sites]
        self.counted |= set(substitutes)
        for site in substitutes:
            self.values.pop(site, None)
            self.faults.pop(site, None)
        if attempt >= mailbox.federation.patience:
            self._pause(f"{usable} valid answers of {self.quorum} after {attempt} attempts")
            attempt = 0
        for site in self._unable:
            self.faults.pop(site, None)
        self._unable.clear()
        self._ask(self.silent)
        return attempt

    def _pause(self, why: str) -> None:
        """Pause the run until the operator resumes it."""
        mailbox = self.mailbox
        mailbox.event("paused", round=mailbox.number, why=why)
        mailbox.control.pause(why)
        mailbox.control.wait()
        mailbox.event("resumed", round=mailbox.number)

    def _ask(self, sites: Sequence[str]) -> None:
        """Send to the sites that can be reached; the others are tried again later."""
        reachable = set(self.mailbox.transport.sites())
        for site in sites:
            if site in reachable:
                self.mailbox.send(site, self.requests.request(site))

    def _wait_while_paused(self) -> float:
        """Wait while the operator has paused the run. Returns the seconds that it took."""
        started = time.monotonic()
        self.mailbox.control.wait()
        return time.monotonic() - started


def _after(seconds: float) -> float:
    return time.monotonic() + seconds
