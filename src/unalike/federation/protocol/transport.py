"""The transport interface: it carries bytes. The layers above tolerate loss, repetition, delay and reordering.

The coordinator sends requests to sites and receives replies; a site answers each request by `SiteWorker.handle`. The transport
names the sender of a message (from its authenticated connection), and the signature inside must agree with it.

`federation/flower` has the one that is used. The interface keeps Flower out of the coordinator, which imports nothing of it, and
lets tests lose, repeat and delay messages without a socket.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from unalike.core.codec import Malformed


class Transport(Protocol):
    """The coordinator's side."""

    def sites(self) -> Collection[str]:
        """Names of the enrolled sites that are connected now."""

    def connected(self) -> Collection[str]:
        """Names of the sites that have connected since the last call; what they were sent before may be lost."""

    def send(self, site: str, message: bytes) -> None:
        """Send without confirmation: the message may be lost, repeated or overtaken. Does not block, nor raise for a lost site.

        A transport may keep it until the next `receive`, to send messages together.
        """

    def receive(self, seconds: float) -> Iterable[tuple[str, bytes | Malformed]]:
        """Messages that have arrived, as (authenticated site, message). Waits at most `seconds` for the first one.

        Returns as soon as there is one; empty after the time. May load the messages one by one. In place of a message that is too
        large or incomplete comes the error.
        """
