"""What a transport is: bytes in, bytes out. Everything above it survives loss, repetition, delay and reordering.

The coordinator sends each site requests and takes what comes back; a site answers each request by `handle`. Who a message comes
from is the transport's word (an authenticated connection), and the signature inside must agree with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol


class Transport(Protocol):
    """The coordinator's side."""

    def sites(self) -> Collection[str]:
        """The names of the enrolled sites that can be reached now."""

    def send(self, site: str, message: bytes) -> None:
        """Send and forget: the message may be lost, repeated or overtaken. Never blocks for long, never raises for a lost site."""

    def receive(self, seconds: float) -> Iterable[tuple[str, bytes]]:
        """What has arrived, as (site as the transport authenticated it, message), waiting at most so long for the first.

        Ends early as soon as anything is there; nothing within the time gives nothing. The bodies need not be there at once.
        """


class Handler(Protocol):
    """The site's side: `unalike.federation.site.site_worker.Trainer`."""

    def handle(self, message: bytes) -> bytes:
        """One request, one reply. Idempotent: a repeated request has the same reply, to the byte."""
