"""Signs and sends requests; matches incoming envelopes to open requests, reports all others."""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from unalike._utils.printable import printable
from unalike.core.codec import Facts, Limits, Malformed
from unalike.core.types import Tree
from unalike.federation.coordinator.run_control import Control
from unalike.federation.coordinator.silent_sites import SilentSites
from unalike.federation.protocol.envelope import Envelope, Head, identity, seal, unseal
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import ANSWER, NOTICE
from unalike.federation.protocol.transport import Transport
from unalike.federation.security.keys import PrivateKey, public_key

Place = tuple[int, int]
"""The step of the plan, counted from 1, and the round in it."""
ADMISSION: Place = (0, 0)
"""The place of requests for admission, before all steps."""

REMEMBERED_REQUESTS = 8
"""Requests to each site whose answers are still known as late."""
MAX_REPORTS = 20
"""Messages of a site in one exchange that are reported as refused or late; a site that sends more cannot fill the disk."""


class Request(NamedTuple):
    """A request before it is signed: its kind, and what the site reads, plain values and tensors."""

    kind: str
    facts: Facts
    tensors: Tree


@dataclass
class PendingRequest:
    """A request that went out: to which place and when, whether it is still open, and the digest of the answer that was taken in.

    Times are by the monotonic clock; one that is repeated was `sent` when it was sent first.
    """

    place: Place
    sent: float
    repeated: float = 0.0
    is_open: bool = True
    answer: str | None = None


