"""The coordinator's transport over the messages of a Flower run."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import TypeVar

from flwr.app import Message

from unalike._utils.errors import UnalikeError
from unalike.core.codec import Malformed
from unalike.federation.flower.flower_messages import TRAIN, pack, poll_after, unpack
from unalike.federation.flower.internals import FAILURES, Incoming, RunMessages

T = TypeVar("T")

LONGEST_POLL = 0.3
"""Maximum seconds between two looks for replies."""
REFRESH = 1.0
"""Seconds between two requests for the connected nodes."""
MAX_UNANSWERED = 4
"""Maximum of unanswered messages to a site, so that a site that hangs does not fill SuperLink's memory."""
TOGETHER = 16 << 20
"""Bytes from which on messages are sent; smaller ones are collected and sent together."""
TTL = 24 * 3600.0
GIVE_UP_SECONDS = 120.0
"""Seconds without an answer from SuperLink after which the run fails."""


@dataclass
class SiteConnection:
    """An enrolled site: its node id, the time of its activation, and the ids of messages that it has not answered."""

    node: int | None = None
    since: str = ""
    sent: set[str] = field(default_factory=set)


class GridTransport:
    """Transport to the enrolled sites (`keys`: public keys, PEM, by name) over the messages of a Flower run.

    A reply of more than `limit` bytes is not loaded. An error of Flower counts as a lost message, unless errors persist. `check` is
    called while waiting, and raises if a process that is needed has ended.
    """

    def __init__(
        self,
        messages: RunMessages,
        keys: Mapping[str, bytes],
        limit: int,
        check: Callable[[], None] = lambda: None,
    ):
        self.messages, self.limit, self.check = messages, limit, check
        self._names = {key.strip(): name for name, key in keys.items()}
        self._sites = {name: SiteConnection() for name in keys}
        self._online: list[str] = []
        self._connected: set[str] = set()
        self._outgoing: list[tuple[str, int, bytes]] = []
        self._incoming: list[tuple[str, Incoming]] = []
        self._refreshed = -REFRESH
        self._since = 0.0
        """When something was last sent or received."""
        self._failing: float | None = None
        self._lock = RLock()

    def sites(self) -> Collection[str]:
        """Names of the enrolled sites that are connected now. Thread-safe."""
        with self._lock:
            if time.monotonic() - self._refreshed > REFRESH:
                self._refresh()
            return list(self._online)

    def connected(self) -> Collection[str]:
        """Names of the sites that have connected since the last call. What was sent to them before is lost."""
        with self._lock:
            self.sites()
            found, self._connected = self._connected, set()
            return found

    def send(self, site: str, message: bytes) -> None:
        """Send with the other messages to sites, at the latest when replies are received."""
        with self._lock:
            to, queued = self._sites[site], sum(name == site for name, _, _ in self._outgoing)
            if to.node is not None and len(to.sent) + queued < MAX_UNANSWERED:
                self._outgoing.append((site, to.node, message))
            if sum(len(queued) for _, _, queued in self._outgoing) >= TOGETHER:
                self.flush()

    def flush(self) -> None:
        """Send the collected messages now."""
        with self._lock:
            outgoing, self._outgoing = self._outgoing, []
            if not outgoing:
                return
            self._since = time.monotonic()
            made = [Message(pack(message), node, TRAIN, ttl=TTL) for _, node, message in outgoing]
            numbers = self._call(lambda: self.messages.push(made)) or []
            for (name, _, _), number in zip(outgoing, numbers):
                if number:
                    self._sites[name].sent.add(number)

    def receive(self, seconds: float) -> Iterator[tuple[str, bytes | Malformed]]:
        """Messages that have arrived; waits at most `seconds` for the first one."""
        deadline, arrived = time.monotonic() + seconds, False
        while True:
            self.check()
            with self._lock:
                self.flush()
                self._look()
            for name, reply in list(self._incoming):
                with self._lock:
                    message = self._fetched(reply)
                    if message is None:
                        continue
                    self._incoming.remove((name, reply))
                arrived, self._since = True, time.monotonic()
                try:
                    yield name, message
                finally:
                    with self._lock:
                        self._call(partial(self.messages.confirm, reply))
            left = deadline - time.monotonic()
            if arrived or left <= 0:
                return
            time.sleep(min(poll_after(self._since, LONGEST_POLL), left))

    def close(self, seconds: float) -> None:
        """Wait until the connected sites have answered what was sent last, `seconds` at most."""
        deadline = time.monotonic() + seconds
        self.flush()
        while time.monotonic() < deadline and any(self._sites[name].sent for name in self.sites()):
            list(self.receive(LONGEST_POLL))

    def _refresh(self) -> None:
        nodes = self._call(self.messages.nodes)
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
            if (site.node, site.since) != (
                node.node_id,
                since,
            ):  # it has restarted: what it was sent before is lost
                site.node, site.since, site.sent = node.node_id, since, set()
                self._connected.add(name)
            if node.status == "online":
                self._online.append(name)

    def _look(self) -> None:
        """Look for new replies."""
        waiting = {number: name for name, site in self._sites.items() for number in site.sent}
        for reply in (
            self._call(lambda: self.messages.replies(waiting)) if waiting else None
        ) or []:
            name = waiting.get(reply.answers)
            if name is not None:
                self._sites[name].sent.discard(reply.answers)
                if not reply.message.has_error():
                    self._incoming.append((name, reply))

    def _fetched(self, reply: Incoming) -> bytes | Malformed | None:
        """The message in a reply, or the reason why it cannot be had; None if it has not arrived yet."""
        try:
            return self._call(
                lambda: unpack(
                    reply.pieces, lambda piece: self.messages.pull(reply, piece), self.limit
                )
            )
        except Malformed as error:
            return error

    def _call(self, call: Callable[[], T]) -> T | None:
        """The result of a call to Flower; None if it fails. Raises `UnalikeError` if calls have failed for long."""
        try:
            found = call()
        except Malformed:
            raise
        except FAILURES as error:
            now = time.monotonic()
            self._failing = now if self._failing is None else self._failing
            if now - self._failing > GIVE_UP_SECONDS:
                raise UnalikeError(
                    f"Flower's SuperLink has not answered for {GIVE_UP_SECONDS:.0f} s: {error}; look into its log"
                ) from error
            return None
        self._failing = None
        return found
