"""An exchange: requests to many sites, until all have answered, or by the deadline a quorum of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from unalike._utils.errors import UnalikeError
from unalike.core.codec import Facts, Malformed
from unalike.core.types import Tree
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.protocol.envelope import Envelope
from unalike.federation.protocol.messages import ANSWER, REASONS

T = TypeVar("T")

POLL = 0.5
"""Seconds between two looks at which sites are connected."""


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

    def check(self) -> None:
        """Called when all have answered, or at the deadline. An error ends the exchange: its request should not have been sent."""

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
    the federation file the run is paused, until enough sites are back. At each attempt the sites that were unable are asked again.

    `sites` are asked; a quorum of those that are `counted` must give usable answers: `enough` of their number,
    or what the federation file says. `values` are usable answers by site, `faults` say what went wrong.
    """

    mailbox: Mailbox
    place: Place
    requests: Requests[T]
    sites: list[str]
    counted: set[str]
    values: dict[str, T] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    enough: Callable[[int], int] | None = None
    _refused: set[str] = field(default_factory=set, init=False)
    _unable: set[str] = field(default_factory=set, init=False)
    """Sites that were unable and have not been asked again."""
    _repeat_at: float = field(default=0.0, init=False)

    def run(self) -> Self:
        """Send all requests, and wait for all answers, or by the deadline for a quorum of them."""
        self.mailbox.control.wait()
        self.mailbox.begin(self.place)
        self.mailbox.connected()
        self._ask(self.sites)
        self._repeat_at = _after(self.mailbox.federation.repeat)
        self._collect()
        self.requests.check()
        attempt = 0
        while not self._has_quorum():
            attempt = self._ask_again(attempt + 1)
            self._collect()
            self.requests.check()
        for site in self.silent:
            away = f"offline for {self._offline(site):.0f} s, not waited for"
            why = away if self._is_gone(site) else "no answer by the deadline"
            self.faults[site] = f"absent: {why}"
            if site not in self.mailbox.departed:
                self.mailbox.note("absent", site, why)
            if self._is_gone(site):
                self.mailbox.departed.add(site)
        return self

    def _collect(self) -> None:
        """Read answers until every site has answered, or to the deadline; repeat requests without an answer.

        With a quorum, sites that have been offline for the grace time are not waited for.
        """
        federation = self.mailbox.federation
        deadline = _after(federation.deadline)
        while True:
            before = time.monotonic()
            self.mailbox.control.wait()
            paused = time.monotonic() - before
            deadline, self._repeat_at = deadline + paused, self._repeat_at + paused
            silent, late = self.silent, time.monotonic() >= deadline
            if (
                not silent
                or late
                or (self._usable >= self.quorum and all(map(self._is_gone, silent)))
            ):
                return
            if time.monotonic() >= self._repeat_at:
                self._ask(silent)
                self._repeat_at = _after(federation.repeat)
            elif anew := self.mailbox.connected():
                self._ask([site for site in silent if site in anew])
            seconds = min(deadline, self._repeat_at, _after(POLL)) - time.monotonic()
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
                raise Malformed(
                    f"{answer.head.kind}: {REASONS.get(str(facts.get('code')), REASONS['error'])}"
                )
            value = self.requests.read(site, facts, tensors)
        except UnalikeError as error:
            self._refuse(site, str(error))
        else:
            self.values[site] = self.requests.store(site, value)

    def _refuse(self, site: str, why: str) -> None:
        self._refused |= {site} - self._unable
        self.faults[site] = f"refused: {why}"
        self.mailbox.note("refused", site, why)

    @property
    def quorum(self) -> int:
        """The usable answers that are needed. A share is one of the sites that were not refused: none stops the others."""
        federation, counted = self.mailbox.federation, len(self.counted)
        refused = 0 if isinstance(federation.quorum, int) else len(self.counted & self._refused)
        return (self.enough or federation.enough)(max(min(counted, 1), counted - refused))

    def _offline(self, site: str) -> float:
        """The seconds for which a site has not been connected, by what this exchange and earlier ones saw; 0 while it is."""
        seen, now = self.mailbox.last_seen, time.monotonic()
        seen |= dict.fromkeys(self.mailbox.transport.sites(), now)
        return now - seen.setdefault(site, now)

    def _is_gone(self, site: str) -> bool:
        return self._offline(site) > self.mailbox.federation.grace

    @property
    def _usable(self) -> int:
        return len(self.counted & self.values.keys())

    def _has_quorum(self) -> bool:
        """Whether enough answers are left when those are refused that stand out among the others."""
        for site, why in self.requests.outliers(self.values).items():
            del self.values[site]
            self._refuse(site, why)
        return self._usable >= self.quorum

    def _ask_again(self, attempt: int) -> int:
        """Without a quorum: ask other sites too, or pause for the operator. Returns the attempts since the last pause."""
        mailbox, usable = self.mailbox, self._usable
        mailbox.event(
            "no quorum",
            round=mailbox.number,
            attempt=attempt,
            sound=usable,
            quorum=self.quorum,
            absent=self.silent,
        )
        substitutes = self.requests.substitutes(attempt, self.quorum - usable)
        self.sites += [site for site in substitutes if site not in self.sites]
        self.counted |= set(substitutes)
        for site in substitutes:
            self.values.pop(site, None)
            self.faults.pop(site, None)
            self._refused.discard(site)
        if attempt >= mailbox.federation.patience:
            self._pause(f"{usable} valid answers of {self.quorum} after {attempt} attempts")
            attempt = 0
        for site in self._unable:
            self.faults.pop(site, None)
        self._unable.clear()
        self._ask(self.silent)
        return attempt

    def _pause(self, why: str) -> None:
        """Pause the run until a quorum is back of the sites that are offline now, or the operator resumes it."""
        mailbox, sites = self.mailbox, self.mailbox.transport.sites
        mailbox.event("paused", round=mailbox.number, why=why)
        away = (self.counted & {*self.silent}) - {*sites()}
        mailbox.control.pause(why)
        while not mailbox.control.wait(POLL):
            if self._usable + len(away & {*sites()}) >= self.quorum and mailbox.control.why == why:
                mailbox.control.resume()
        mailbox.event("resumed", round=mailbox.number)

    def _ask(self, sites: Sequence[str]) -> None:
        """Send to the sites that can be reached; the others are tried again later."""
        reachable = set(self.mailbox.transport.sites())
        for site in sites:
            if site in reachable:
                self.mailbox.send(site, self.requests.request(site))


def _after(seconds: float) -> float:
    return time.monotonic() + seconds
