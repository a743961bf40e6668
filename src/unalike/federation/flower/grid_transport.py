"""The coordinator's transport over the messages of a Flower run."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import TypeVar

from flwr.app import ConfigRecord, Message

from unalike._utils.errors import UnalikeError
from unalike.core.codec import Malformed
from unalike.federation.flower.flower_messages import TRAIN, pack, poll_after, unpack
from unalike.federation.flower.internals import FAILURES, Incoming, RunMessages

T = TypeVar("T")

LONGEST_POLL_SECONDS = 0.3
"""Maximum seconds between two looks for replies."""
REFRESH_SECONDS = 1.0
"""Seconds between two requests for the connected nodes."""
MAX_UNANSWERED = 4
"""Maximum of unanswered messages to a site, and of its replies that are incomplete: a site that hangs does not fill memory."""
COLLECTED_BYTES = 16 << 20
"""Bytes from which on messages are sent; smaller ones are collected and sent together."""
MAX_LOST = 64
"""Maximum of messages to former connections of a site whose replies are still fetched, so that SuperLink keeps none of them."""
TTL_SECONDS = 24 * 3600.0
"""Seconds after which Flower drops a message that nobody has fetched."""
GIVE_UP_SECONDS = 120.0
"""Seconds without an answer from SuperLink after which the run fails."""


@dataclass
class SiteConnection:
    """An enrolled site: its node id, the time of its activation, and the ids of messages that it has not answered.

    `lost` are those to its former connections: a reply to one of them is fetched and dropped.
    """

    node: int | None = None
    since: str = ""
    unanswered: set[str] = field(default_factory=set)
    lost: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LOST))


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
        self.messages = messages
        self.limit = limit
        self.check = check
        self._names = {key.strip(): name for name, key in keys.items()}
        self._sites = {name: SiteConnection() for name in keys}
        self._online: list[str] = []
        self._connected: set[str] = set()
        self._outgoing: list[tuple[str, int, bytes]] = []
        self._incoming: list[tuple[str, Incoming]] = []
        self._refreshed = -REFRESH_SECONDS
        self._since = 0.0
        """When something was last sent or received."""
        self._failing: float | None = None
        """Since when calls to Flower have failed."""
        self._lock = RLock()

    def sites(self) -> Collection[str]:
        """Names of the enrolled sites that are connected now. Thread-safe."""
        with self._lock:
            if time.monotonic() - self._refreshed > REFRESH_SECONDS:
                self._refresh()
            return list(self._online)

    def connected(self) -> Collection[str]:
        """Names of the sites that have connected since the last call. What was sent to them before is lost."""
        with self._lock:
            self.sites()
            connected = self._connected
            self._connected = set()
            return connected

    def send(self, site: str, message: bytes) -> None:
        """Send with the other messages to sites, at the latest when replies are received."""
        with self._lock:
            connection = self._sites[site]
            queued = sum(name == site for name, _, _ in self._outgoing)
            has_room = len(connection.unanswered) + queued < MAX_UNANSWERED
            # what is not sent is lost: the exchange repeats it
            if connection.node is not None and has_room:
                self._outgoing.append((site, connection.node, message))
            if sum(len(content) for _, _, content in self._outgoing) >= COLLECTED_BYTES:
                self.flush()

    def flush(self) -> None:
        """Send the collected messages now."""
        with self._lock:
            outgoing = self._outgoing
            self._outgoing = []
            if not outgoing:
                return
            self._since = time.monotonic()
            messages = []
            for _, node, content in outgoing:
                messages.append(Message(pack(content), node, TRAIN, ttl=TTL_SECONDS))
            numbers = self._call(lambda: self.messages.push(messages)) or []
            for (name, _, _), number in zip(outgoing, numbers):
                # Flower gives no number to a message that it has not taken
                if number:
                    self._sites[name].unanswered.add(number)

    def receive(self, seconds: float) -> Iterator[tuple[str, bytes | Malformed]]:
        """Messages that have arrived; waits at most `seconds` for the first one."""
        deadline = time.monotonic() + seconds
        has_arrived = False
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
                has_arrived = True
                self._since = time.monotonic()
                try:
                    yield name, message
                finally:
                    # confirmed also where the reader stops here: SuperLink keeps it no longer
                    with self._lock:
                        self._call(partial(self.messages.confirm, reply))
            left = deadline - time.monotonic()
            if has_arrived or left <= 0:
                return
            time.sleep(min(poll_after(self._since, LONGEST_POLL_SECONDS), left))

    def close(self, seconds: float) -> None:
        """Wait until the connected sites have answered what was sent last, `seconds` at most."""
        deadline = time.monotonic() + seconds
        self.flush()
        while time.monotonic() < deadline and any(
            self._sites[name].unanswered for name in self.sites()
        ):
            list(self.receive(LONGEST_POLL_SECONDS))

    def _refresh(self) -> None:
        nodes = self._call(self.messages.nodes)
        if nodes is None:
            return
        self._refreshed = time.monotonic()
        self._online = []
        for node in nodes:
            name = self._names.get(node.public_key.strip())
            # a key that is not enrolled
            if name is None:
                continue
            site = self._sites[name]
            since = str(node.last_activated_at)
            # It has restarted: what it was sent before is lost.
            if site.node != node.node_id or site.since != since:
                site.node = node.node_id
                site.since = since
                site.lost.extend(sorted(site.unanswered))
                for number in site.unanswered:
                    self._call(partial(self.messages.withdraw, number))
                site.unanswered = set()
                self._connected.add(name)
            if node.status == "online":
                self._online.append(name)

    def _look(self) -> None:
        """Look for new replies."""
        site_of = {}
        for name, site in self._sites.items():
            for number in (*site.unanswered, *site.lost):
                site_of[number] = name
        if not site_of:
            return
        for reply in self._call(lambda: self.messages.replies(site_of)) or []:
            sender = site_of.get(reply.answers)
            if sender is None:
                continue
            site = self._sites[sender]
            if reply.answers in site.lost:
                site.lost.remove(reply.answers)
                self._call(partial(self.messages.confirm, reply))
                continue
            site.unanswered.discard(reply.answers)
            if not reply.message.has_error():
                self._incoming.append((sender, reply))
                self._drop_incomplete(sender)

    def _drop_incomplete(self, sender: str) -> None:
        """Drop the oldest replies of a site that were not read yet, where it has sent further ones since."""
        replies = [reply for name, reply in self._incoming if name == sender]
        for reply in replies[:-MAX_UNANSWERED]:
            self._incoming.remove((sender, reply))
            self._call(partial(self.messages.confirm, reply))

    def _fetched(self, reply: Incoming) -> bytes | Malformed | None:
        """The message in a reply, or the reason why it cannot be had; None if it has not arrived yet."""

        def pull(piece: str) -> ConfigRecord | None:
            return self.messages.pull(reply, piece)

        try:
            return self._call(lambda: unpack(reply.pieces, pull, self.limit))
        except Malformed as error:
            return error

    def _call(self, call: Callable[[], T]) -> T | None:
        """The result of a call to Flower; None if it fails. Raises `UnalikeError` if calls have failed for long."""
        try:
            result = call()
        except Malformed:
            raise
        except FAILURES as error:
            now = time.monotonic()
            if self._failing is None:
                self._failing = now
            if now - self._failing > GIVE_UP_SECONDS:
                raise UnalikeError(
                    f"Flower's SuperLink has not answered for {GIVE_UP_SECONDS:.0f} s: {error}; look into its log"
                ) from error
            return None
        self._failing = None
        return result
