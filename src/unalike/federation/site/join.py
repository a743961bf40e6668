"""A site takes part: its data and its memory in this process, Flower's SuperNode and the relay as children beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.locks import locked
from unalike.federation.operations import local_socket
from unalike.federation.operations.processes import Supervisor
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.transport import Handler
from unalike.federation.security.bundle import Bundle
from unalike.federation.site.site_data import site_data

Tell = Callable[[str], None]

REST, LONGEST_REST = 3.0, 15.0
"""Seconds between two attempts to start what has ended: more each time."""


def join(
    bundle: Bundle,
    data: str,
    data_dir: Path | None,
    folder: Path,
    address: str,
    tell: Tell,
    node: bool = True,
    device: str = "cpu",
) -> None:
    """Take part in a federation with a site's data until this process is ended; without `node` only its trainer listens."""
    from unalike.federation.site.site_worker import SiteWorker

    own = site_data(bundle.federation, data, data_dir, bundle.site)
    _make(folder)
    with locked(
        folder, f"a site runs in {folder} already; one bundle is one site: choose another --folder, or end the other"
    ):
        trainer = SiteWorker(bundle.federation, bundle.site, bundle.key, own, folder / "memory", device, tell)
        about = f"{bundle.site}: {len(own.train[1])} training samples"
        if not node:
            bundle.unpack(folder)
            tell(f"{about}; listening at {(folder / 'trainer').resolve()}")
            local_socket.serve(folder / "trainer", _told(trainer, tell), bundle.federation.message_bytes)
            return
        tell(f"{about}; connecting to {address}, logs in {folder / 'logs'}")
        take_part(replace(bundle, address=address), folder, trainer, tell)


def wire_lines(federation: Federation, data: str, data_dir: Path | None, site: str) -> list[str]:
    """What leaves a site, and what comes to it, as lines for a person."""
    from unalike.federation.protocol.roster import alone, run_config_of

    own = site_data(federation, data, data_dir, site)
    population = alone(federation, federation.number(site), own)
    run_config = run_config_of(federation, population, proxy=(population.x, population.y))
    rows = [(i.direction, i.what, i.bytes, "once" if i.once else "per round") for i in run_config.wire]
    lines = [
        f"{'leaves' if way == 'up' else 'comes':7} {what:40} {size:>12,} bytes {when}" for way, what, size, when in rows
    ]
    return [
        f"{federation.name}: {federation.method}, {federation.rounds} rounds",
        *sorted(lines, reverse=True),
        "leaves  the number of training, test and validation samples, and sums and counts of the metrics",
    ]


def take_part(bundle: Bundle, folder: Path, trainer: Handler, tell: Tell) -> None:
    """Answer what the coordinator sends, until this process is ended. `folder` is the site's own."""
    from unalike.federation.flower.flower_processes import Node

    _make(folder)
    folder.chmod(0o700)
    bundle.unpack(folder)
    listens = folder / "trainer"
    with Supervisor(folder / "logs") as supervisor:
        node = Node(folder, supervisor, bundle.address, listens, bundle.federation.message_bytes)
        looked, rest = time.monotonic(), REST

        def keep() -> bool:
            nonlocal looked, rest
            if time.monotonic() - looked > rest:
                looked, ended = time.monotonic(), node.keep()
                rest = min(2 * rest, LONGEST_REST) if ended else REST
                for name, why in ended:
                    tell(f"{name} ended and was started again: {why}")
            return False

        local_socket.serve(listens, _told(trainer, tell), bundle.federation.message_bytes, keep)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnalikeError(f"cannot make the folder {folder}: {error.strerror}; choose another --folder") from None


def _told(trainer: Handler, tell: Tell) -> Callable[[bytes], bytes]:
    """The trainer, with a line about every message."""

    def handle(message: bytes) -> bytes:
        started = time.monotonic()
        reply = trainer.handle(message)
        tell(
            f"answered {len(message) / 1e6:.2f} MB with {len(reply) / 1e6:.2f} MB in {time.monotonic() - started:.1f} s"
        )
        return reply

    return handle
