"""An exchange: requests to many sites, until all have answered, or as many as it awaits, or by the deadline a quorum of them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Self, TypeVar

from unalike._utils.errors import UnalikeError
from unalike._utils.printable import printable
from unalike.core.codec import Facts, Malformed
from unalike.core.types import Tree
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.protocol.envelope import Envelope
from unalike.federation.protocol.messages import ANSWER, REASONS

T = TypeVar("T")

POLL_SECONDS = 0.5
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

    def check(self) -> None:
        """Called when all have answered, or at the deadline. An error ends the exchange: its request should not have been sent."""

    def outliers(self, values: Mapping[str, T]) -> Mapping[str, str]:
        """The sites whose value is refused after comparison with the others, with the reason."""
        return {}

    def substitutes(self, attempt: int, lacking: int) -> Sequence[str]:
        """Other sites to ask as well, where so many answers are lacking for a quorum."""
        return ()

    def handle_unable(self, site: str) -> None:
        """Prepare for the next request to a site that could not carry out its request (a full disk, a lost file)."""


@dataclass
class SameRequest(Requests[T]):
    """One request, the same for all sites; `value_of` reads an answer, `outliers_of` says which values stand out."""

    content: Request
    value_of: Callable[[str, Facts, Tree], T]
    outliers_of: Callable[[Mapping[str, T]], Mapping[str, str]] = lambda values: {}

    def request(self, site: str) -> Request:
        return self.content

    def read(self, site: str, facts: Facts, tensors: Tree) -> T:
        return self.value_of(site, facts, tensors)

    def outliers(self, values: Mapping[str, T]) -> Mapping[str, str]:
        return self.outliers_of(values)


@dataclass
class Exchange(Generic[T]):
    """Requests to many sites, and their answers.

    Without a quorum by the deadline the deadline is extended, substitutes are asked in addition, and after `patience` attempts of
    the federation file the run is paused, until enough sites are back. At each attempt the sites that were unable are asked again.

    `sites` are asked; a quorum of those that are `counted` must give usable answers: `answers_needed` for their number,
    or what the federation file says. With `awaited` usable answers of these the exchange ends: the others are still under way.

    Sites `under_way` have an open request of an earlier exchange, with this place. Those among `sites` are not asked anew, and
    their answers count like those of the others; the answers of others wait for a later exchange.

    `values` are usable answers by site, `seconds` the times until they came, `faults` say what went wrong, `absent` are those of
    them that did not answer.
    """

    mailbox: Mailbox
    place: Place
    requests: Requests[T]
    sites: list[str]
    counted: set[str]
    answers_needed: Callable[[int], int] | None = None
    awaited: float = inf
    under_way: Mapping[str, Place] = field(default_factory=dict)
    values: dict[str, T] = field(default_factory=dict, init=False)
    seconds: dict[str, float] = field(default_factory=dict, init=False)
    faults: dict[str, str] = field(default_factory=dict, init=False)
    absent: set[str] = field(default_factory=set, init=False)
    _refused: set[str] = field(default_factory=set, init=False)
    _unable: set[str] = field(default_factory=set, init=False)
    """Sites that were unable and have not been asked again."""
    _repeat_at: float = field(default=0.0, init=False)

    def run(self) -> Self:
        """Send all requests, and wait for all answers that are awaited, or by the deadline for a quorum of them."""
        # While the operator has the run paused, no request leaves.
        self.mailbox.control.wait()

        # Requests of an earlier place are closed first: whatever still answers them comes too late.
        self.mailbox.begin(self.place, self.under_way)

        # All sites are asked now. Only those that connect after this look may have missed their request. Those under way have
        # theirs, unless it is time to repeat it.
        reconnected = self.mailbox.connected()
        self._ask([site for site in self.sites if self._is_asked_now(site, reconnected)])
        self._repeat_at = _after(self.mailbox.federation.repeat)
        self._collect()

        # Too few usable answers do not fail a run: silent sites get more time, and others are asked as well.
        attempt = 0
        while not self._has_quorum:
            attempt = self._ask_again(attempt + 1)
            self._collect()

        self._report_silent_sites()
        return self

    def _is_asked_now(self, site: str, reconnected: Collection[str]) -> bool:
        """Whether a site gets its request at the beginning of the exchange."""
        if site not in self.under_way or site in reconnected:
            return True
        return self.mailbox.seconds_since_request(site) >= self.mailbox.federation.repeat

    def _collect(self) -> None:
        """Read answers until they are complete or late, then look at them all together."""
        while True:
            self._receive_answers()
            had_enough = self._has_enough
            # The model that was sent comes first: if it is no good, its updates say nothing about the sites.
            self.requests.check()
            self._refuse_outliers()
            # Where one of the first answers is refused, the next one takes its place.
            if self._has_enough or not had_enough:
                return

    def _receive_answers(self) -> None:
        """Read answers until every site has answered, or to the deadline; repeat requests without an answer.

        With a quorum, sites that have been offline for the grace time, or silent in request after request, are not waited for.
        """
        federation = self.mailbox.federation
        deadline = _after(federation.deadline)
        while True:
            # The time of a pause counts for no site: it moves the deadline.
            before = time.monotonic()
            self.mailbox.control.wait()
            paused = time.monotonic() - before
            deadline += paused
            self._repeat_at += paused

            self.mailbox.look()
            silent = self.silent
            if not silent or self._has_enough or time.monotonic() >= deadline:
                return
            if self._has_quorum and not any(self._is_waited_for(site) for site in silent):
                return

            # A request or its answer may be lost, and a site that has restarted knows nothing of its request.
            if time.monotonic() >= self._repeat_at:
                self._ask(silent)
                self._repeat_at = _after(federation.repeat)
            else:
                reconnected = self.mailbox.connected()
                if reconnected:
                    self._ask([site for site in silent if site in reconnected])

            next_look = min(deadline, self._repeat_at, _after(POLL_SECONDS))
            seconds = max(0.0, next_look - time.monotonic())
            for site, answer in self.mailbox.receive(seconds, self._is_awaited):
                self._take(site, answer)

    @property
    def silent(self) -> list[str]:
        """The sites that have not answered yet."""
        return [site for site in self.sites if site not in self.values and site not in self.faults]

    def _take(self, site: str, answer: Envelope) -> None:
        """Check an answer and keep its value; a site whose answer is refused is out of this exchange."""
        try:
            facts, tensors = answer.open(self.mailbox.limits)
            if answer.head.kind != ANSWER:
                self._unable.add(site)
                self.requests.handle_unable(site)
                reason = REASONS.get(str(facts.get("code")), REASONS["error"])
                raise Malformed(f"{answer.head.kind}: {reason}")
            value = self.requests.read(site, facts, tensors)
        except UnalikeError as error:
            self._refuse(site, str(error))
        else:
            # outside of the `try`: a full disk of the coordinator is no fault of the site
            self.values[site] = self.requests.store(site, value)
            self.seconds[site] = self.mailbox.reply_seconds[site]

    def _refuse(self, site: str, why: str) -> None:
        # Who was unable may still answer, so that it counts for the quorum as one who is silent.
        if site not in self._unable:
            self._refused.add(site)
        self.faults[site] = f"refused: {printable(why)}"
        self.mailbox.report("refused", site, why)

    def _refuse_outliers(self) -> None:
        """Refuse the answers that stand out among the others."""
        for site, why in self.requests.outliers(self.values).items():
            del self.values[site]
            self._refuse(site, why)

    @property
    def quorum(self) -> int:
        """The usable answers that are needed. A share is one of the sites that were not refused: half of the sites stop no others.

        Where more are refused, something else is wrong than these sites.
        """
        federation = self.mailbox.federation
        counted = len(self.counted)
        refused = 0
        if not isinstance(federation.quorum, int):
            refused = min(len(self.counted & self._refused), counted // 2)
        answers_needed = self.answers_needed or federation.answers_needed
        return answers_needed(max(min(counted, 1), counted - refused))

    @property
    def _usable(self) -> int:
        return len(self.counted & self.values.keys())

    @property
    def _has_quorum(self) -> bool:
        return self._usable >= self.quorum

    @property
    def _has_enough(self) -> bool:
        """Whether no further answer is awaited: the sites that are silent are under way."""
        return self._usable >= self.awaited

    def _is_awaited(self, site: str) -> bool:
        """Whether the answer of a site is taken in now."""
        return not self._has_enough and site in self.silent

    def _has_left(self, site: str) -> bool:
        """Whether a site has been offline for longer than the grace time."""
        return self.mailbox.seconds_offline(site) > self.mailbox.federation.grace

    def _is_waited_for(self, site: str) -> bool:
        """Whether a round with a quorum waits for a site."""
        return not self._has_left(site) and self.mailbox.silent_sites.is_waited_for(site)

    def _report_silent_sites(self) -> None:
        """Say of each site without an answer why; of one that is not waited for only once, not in every round."""
        silent_sites = self.mailbox.silent_sites
        silent = self.silent
        for site in self.sites:
            if site not in silent:
                silent_sites.note_answer(site)
        if self._has_enough:
            return
        for site in silent:
            is_news = site not in self.mailbox.departed
            if self._has_left(site):
                offline = self.mailbox.seconds_offline(site)
                why = f"offline for {offline:.0f} s, not waited for"
                self.mailbox.departed.add(site)
            elif silent_sites.is_waited_for(site):
                why = "no answer by the deadline"
                skips = silent_sites.note_silence(site)
                if skips:
                    why += f"; the next {skips} requests do not wait for it: look after it, or revoke it"
            else:
                is_news = False
                why = "no answer, not waited for"
                silent_sites.note_skip(site)
            self.absent.add(site)
            self.faults[site] = f"absent: {why}"
            if is_news:
                self.mailbox.report("absent", site, why)

    def _ask_again(self, attempt: int) -> int:
        """Without a quorum: ask other sites too, or pause for the operator. Returns the attempts since the last pause."""
        mailbox = self.mailbox
        usable = self._usable
        mailbox.event(
            "no quorum",
            round=mailbox.number,
            attempt=attempt,
            sound=usable,
            quorum=self.quorum,
            absent=self.silent,
        )

        # A substitute has answered already where it only evaluated: its new request has another answer.
        substitutes = self.requests.substitutes(attempt, lacking=self.quorum - usable)
        self.sites += [site for site in substitutes if site not in self.sites]
        self.counted |= set(substitutes)
        for site in substitutes:
            self.values.pop(site, None)
            self.faults.pop(site, None)
            self._refused.discard(site)

        if attempt >= mailbox.federation.patience:
            self._pause(f"{usable} valid answers of {self.quorum} after {attempt} attempts")
            attempt = 0

        # What kept a site from answering, such as a full disk, may be over by now.
        for site in self._unable:
            self.faults.pop(site, None)
        self._unable.clear()
        self._ask(self.silent)
        return attempt

    def _pause(self, why: str) -> None:
        """Pause the run until a quorum has answered or is back of those that are offline now, or the operator resumes it."""
        mailbox = self.mailbox
        mailbox.event("paused", round=mailbox.number, why=why)
        away = (self.counted & set(self.silent)) - set(mailbox.transport.sites())
        mailbox.control.pause(why)
        while not mailbox.control.wait(POLL_SECONDS):
            # A pause for another reason is the operator's, who ends it.
            if mailbox.control.why != why:
                continue
            # a slow network may bring the answers that were waited for
            for site, answer in mailbox.receive(0.0, self._is_awaited):
                self._take(site, answer)
            back = (away & set(mailbox.transport.sites())) - self.values.keys()
            if self._usable + len(back) >= self.quorum:
                mailbox.control.resume()
        mailbox.event("resumed", round=mailbox.number)

    def _ask(self, sites: Sequence[str]) -> None:
        """Send to the sites that can be reached; the others are tried again later."""
        reachable = set(self.mailbox.transport.sites())
        for site in sites:
            if site in reachable:
                self.mailbox.send(site, self.requests.request(site))


def _after(seconds: float) -> float:
    """The time in so many seconds, by the monotonic clock."""
    return time.monotonic() + seconds
