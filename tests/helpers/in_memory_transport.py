"""Test helper: a transport within this process that simulates network faults from a seed, for tests and benchmarks.

Its time passes in ticks: each `receive` advances by at least one. So a test of delays takes no time and is reproducible.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from unalike._utils import seeds
from unalike.federation.site.site_worker import SiteWorker


@dataclass(frozen=True)
class NetworkFaults:
    """Probabilities that a message is lost, arrives twice, or has a byte changed; and its maximum `delay` in ticks.

    Delays are random, so messages overtake each other.
    """

    loss: float = 0.0
    repeat: float = 0.0
    corrupt: float = 0.0
    delay: int = 0


@dataclass
class InMemoryTransport:
    """Connects to sites in this process. Those in `offline` get and send nothing; the set may change at any time."""

    handlers: Mapping[str, SiteWorker]
    faults: NetworkFaults = NetworkFaults()
    seed: int = 0
    offline: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._rng = seeds.generator(self.seed, "transport")
        self._tick, self._number = 0, 0
        self._online: set[str] = set()
        self._under_way: list[tuple[int, int, bool, str, bytes]] = []

    def sites(self) -> Collection[str]:
        return [name for name in self.handlers if name not in self.offline]

    def connected(self) -> Collection[str]:
        before, self._online = self._online, set(self.sites())
        return self._online - before

    def send(self, site: str, message: bytes) -> None:
        if site not in self.offline:
            self._transmit(False, site, message)

    def close(self) -> None:
        """Let the sites have the last messages."""
        while self._under_way:
            self.receive(0.0)

    def receive(self, seconds: float) -> list[tuple[str, bytes]]:
        if not self._under_way:
            time.sleep(min(seconds, 0.01))
            return []
        self._tick = max(self._tick + 1, self._under_way[0][0])
        arrived = []
        while self._under_way and self._under_way[0][0] <= self._tick:
            *_, back, site, message = heapq.heappop(self._under_way)
            if site in self.offline:
                continue
            if back:
                arrived.append((site, message))
            else:
                self._transmit(True, site, self.handlers[site].handle(message))
        return arrived

    def inject(self, site: str, message: bytes) -> None:
        """Deliver a message to the coordinator as if the site had sent it."""
        self._schedule(True, site, message, 0)

    def _transmit(self, back: bool, site: str, message: bytes) -> None:
        faults, rng = self.faults, self._rng
        for _ in range(1 + (rng.random() < faults.repeat)):
            if rng.random() < faults.loss:
                continue
            sent = _corrupted(message, rng) if rng.random() < faults.corrupt else message
            self._schedule(back, site, sent, int(rng.integers(0, faults.delay + 1)))

    def _schedule(self, back: bool, site: str, message: bytes, delay: int) -> None:
        self._number += 1
        heapq.heappush(self._under_way, (self._tick + delay, self._number, back, site, message))


def _corrupted(message: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(message)))
    return (
        message[:place] + bytes([message[place] ^ int(rng.integers(1, 256))]) + message[place + 1 :]
    )
