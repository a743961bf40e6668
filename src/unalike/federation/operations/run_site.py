"""`unalike join`: the site worker and its node in one process."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError
from unalike._utils.system.locks import locked
from unalike._utils.system.proxies import prepare_proxies_for
from unalike._utils.system.supervisor import exit_at_sigterm
from unalike._utils.tensor_files import write_bytes
from unalike.core.tasks.registry import find_task
from unalike.data.array_checks import Pair
from unalike.data.population import Population
from unalike.data.sources.load import table_at
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import NOTICE
from unalike.federation.security.certificates import expiry
from unalike.federation.site.site_data import looked_at, site_data, site_data_apart
from unalike.federation.site.site_folder import DATA, state_folder

if TYPE_CHECKING:  # heavy: imported when a site is started
    from unalike.federation.site.site_worker import SiteWorker

Log = Callable[[str], None]


def timed(log: Log) -> Log:
    """`log`, with the time and its zone in front of each line."""
    return lambda line: log(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z} {line}")


def join(
    bundle: Bundle,
    data: str,
    data_dir: Path | None,
    folder: Path,
    address: str,
    log: Log,
    device: str = "cpu",
    accept: bool = False,
    until_done: bool = False,
) -> None:
    """Take part in a federation until this process is ended, or with `until_done` until all runs are done.

    `accept`: also with columns that are far from what was agreed on, such as in other units; else they raise `UnalikeError`.
    """
    from unalike.federation.flower.site_node import SiteNode
    from unalike.federation.protocol.agreed_methods import notes_on_methods, notes_on_public
    from unalike.federation.site.site_policy import SitePolicy
    from unalike.federation.site.site_worker import SiteWorker

    say = timed(log)
    host, _, _ = address.rpartition(":")
    prepare_proxies_for(host.strip("[]"))

    say(f"federation {bundle.federation.name}, fingerprint {bundle.fingerprint}")

    # 1. A look at the samples, before anything is connected. Those that the site's rules do not let test train.
    rules = folder / "site.toml"
    least_test = SitePolicy.read(rules).least_test
    own = site_data_apart(bundle.federation, data, data_dir, bundle.site, accept, least_test)
    lines = looked_at(bundle.federation, own, accept)
    lines += notes_on_public(bundle.federation)
    lines += notes_on_methods(bundle.federation)
    for line in lines:
        say(line)
    expires = expiry(
        "the certificate authority of the federation",
        bundle.authority,
        remedy="ask the coordinator for a federation with a new one",
    )
    for line in expires:
        say(line)

    _make_folder(folder)
    with locked(
        folder,
        f"a site runs in {folder} already: end it first; another site needs a bundle of its own",
    ):
        # 2. The site's own rules, and its worker, which refuses samples that they exclude.
        policy = SitePolicy.of(rules)
        policy.limit_process()
        worker = SiteWorker(
            bundle.federation,
            name=bundle.site,
            key=bundle.key,
            data=own,
            folder=state_folder(folder),
            device=device,
            log=say,
            policy=policy,
            public=bundle.public,
        )
        bundle.claim(folder)
        data_file = table_at(data, data_dir) or Path(data)
        write_bytes(folder / DATA, str(data_file.resolve()).encode())
        for line in policy.unused(own, find_task(bundle.federation.data.task)):
            say(line)
        if policy.epsilon:
            say(worker.ledger.summary)

        # 3. The connection, which lasts until this process is ended.
        say(f"{bundle.site}: {len(own.train[1])} training samples; connecting to {address}")
        with exit_at_sigterm():
            node = SiteNode(
                folder,
                address=address,
                authority=bundle.authority,
                key=bundle.node_key,
                handle=logged(worker, say),
                limit=bundle.federation.message_bytes,
                log=say,
            )
            node.serve(worker.done if until_done else Event())


def wire_lines(
    federation: Federation,
    data: str,
    data_dir: Path | None,
    site: str,
    least_test: int = 0,
    public: Pair | None = None,
) -> list[str]:
    """A look at a site's data, and for each agreed method what leaves the site and what it receives, as lines with their sizes.

    `least_test` is the site's rule of this name, `public` are the public samples of the bundle.
    """
    from unalike.federation.protocol.agreed_methods import notes_on_methods, notes_on_public
    from unalike.federation.protocol.roster import site_population

    own = site_data(federation, data, data_dir, site, least_test)
    population = site_population(federation, federation.number(site), own)
    lines = looked_at(federation, own, accept=True)
    lines += notes_on_public(federation)
    lines += notes_on_methods(federation)
    proxy = public or (population.x, population.y)
    for method in dict.fromkeys((federation.method, *federation.also)):
        lines += _wire_of(replace(federation, method=method), population, proxy)
    return [
        *lines,
        "leaves  the number of training, test and validation samples, sums and counts of the metrics, versions of the program",
    ]


def _wire_of(federation: Federation, population: Population, proxy: Pair) -> list[str]:
    from unalike.federation.coordinator.secure_aggregation import masked_wire
    from unalike.federation.protocol.roster import run_config_of

    run_config = run_config_of(federation, population, proxy=proxy)
    items = run_config.wire
    if federation.secure_aggregation:
        items = masked_wire(federation, run_config)
    lines = []
    for item in items:
        way = "leaves" if item.direction == "up" else "comes"
        when = "once" if item.once else "per round"
        lines.append(f"{way:7} {item.what:40} {item.bytes:>12,} bytes {when}")
    rounds = f"{federation.rounds} round{'s' * (federation.rounds != 1)}"
    # what leaves comes before what comes in
    lines.sort(reverse=True)
    return [f"{federation.name}: {federation.method}, {rounds}", *lines]


def _make_folder(folder: Path) -> None:
    # state, personal models and secrets are the owner's
    os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise UnalikeError(
            f"cannot make the folder {folder}: {error.strerror}; choose another --folder"
        ) from None


def logged(worker: "SiteWorker", log: Log) -> Callable[[bytes], bytes]:
    """The worker's handler, with a log line for each message that it answers: what it was asked, as its journal has it."""

    def handle(message: bytes) -> bytes:
        started = time.monotonic()
        entry_before = worker.journal.newest
        reply = worker.handle(message)
        entry = worker.journal.newest
        # a reply that was stored has no new entry
        what = "the same again" if entry is entry_before else _done(entry)
        if what:
            kilobytes = f"{len(message) / 1e3:.1f} kB came, {len(reply) / 1e3:.1f} kB left"
            log(f"{what}; {kilobytes}, {time.monotonic() - started:.1f} s")
        return reply

    return handle


def _done(entry: dict[str, Any]) -> str:
    """The work that an entry of the journal tells of, its round as the coordinator counts; "" if another line says it."""
    if entry["event"] == "declined" or entry["kind"] == NOTICE:
        return ""
    work = []
    if entry["trained"]:
        work.append("trained")
    if entry["evaluated"]:
        work.append("evaluated")
    if not work:
        return f"answered {entry['kind']}"
    # An evaluation alone is of the model after the round before.
    round = entry["round"] + entry["trained"]
    step = f"step {entry['step']}, " if entry["step"] > 1 else ""
    return f"{step}round {round}: {' and '.join(work)}"
