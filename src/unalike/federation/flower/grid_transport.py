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
"""Seconds between two requests for replies."""
REFRESH = 1.0
"""Seconds between two requests for the connected nodes."""
MAX_PINGED_SITES = 3
"""With up to this many sites, two empty messages keep each site polling between rounds: one in work, one queued."""
MAX_UNANSWERED = 4
"""Maximum of unanswered messages to a site, so that a site that hangs does not fill SuperLink's memory."""
PULL_BATCH = 4
"""Messages whose replies are fetched in one request; all of these replies are in memory together."""
TTL, PING_TTL = 24 * 3600.0, 60.0
GIVE_UP_SECONDS = 120.0
"""Seconds without an answer from SuperLink after which the run fails."""


@dataclass
class SiteConnection:
    """An enrolled site: its node id, the time of its activation, and the ids of messages that it has not answered."""

    node: int | None = None
    since: str = ""
    sent: set[str] = field(default_factory=set)
    pings: set[str] = field(default_factory=set)


class GridTransport:
    """Transport to the enrolled sites (`keys`: public keys, PEM, by name) over Flower's Grid.

    An idle SuperNode sleeps for 3 s before it polls again; one that has just answered polls at once. So a site always has
    `pings` empty messages to answer besides the real ones. 0: none, for large federations, since each ping causes requests all
    the time. An error of Flower counts as a lost message, unless errors persist. `check` is called while waiting, and raises if
    a process that is needed has ended.
    """

    def __init__(
        self, grid: Grid, keys: Mapping[str, bytes], pings: int | None = None, check: Callable[[], None] = lambda: None
    ):
        self.grid, self.check = grid, check
        self.pings = pings if pings is not None else 2 if len(keys) <= MAX_PINGED_SITES else 0
        self._names = {key.strip(): name for name, key in keys.items()}
        self._sites = {name: SiteConnection() for name in keys}
        self._online: list[str] = []
        self._refreshed = -REFRESH
        self._failing: float | None = None
        self._lock = RLock()

    def sites(self) -> Collection[str]:
        """Names of the enrolled sites that are connected now. Thread-safe."""
        with self._lock:
            if time.monotonic() - self._refreshed > REFRESH:
                self._refresh()
            return list(self._online)

    def send(self, site: str, message: bytes) -> None:
        with self._lock:
            if len(self._sites[site].sent) < MAX_UNANSWERED:
                self._push(site, TRAIN, pack(message))

    def receive(self, seconds: float) -> Iterator[tuple[str, bytes]]:
        """Messages that have arrived; waits at most `seconds` for the first one."""
        deadline, arrived = time.monotonic() + seconds, False
        while True:
            self.check()
            with self._lock:
                self._send_pings()
                waiting = {number: name for name, site in self._sites.items() for number in site.sent | site.pings}
            for first in range(0, len(waiting), PULL_BATCH):
                with self._lock:
                    found = self._pull(dict(list(waiting.items())[first : first + PULL_BATCH]))
                while found:
                    arrived = True
                    yield found.pop(0)
            left = deadline - time.monotonic()
            if arrived or left <= 0:
                return
            time.sleep(min(POLL, left))

    def _refresh(self) -> None:
        nodes = self._call(lambda: list(self.grid.get_nodes()))
        if nodes is None:
            return
        self._refreshed = time.monotonic()
        self._online = []
        for node in nodes:
            name = self._names.get(node.public_key.strip())
            if name is None:  # a key that is not enrolled
                continue
            site = self._sites[name]
            since = str(node.last_activated_at)
            if (site.node, site.since) != (node.node_id, since):  # it has restarted: what it was sent before is lost
                site.node, site.since, site.sent, site.pings = node.node_id, since, set(), set()
            if node.status == "online":
                self._online.append(name)

    def _push(self, name: str, kind: str, content: RecordDict) -> None:
        site = self._sites[name]
        if site.node is None:
            return
        message = Message(content, site.node, kind, ttl=PING_TTL if kind == PING else TTL)
        [number] = self._call(lambda: list(self.grid.push_messages([message]))) or [""]
        if number:
            (site.pings if kind == PING else site.sent).add(number)

    def _send_pings(self) -> None:
        for name in self.sites() if self.pings else ():
            site = self._sites[name]
            while len(site.pings) < self.pings:
                before = len(site.pings)
                self._push(name, PING, RecordDict())
                if len(site.pings) == before:
                    break

    def _pull(self, waiting: Mapping[str, str]) -> list[tuple[str, bytes]]:
        """Fetch replies to these messages (id -> site)."""
        found = []
        for reply in self._call(lambda: list(self.grid.pull_messages(list(waiting)))) or []:
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

    def _call(self, call: Callable[[], list[T]]) -> list[T] | None:
        """The result of a call to Flower; None if it fails. Raises `UnalikeError` if calls have failed for long."""
        try:
            found = call()
        except (httpx.HTTPError, RuntimeError, ValueError) as error:
            now = time.monotonic()
            self._failing = now if self._failing is None else self._failing
            if now - self._failing > GIVE_UP_SECONDS:
                raise UnalikeError(
                    f"Flower's SuperLink has not answered for {GIVE_UP_SECONDS:.0f} s: {error}; look into its log"
                ) from error
            return None
        self._failing = None
        return found
