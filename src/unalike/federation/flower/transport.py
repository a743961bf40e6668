"""The coordinator's transport over Flower's Grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from unalike._utils.errors import UnalikeError
from unalike.federation.flower.flower_messages import PING, TRAIN, pack, unpack

T = TypeVar("T")

POLL = 0.1
"""Seconds between two looks for replies."""
LOOK = 1.0
"""Seconds between two looks at who is there."""
SMALL = 3
"""Federations up to this many sites are kept awake between rounds, by two messages: one being answered, one behind it."""
OUTSTANDING = 4
"""Messages that a site has not answered; more are not sent, so that a site that hangs does not fill SuperLink's memory."""
PULLED = 4
"""Messages whose replies are fetched at once: Flower hands over all that are there, and they lie in memory together."""
TTL, PING_TTL = 24 * 3600.0, 60.0
SILENCE = 120.0
"""Seconds after which a SuperLink that answers nothing is given up."""


@dataclass
class SiteConnection:
    """What is known of an enrolled site: its node, since when it is there, and which messages it has not answered."""

    node: int | None = None
    since: str = ""
    sent: set[str] = field(default_factory=set)
    pings: set[str] = field(default_factory=set)


class GridTransport:
    """Bytes to and from the enrolled sites (their public keys, PEM, by name) over a Grid.

    A SuperNode that had nothing to do sleeps for 3 s before it asks again; one that has just answered asks at once. So a site is
    always given `pings` empty messages to answer beside the real ones; 0: none, which large federations want, since each costs
    requests all the time. What Flower raises is a lost message here, unless it goes on for long. `check` is called while waiting,
    and raises when a process that is needed has ended.
    """

    def __init__(
        self,
        grid: Grid,
        keys: Mapping[str, bytes],
        pings: int | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        self.grid, self.check = grid, check
        self.pings = pings if pings is not None else 2 if len(keys) <= SMALL else 0
        self._names = {key.strip(): name for name, key in keys.items()}
        self._sites = {name: SiteConnection() for name in keys}
        self._online: list[str] = []
        self._looked = -LOOK
        self._failing: float | None = None
        self._lock = RLock()

    def sites(self) -> Collection[str]:
        """The names of the enrolled sites that can be reached now. May be called from any thread."""
        with self._lock:
            if time.monotonic() - self._looked > LOOK:
                self._look()
            return list(self._online)

    def send(self, site: str, message: bytes) -> None:
        """Send and forget."""
        with self._lock:
            if len(self._sites[site].sent) < OUTSTANDING:
                self._push(site, TRAIN, pack(message))

    def receive(self, seconds: float) -> Iterator[tuple[str, bytes]]:
        """What has arrived, waiting at most so long for the first."""
        deadline, arrived = time.monotonic() + seconds, False
        while True:
            self.check()
            with self._lock:
                self._keep_awake()
                waiting = {number: name for name, site in self._sites.items() for number in site.sent | site.pings}
            for first in range(0, len(waiting), PULLED):
                with self._lock:
                    found = self._pull(dict(list(waiting.items())[first : first + PULLED]))
                while found:
                    arrived = True
                    yield found.pop(0)
            left = deadline - time.monotonic()
            if arrived or left <= 0:
                return
            time.sleep(min(POLL, left))

    def _look(self) -> None:
        nodes = self._tried(lambda: list(self.grid.get_nodes()))
        if nodes is None:
            return
        self._looked = time.monotonic()
        self._online = []
        for node in nodes:
            name = self._names.get(node.public_key.strip())
            if name is None:  # nobody has enrolled this key
                continue
            site = self._sites[name]
            since = str(node.last_activated_at)
            if (site.node, site.since) != (node.node_id, since):  # what it had before it started anew is lost
                site.node, site.since, site.sent, site.pings = node.node_id, since, set(), set()
            if node.status == "online":
                self._online.append(name)

    def _push(self, name: str, kind: str, content: RecordDict) -> None:
        site = self._sites[name]
        if site.node is None:
            return
        message = Message(content, site.node, kind, ttl=PING_TTL if kind == PING else TTL)
        [number] = self._tried(lambda: list(self.grid.push_messages([message]))) or [""]
        if number:
            (site.pings if kind == PING else site.sent).add(number)

    def _keep_awake(self) -> None:
        for name in self.sites() if self.pings else ():
            site = self._sites[name]
            while len(site.pings) < self.pings:
                before = len(site.pings)
                self._push(name, PING, RecordDict())
                if len(site.pings) == before:
                    break

    def _pull(self, waiting: Mapping[str, str]) -> list[tuple[str, bytes]]:
        """Replies to some messages, which are (number -> site)."""
        found = []
        for reply in self._tried(lambda: list(self.grid.pull_messages(list(waiting)))) or []:
            number = reply.metadata.reply_to_message_id
            name = waiting.get(number)
            if name is None:
                continue
            site = self._sites[name]
            site.sent.discard(number)
            if number in site.pings:
                site.pings.discard(number)
                continue
            if (message := unpack(reply)) is not None:
                found.append((name, message))
        return found

    def _tried(self, call: Callable[[], list[T]]) -> list[T] | None:
        """What Flower says; None where it fails. Raises `UnalikeError` when it has done nothing else for long."""
        try:
            found = call()
        except (httpx.HTTPError, RuntimeError, ValueError) as error:
            now = time.monotonic()
            self._failing = now if self._failing is None else self._failing
            if now - self._failing > SILENCE:
                raise UnalikeError(
                    f"Flower's SuperLink has not answered for {SILENCE:.0f} s: {error}; look into its log"
                ) from error
            return None
        self._failing = None
        return found
