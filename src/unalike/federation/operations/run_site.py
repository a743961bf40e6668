"""`unalike join`: the site worker in this process, Flower's SuperNode and the relay process as its children."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.system import local_socket
from unalike._utils.system.locks import locked
from unalike._utils.system.supervisor import Supervisor
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.transport import Handler
from unalike.federation.site.site_data import site_data
from unalike.federation.site.site_folder import state_folder

Log = Callable[[str], None]

PAUSE, LONGEST_PAUSE = 3.0, 15.0
"""Seconds between two attempts to restart child processes; doubles up to the longest pause."""


def join(
    bundle: Bundle,
    data: str,
    data_dir: Path | None,
    folder: Path,
    address: str,
    log: Log,
    node: bool = True,
    device: str = "cpu",
) -> None:
    """Take part in a federation until this process is ended. Without `node` only the site worker is started."""
    from unalike.federation.site.site_worker import SiteWorker

    own = site_data(bundle.federation, data, data_dir, bundle.site)
    _make_folder(folder)
    with locked(
        folder, f"a site runs in {folder} already; one bundle is one site: choose another --folder, or end the other"
    ):
        worker = SiteWorker(bundle.federation, bundle.site, bundle.key, own, state_folder(folder), device, log)
        about = f"{bundle.site}: {len(own.train[1])} training samples"
        if not node:
            bundle.unpack(folder)
            log(f"{about}; listening at {(folder / 'trainer').resolve()}")
            local_socket.serve(folder / "trainer", _logged(worker, log), bundle.federation.message_bytes)
            return
        log(f"{about}; connecting to {address}, logs in {folder / 'logs'}")
        serve_site(replace(bundle, address=address), folder, worker, log)


def wire_lines(federation: Federation, data: str, data_dir: Path | None, site: str) -> list[str]:
    """The values that leave a site and those that it receives, as lines of text with their sizes."""
    from unalike.federation.protocol.roster import run_config_of, site_population

    own = site_data(federation, data, data_dir, site)
    population = site_population(federation, federation.number(site), own)
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


def serve_site(bundle: Bundle, folder: Path, worker: Handler, log: Log) -> None:
    """Answer the coordinator's requests until this process is ended, restarting child processes that end."""
    from unalike.federation.flower.flower_processes import SuperNode

    folder.chmod(0o700)
    bundle.unpack(folder)
    listens = folder / "trainer"
    with Supervisor(folder / "logs") as supervisor:
        node = SuperNode(folder, supervisor, bundle.address, listens, bundle.federation.message_bytes)
        looked, pause = time.monotonic(), PAUSE

        def watch() -> bool:
            nonlocal looked, pause
            if time.monotonic() - looked > pause:
                looked, ended = time.monotonic(), node.restart_ended()
                pause = min(2 * pause, LONGEST_PAUSE) if ended else PAUSE
                for name, why in ended:
                    log(f"{name} ended and was started again: {why}")
            return False

        local_socket.serve(listens, _logged(worker, log), bundle.federation.message_bytes, watch)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnalikeError(f"cannot make the folder {folder}: {error.strerror}; choose another --folder") from None


def _logged(worker: Handler, log: Log) -> Callable[[bytes], bytes]:
    """The worker's handler, with a log line for each message."""

    def handle(message: bytes) -> bytes:
        started = time.monotonic()
        reply = worker.handle(message)
        log(
            f"answered {len(message) / 1e6:.2f} MB with {len(reply) / 1e6:.2f} MB in {time.monotonic() - started:.1f} s"
        )
        return reply

    return handle