class Mailbox:
    """Signs requests, and sorts what arrives: answers to open requests, byte-identical repetitions, and everything else.

    `event` writes down what happens. `members` are the sites that take part in the run; None before it is known. Other sites
    that connect get the request `admission`, whose answers wait until the coordinator asks for the `newcomers`; where there is
    none, they are told that they take no part, and an event says `why_fixed`.
    """

    def __init__(
        self,
        federation: Federation,
        key: PrivateKey,
        transport: Transport,
        run: str,
        control: Control,
        event: Callable[..., None],
        members: Collection[str] | None = None,
        admission: Request | None = None,
        why_fixed: str = "",
    ):
        self.federation = federation
        self.key = key
        self.transport = transport
        self.run = run
        self.control = control
        self.event = event
        self.members = members
        self.admission = admission
        self.why_fixed = why_fixed
        self.limits = Limits(bytes=federation.message_bytes)
        self.place: Place = ADMISSION
        self.reply_seconds: dict[str, float] = {}
        """Site -> the seconds from its last request until its answer."""
        self.answered_at: dict[str, float] = {}
        """Site -> the time at which its last answer came, by the monotonic clock."""
        self._under_way: Mapping[str, Place] = {}
        """Member -> the place of its request, if that is an earlier one than `place`."""
        self._asked_to_join: set[str] = set()
        """Sites that got the request for admission after the run had begun."""
        self._early: dict[str, Envelope] = {}
        """Site -> its answer, which came when it was not awaited."""
        self.departed: set[str] = set()
        """Sites of which an event says that they are offline, and that have not connected since."""
        self.silent_sites = SilentSites()
        self.number = 0
        """The round of the run's history that is on its way: what events say."""
        self.client_of = {site.name: number for number, site in enumerate(federation.sites)}
        """Site -> the number of its client."""
        self._keys = {site.name: public_key(site.key) for site in federation.sites}
        self._pending: dict[str, OrderedDict[str, PendingRequest]] = {
            name: OrderedDict() for name in self._keys
        }
        """Site -> the newest requests to it by their digest."""
        self._last_seen: dict[str, float] = {}
        """Site -> when it was last connected, by the monotonic clock; when it was first missed, if it never was."""
        self._looked_at = time.monotonic()
        self._reports: Counter[str] = Counter()

    def begin(self, place: Place, under_way: Mapping[str, Place]) -> None:
        """Open `place` for requests, and close all earlier ones but those to sites `under_way`, which have these places."""
        self.place = place
        self._under_way = under_way
        waited_for = self.under_way
        self._early = {site: self._early[site] for site in self._early if site in waited_for}
        self._reports.clear()
        for site, requests in self._pending.items():
            for pending in requests.values():
                pending.is_open = pending.is_open and site in waited_for

    @property
    def under_way(self) -> Mapping[str, Place]:
        """Site -> the place of its open request, if that is an earlier one than `place`: of a round, or the admission."""
        outsiders = self._asked_to_join.difference(self.members or ())
        return dict.fromkeys(outsiders, ADMISSION) | dict(self._under_way)

    @property
    def newcomers(self) -> list[str]:
        """The sites that are no members and have answered the request for admission."""
        return [site for site in self._early if site not in (self.members or ())]

    def forget_requests(self) -> None:
        """Requests to members may be made again, to the byte, and are answered by the same answers."""
        for site in self.members or ():
            self._pending[site].clear()
            self._early.pop(site, None)

    def send(self, site: str, request: Request) -> None:
        """Sign and send; a request that is repeated is the same to the byte, another one takes the place of the one before."""
        kind, facts, tensors = request
        place = self.under_way.get(site, self.place)
        stage, round = place
        head = Head(run=self.run, stage=stage, round=round, site=site, kind=kind)
        message = seal(head, facts, tensors, self.key)

        # One request is open at a time. The answer to an earlier one is of another model, and comes too late.
        requests = self._pending[site]
        for pending in requests.values():
            pending.is_open = False
        now = time.monotonic()
        pending = requests.setdefault(identity(message), PendingRequest(place, sent=now))
        pending.is_open = True
        pending.repeated = now
        while len(requests) > REMEMBERED_REQUESTS:
            requests.popitem(last=False)

        self.transport.send(site, message)

    def seconds_since_request(self, site: str) -> float:
        """The seconds since an open request was sent to a site, or repeated; infinite where this process has sent none."""
        times = [pending.repeated for pending in self._pending[site].values() if pending.is_open]
        return time.monotonic() - max(times, default=-math.inf)

    def asked_at(self, site: str) -> float | None:
        """The time at which the open request to a site was sent first, by the monotonic clock; None: this process has sent none."""
        times = [pending.sent for pending in self._pending[site].values() if pending.is_open]
        return min(times, default=None)

    def connected(self) -> set[str]:
        """The sites that have connected since the last call. Those that do not take part in the run may join it, or are told so."""
        new = set(self.transport.connected())
        self.departed -= new
        for site in new:
            self.report("connected", site, "a new connection")
        if self.members is not None:
            for site in sorted(new.difference(self.members)):
                self._meet(site)
        return new

    def _meet(self, site: str) -> None:
        """Ask a site that has connected after the run began for admission, or tell it that it takes no part."""
        if self.admission is None:
            self.turn_away(site, f"the run began without it, and {self.why_fixed}")
            return
        self._asked_to_join.add(site)
        self.send(site, self.admission)

    def turn_away(self, site: str, why: str) -> None:
        """Tell a site, and write down, that it takes no part in the run."""
        self.report("not in this run", site, why)
        self.notify([site], "late")

    def look(self) -> None:
        """Write down which sites are connected now; a site that was never seen is missed from this look on."""
        self._looked_at = time.monotonic()
        for site in self._keys:
            self._last_seen.setdefault(site, self._looked_at)
        for connected in self.transport.sites():
            self._last_seen[connected] = self._looked_at

    def seconds_offline(self, site: str) -> float:
        """The seconds for which a site has not been connected, by the looks until now; 0 while it is, and before the first one."""
        return self._looked_at - self._last_seen.get(site, self._looked_at)

    def notify(self, sites: Collection[str], what: str, seconds: float = 0.0) -> None:
        """Send sites one of the `NOTICES`, and wait so long at most for their answers, which a later run would refuse."""
        for site in sites:
            self.send(site, Request(NOTICE, {"what": what}, {}))
        waiting = set(sites)
        deadline = time.monotonic() + seconds
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            waiting -= {site for site, _ in self.receive(left, waiting.__contains__)}

    def receive(
        self, seconds: float, is_awaited: Callable[[str], bool]
    ) -> Iterator[tuple[str, Envelope]]:
        """The first answers to open requests among what arrives, one at a time: not all of them lie in memory at once.

        The answer of a site that is not awaited now waits here until it is, or until its request is closed.
        """
        if any(is_awaited(site) for site in self._early):
            for site in [*self._early]:
                if is_awaited(site):
                    yield site, self._early.pop(site)
            return
        for site, message in self.transport.receive(seconds):
            answer = self._open_answer(site, message)
            if answer is None:
                continue
            if is_awaited(site):
                yield site, answer
            else:
                self._early[site] = answer

    def report(self, kind: str, site: str, why: str, **details: Any) -> None:
        """Write down an event about a site, but not without end."""
        self._reports[site] += 1
        if kind == "late":
            self.control.late[site] += 1
        if self._reports[site] <= MAX_REPORTS:
            self.event(kind, round=self.number, client=site, why=printable(why), **details)

    def _open_answer(self, site: str, message: bytes | Malformed) -> Envelope | None:
        """The message, if it is the first answer to a request that is open; else None, and what is odd is reported.

        `site` is who sent it, by its authenticated connection.
        """
        # Nothing in a message counts before its signature is that of the site's enrolled key.
        answer = self._verified(site, message)
        if answer is None:
            return None
        head = answer.head
        self.control.last_answers[site] = time.time()

        # The signature is good for one site and one run.
        if head.site != site:
            self.report("refused", site, f"signed as {head.site!r}")
            return None
        if head.run != self.run:
            why = f"of run {head.run}; expected {self.run}: a replay, or another federation"
            self.report("refused", site, why)
            return None

        # It answers one request to this site, which its head names by digest.
        pending = self._pending[site].get(head.answers)
        if pending is None:
            self._report_unasked(site, head)
            return None
        place = list(pending.place)

        # A network may repeat an answer. Other bytes than the first answer's are refused, so that no site can change its mind.
        if pending.answer == answer.digest:
            if not pending.is_open:
                self.report("late", site, "repeats an answer that was taken in", place=place)
            return None
        if pending.answer is not None:
            why = "a second answer to one request, and another one than the first"
            self.report("refused", site, why)
            return None

        # A site that was unable to do what it was asked may still answer the same request.
        if head.kind == ANSWER:
            pending.answer = answer.digest
        if not pending.is_open:
            self.report("late", site, "the round is closed", place=place)
            return None
        self.answered_at[site] = time.monotonic()
        self.reply_seconds[site] = self.answered_at[site] - pending.sent
        return answer

    def _verified(self, site: str, message: bytes | Malformed) -> Envelope | None:
        """The message, if an enrolled site has signed it; else None, and the reason is reported."""
        enrolled = self.federation.site(site)
        if enrolled is None or enrolled.revoked:
            self.report("refused", site[:64], "not enrolled" if enrolled is None else "revoked")
            return None
        try:
            if isinstance(message, Malformed):
                raise message
            return unseal(message, self._keys[site], self.limits)
        except Malformed as error:
            self.report("refused", site, str(error))
            return None

    def _report_unasked(self, site: str, head: Head) -> None:
        """Report a message that answers none of the newest requests to its site."""
        place = list(head.place)
        if head.place > self.place:
            self.report("refused", site, "of a round that has not begun", place=place)
        elif head.place < self.place:
            self.report("late", site, "of an earlier round", place=place)
        else:
            self.report("refused", site, "answers nothing that this site was asked", place=place)
