"""Signs and sends requests; matches incoming envelopes to open requests, records all others."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from unalike.core.codec import Facts, Limits, Malformed
from unalike.core.types import Tree
from unalike.federation.coordinator.run_control import Control
from unalike.federation.protocol.envelope import Envelope, Head, identity, seal, unseal
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import ANSWER, NOTICE
from unalike.federation.protocol.transport import Transport
from unalike.federation.security.keys import PrivateKey, public_key

Place = tuple[int, int]
"""The step of the plan, counted from 1, and the round in it; (0, 0) is the admission."""
Request = tuple[str, Facts, Tree]
"""Kind, facts and tensors."""

REQUESTS_PER_SITE = 8
"""Requests to each site whose answers are still known as late."""
NOTED = 20
"""Messages of a site in one exchange that are recorded as refused or late; a site that sends more cannot fill the disk."""


@dataclass
class PendingRequest:
    """A request that went out: to which place, whether it is still open, and the answer that was taken in."""

    place: Place
    open: bool = True
    answer: str | None = None


class Mailbox:
    """Signs requests, and sorts what arrives: answers to open requests, byte-identical repetitions, and everything else.

    `members` are the sites that take part in the run; None before it is known.
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
    ):
        self.federation, self.key, self.transport, self.run = federation, key, transport, run
        self.control, self.event, self.members = control, event, members
        self.limits = Limits(bytes=federation.message_bytes)
        self.place: Place = (0, 0)
        self.last_seen: dict[str, float] = {}
        """Site -> when it was last connected, by the monotonic clock; when it was first missed, if it never was."""
        self.departed: set[str] = set()
        """Sites of which an event says that they are offline, and that have not connected since."""
        self.number = 0
        """The round of the run's history that is on its way: what events say."""
        self.client_of = {site.name: number for number, site in enumerate(federation.sites)}
        """Site -> the number of its client."""
        self._keys = {site.name: public_key(site.key) for site in federation.sites}
        self._sent: dict[str, OrderedDict[str, PendingRequest]] = {
            name: OrderedDict() for name in self._keys
        }
        self._noted: Counter[str] = Counter()

    def begin(self, place: Place) -> None:
        """Open `place` for requests, and close all earlier requests."""
        self.place = place
        self._noted.clear()
        for requests in self._sent.values():
            for sent in requests.values():
                sent.open = False

    def send(self, site: str, request: Request) -> None:
        """Sign and send; a request that is repeated is the same to the byte, another one takes the place of the one before."""
        kind, facts, tensors = request
        message = seal(Head(self.run, *self.place, site, kind), facts, tensors, self.key)
        for sent in self._sent[site].values():
            sent.open = False
        self._sent[site].setdefault(identity(message), PendingRequest(self.place)).open = True
        while len(self._sent[site]) > REQUESTS_PER_SITE:
            self._sent[site].popitem(last=False)
        self.transport.send(site, message)

    def connected(self) -> set[str]:
        """The sites that have connected since the last call. Those that do not take part in the run are told so."""
        anew = set(self.transport.connected())
        self.departed -= anew
        for site in anew:
            self.note("connected", site, "a new connection")
        for site in anew.difference(anew if self.members is None else self.members):
            self.note("not in this run", site, "the run began without it")
            self.notify([site], "late")
        return anew

    def notify(self, sites: Collection[str], what: str, seconds: float = 0.0) -> None:
        """Send sites one of the `NOTICES`, and wait so long at most for their answers, which a later run would refuse."""
        for site in sites:
            self.send(site, (NOTICE, {"what": what}, {}))
        waiting, deadline = {*sites}, time.monotonic() + seconds
        while waiting and (left := deadline - time.monotonic()) > 0:
            waiting -= {site for site, _ in self.receive(left)}

    def receive(self, seconds: float) -> Iterator[tuple[str, Envelope]]:
        """The first answers to open requests among what arrives, one at a time: not all of them lie in memory at once."""
        arrived = (
            (site, self._sorted(site, message)) for site, message in self.transport.receive(seconds)
        )
        return ((site, answer) for site, answer in arrived if answer is not None)

    def note(self, kind: str, site: str, why: str, **facts: Any) -> None:
        """Record something about a site, but not without end."""
        self._noted[site] += 1
        self.control.late[site] += kind == "late"
        if self._noted[site] <= NOTED:
            self.event(kind, round=self.number, client=site, why=why, **facts)

    def _sorted(self, site: str, message: bytes | Malformed) -> Envelope | None:
        enrolled = self.federation.site(site)
        if enrolled is None or enrolled.revoked:
            self.note("refused", site[:64], "not enrolled" if enrolled is None else "revoked")
            return None
        try:
            if isinstance(message, Malformed):
                raise message
            answer = unseal(message, self._keys[site], self.limits)
        except Malformed as error:
            self.note("refused", site, str(error))
            return None
        head, sent = answer.head, self._sent[site].get(answer.head.answers)
        self.control.last_answers[site] = time.time()
        if head.site != site:
            self.note("refused", site, f"signed as {head.site!r}")
        elif head.run != self.run:
            self.note(
                "refused",
                site,
                f"of run {head.run}; expected {self.run}: a replay, or another federation",
            )
        elif sent is None:
            self._unasked(site, head)
        elif sent.answer == answer.digest:
            if not sent.open:
                self.note(
                    "late", site, "repeats an answer that was taken in", place=list(sent.place)
                )
        elif sent.answer is not None:
            self.note(
                "refused", site, "a second answer to one request, and another one than the first"
            )
        else:
            if head.kind == ANSWER:
                sent.answer = answer.digest
            if sent.open:
                return answer
            self.note("late", site, "the round is closed", place=list(sent.place))
        return None

    def _unasked(self, site: str, head: Head) -> None:
        if head.place > self.place:
            self.note("refused", site, "of a round that has not begun", place=list(head.place))
        elif head.place < self.place:
            self.note("late", site, "of an earlier round", place=list(head.place))
        else:
            self.note(
                "refused", site, "answers nothing that this site was asked", place=list(head.place)
            )
