"""Test helper: small federations with secure aggregation, and what crosses the wire and lies on disk in them."""

from __future__ import annotations

from small_federation import COORDINATOR, SmallFederation, key_of, make_clients

import unalike as ua
from unalike.federation.protocol.envelope import unseal
from unalike.federation.secure_aggregation.sum_ledger import SumLedger
from unalike.federation.site.secure_sums import SecureSums
from unalike.federation.site.site_folder import SUMS

FOUR = ((20, 8), (12, 6), (16, 6), (9, 5))
TERMS = {"secure_aggregation": True, "threshold": 3, "grace": 0.05, "repeat": 0.05}
ALL_SITES = {"threshold": 4}
"""The threshold of methods with client states."""
EQUAL_STEPS = ALL_SITES | {"work": ua.Work(steps=3, batch_size=5, lr=0.1)}
"""Terms of SCAFFOLD, which sends each update a second time by its steps."""


def secure(folder, method="fedavg", **more):
    return SmallFederation(folder, make_clients(FOUR), method, **(TERMS | more))


class Tap:
    """A site whose requests and replies are kept: kind -> messages."""

    def __init__(self, worker):
        self.worker, self.requests, self.replies = worker, {}, {}

    def handle(self, message):
        request = unseal(message, COORDINATOR.public_key())
        kind = (
            "train"
            if request.open()[0].get("train")
            else "evaluate"
            if request.head.kind == "train"
            else request.head.kind
        )
        reply = self.worker.handle(message)
        self.requests.setdefault(kind, []).append(message)
        self.replies.setdefault(kind, []).append(reply)
        return reply


def sums_of(fed, name, run):
    """A site's secrets of a run, as they are on its disk."""
    folder = fed.folder / name
    return SecureSums(
        fed.federation, name, key_of(0), folder / run / "sums", SumLedger(folder / SUMS)
    )
