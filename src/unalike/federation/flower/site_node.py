"""A site's node in Flower's SuperLink: fetches requests, lets the site worker answer them, sends the replies."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from flwr.app import ConfigRecord

from unalike.core.codec import Malformed
from unalike.federation.flower.flower_messages import pack, poll_after, unpack
from unalike.federation.flower.internals import FAILURES, FleetConnection, Incoming, reason_of

LONGEST_POLL_SECONDS = 2.0
"""Maximum seconds between two looks for a request."""
FIRST_RETRY_SECONDS = 0.5
"""Seconds between two attempts to connect; doubles up to the longest."""
LONGEST_RETRY_SECONDS = 15.0
"""Maximum seconds between two attempts to connect."""
PIECE_RETRY_SECONDS = 0.02
"""Seconds after which a piece of a request that has not arrived is asked for again."""
PIECE_SECONDS = 60.0
"""Seconds after which a request is dropped that has not arrived as a whole."""
NODE_FILE = "node"
"""The file in the site's folder with the number of its node in SuperLink."""


class SiteNode:
    """Keeps a site connected to the coordinator at `address` and answers its requests with `handle`, one at a time.

    `authority` (PEM) has signed the coordinator's certificate, `key` (OpenSSH) identifies the site. A request of more than `limit`
    bytes is dropped. `log` gets a line when the connection is made or lost, or cannot be made for another reason than before.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        authority: bytes,
        key: bytes,
        handle: Callable[[bytes], bytes],
        limit: int,
        log: Callable[[str], None],
    ):
        self.address = address
        self.handle = handle
        self.limit = limit
        self.log = log
        self._file = folder / NODE_FILE
        self._authority = authority
        self._key = key
        self._last_line = ""

    def serve(self, stopped: Event) -> None:
        """Answer requests until `stopped` is set. A lost connection is made again."""
        pause = FIRST_RETRY_SECONDS
        while not stopped.is_set():
            try:
                with self._connected() as fleet:
                    self._say(f"connected to {self.address}")
                    pause = FIRST_RETRY_SECONDS
                    # the next attempt to connect says why
                    with suppress(*FAILURES):
                        self._answer_requests(fleet, stopped)
            except (*FAILURES, OSError) as error:
                self._say(reason_of(error, self.address))
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
            stopped.wait(pause)

    @contextmanager
    def _connected(self) -> Iterator[FleetConnection]:
        """The connection of this process as the key's only node.

        First it deactivates the node that a killed process or a lost connection has left: SuperLink would refuse another one until
        it has missed some heartbeats.
        """
        with FleetConnection(self.address, self._authority, self._key) as fleet:
            number = self._file.read_text() if self._file.exists() else ""
            fleet.activate(int(number) if number.isdecimal() else None)
            self._file.write_text(str(fleet.node))
            ended = Event()
            heart = Thread(target=fleet.beat, args=(ended,), daemon=True)
            heart.start()
            try:
                yield fleet
            finally:
                ended.set()
                with suppress(*FAILURES):
                    fleet.deactivate()

    def _answer_requests(self, fleet: FleetConnection, stopped: Event) -> None:
        since = time.monotonic()
        while not stopped.is_set():
            started = time.monotonic()
            incoming = fleet.receive()
            if incoming is None:
                next_look = started + poll_after(since, LONGEST_POLL_SECONDS)
                stopped.wait(next_look - time.monotonic())
                continue
            try:
                request = self._fetched(fleet, incoming)
                if request is not None:
                    fleet.reply(incoming, pack(self.handle(request)))
            except Malformed as error:
                self.log(f"dropped a request: {error}")
            fleet.confirm(incoming)
            since = time.monotonic()

    def _fetched(self, fleet: FleetConnection, incoming: Incoming) -> bytes | None:
        """The request; None if it does not arrive."""

        def pull(piece: str) -> ConfigRecord | None:
            return fleet.pull(incoming, piece)

        deadline = time.monotonic() + PIECE_SECONDS
        while time.monotonic() < deadline:
            request = unpack(incoming.pieces, pull, self.limit)
            if request is not None:
                return request
            time.sleep(PIECE_RETRY_SECONDS)
        return None

    def _say(self, line: str) -> None:
        """Log a line, unless it repeats the one before."""
        if line != self._last_line:
            self._last_line = line
            self.log(line)
