"""`unalike federation up`: starts Flower's SuperLink and the gateway, and runs the rounds; with `--local` starts the sites, too."""

import io
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.spec import slug
from unalike._utils.system.ports import check_port, free_port
from unalike._utils.system.proxies import connect_directly
from unalike._utils.system.supervisor import (
    Supervisor,
    child_environment,
)
from unalike._utils.tensor_files import write_bytes
from unalike.core.inputs import Inputs, is_one_tensor, layout_of
from unalike.data.array_checks import Pair
from unalike.data.client_data import ClientData
from unalike.data.population import Population
from unalike.data.ragged import client_name
from unalike.federation.coordinator.coordinator import Log, run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.run_queue import add_runs
from unalike.federation.flower.flower_processes import superlink
from unalike.federation.operations.run_site import timed
from unalike.federation.protocol.envelope import NAME_PATTERN
from unalike.federation.protocol.federation_file import Federation, Schema
from unalike.federation.site.site_policy import SitePolicy
from unalike.runtime.run_recorder import Run


def coordinate(
    folder: FederationFolder,
    log: Log,
    *,
    wait: bool = False,
    port: int | None = None,
    beside: Callable[[Supervisor], None] = lambda supervisor: None,
    again: str | None = None,
    stay: bool = False,
) -> Run | None:
    """Start the federation, run what is queued and end all processes. None if it was stopped before, or had nothing to do.

    `wait`: begin when the operator says `unalike federation run`. `beside` starts further child processes, such as sites on this
    machine. `again` is the command that continues the run, by default `unalike federation up`. `stay`: then wait for further runs.
    """
    federation = folder.federation
    network = folder.network
    host = network.listen
    port = port or network.port
    log = timed(log)
    if not folder.waiting and not stay:
        last = folder.queue[-1]
        log(f"nothing to do: all rounds are in {last.path}, report {last.page}")
        return None
    connect_directly()
    with folder.held():
        # What sites would only see as a failed connection is said here.
        check_port(host, port, PORT_TAKEN)
        fault = folder.certificate_fault
        if fault:
            raise UnalikeError(
                f"the server's certificate {fault}, no site would connect; `unalike federation renew {folder.path}`"
            )
        _check_deadline(federation, log)
        with (
            Supervisor(folder.logs) as supervisor,
            superlink(
                folder.path,
                supervisor,
                host,
                port,
                folder.nodes,
                federation.message_bytes,
                rejected=lambda line: folder.audit("gateway", says=line),
            ) as transport,
        ):
            log(
                f"{federation.name} is up at {host}:{port}; {len(folder.nodes)} sites enrolled, logs in {folder.logs}"
            )
            beside(supervisor)
            last_warned = -math.inf

            def check() -> None:
                nonlocal last_warned
                supervisor.check()
                if time.monotonic() - last_warned > DAY_SECONDS:
                    last_warned = time.monotonic()
                    for line in folder.expiries:
                        log(line)

            return run_rounds(
                folder, transport, log, wait=wait, stay=stay, check=check, again=again
            )


DAY_SECONDS = 24 * 3600
"""Seconds between two warnings that a certificate expires."""
PORT_TAKEN = "end what has the port, or write another one into network.json and tell the sites (`unalike join --address`)"
FOLLOWING_TERMS = ("message_bytes", "noise_shares")
"""Terms that follow from the others unless they are given."""
OWN_MACHINE = {
    "least_training": 0,
    "least_per_coefficient": 0,
    "least_test": 0,
    "least_class": 0,
    "digits": 0,
}
"""Rules of sites that are rehearsed on one machine: their results are those of a simulation, bit for bit."""


def _check_deadline(federation: Federation, log: Log) -> None:
    if federation.deadline < 2 * federation.repeat:
        log(
            f"the deadline of {federation.deadline:g} s leaves no time to repeat a lost request, which happens after "
            f"{federation.repeat:g} s; expected a deadline of twice that (`deadline` and `repeat` in federation.toml)"
        )


JOIN = "from unalike.cli import main; main()"


def locally(
    out: Path,
    population: Population,
    terms: dict[str, Any],
    log: Callable[[str], None],
    own: Mapping[str, Pair | None] = MappingProxyType({}),
    *,
    again: str,
    wait: bool = False,
) -> None:
    """Train on `population`: each client becomes a site with its own processes. History, model and report are written to `out`.

    `own` are the coordinator's samples, "test" and "proxy", `again` is the command that continues. `wait`: begin when the operator
    says `unalike federation run`.
    """
    port = free_port()
    folder = _folder(out, population, terms, own, port)
    names = list(folder.nodes)
    federation = folder.federation
    methods = [federation.method, *federation.also]
    add_runs(folder.path, federation, methods, federation.seeds)

    def start_sites(supervisor: Supervisor) -> None:
        for name in names:
            home = out / "sites" / name
            command = [sys.executable, "-c", JOIN, "join", str(folder.bundles[name])]
            command += ["--folder", str(home), "--accept"]
            command += ["--data", str((home / "data.npz").resolve())]
            command += ["--address", f"127.0.0.1:{port}"]
            supervisor.start(name, command, child_environment(OMP_NUM_THREADS="1"))

    coordinate(folder, log, wait=wait, port=port, beside=start_sites, again=again)


def _folder(
    out: Path,
    population: Population,
    terms: dict[str, Any],
    own: Mapping[str, Pair | None],
    port: int,
) -> FederationFolder:
    """The federation's folder, new or from an earlier start. Raises `UnalikeError` if it holds another federation."""
    names = _site_names(population.names)
    sizes = dict(zip(names, map(int, population.sizes), strict=True))
    schema = Schema.like(
        (population.x, population.y), population.classes, population.task, population.encoding
    )
    terms = terms | {"data": schema}
    if (out / "federation.toml").exists():
        # An earlier start goes on, but only under the same terms with the same sites.
        folder = FederationFolder(out)
        federation = folder.federation
        given_terms = dict(terms)
        for name in FOLLOWING_TERMS:
            if given_terms.get(name, 0) is None:
                del given_terms[name]
        has_other_terms = replace(federation, **given_terms) != federation
        earlier_sizes = {site.name: site.samples for site in federation.sites}
        if has_other_terms or earlier_sizes != sizes:
            raise _another_federation(out)
    else:
        folder = FederationFolder.create(
            out,
            sizes,
            host="127.0.0.1",
            port=port,
            listen="127.0.0.1",
            own=own,
            name="local",
            **terms,
        )

    # Each client's samples are in the folder of its site, as at a real one.
    for name, client in zip(names, population):
        home = out / "sites" / name
        file = home / "data.npz"
        if not file.exists():
            # private data
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_site(file, client, population.classes, population.task_to_name)
            SitePolicy.of(home / "site.toml", **OWN_MACHINE)
        elif file.read_bytes() != archive(client, population.classes, population.task_to_name):
            raise _another_federation(out)
    return folder


def _site_names(clients: Sequence[str]) -> list[str]:
    """The names of sites for these clients: their own as far as a site may have them, else site-1, site-2, ..."""
    names = [slug(name) for name in clients]
    numbered = [client_name(number) for number in range(len(names))]
    have_own_names = names != numbered and len(set(names)) == len(names)
    if have_own_names and all(NAME_PATTERN.fullmatch(name) for name in names):
        return names
    return [f"site-{number + 1}" for number in range(len(names))]


def _another_federation(out: Path) -> UnalikeError:
    return UnalikeError(
        f"{out} holds another federation; repeat its flags to continue it, or choose another folder"
    )


def write_site(
    path: Path, client: ClientData, classes: list[str] | None, task: str | None = None
) -> None:
    """Write a client's samples as a file for `unalike join`. Raises `UnalikeError` if it cannot be written."""
    write_bytes(path, archive(client, classes, task))


def archive(client: ClientData, classes: list[str] | None, task: str | None = None) -> bytes:
    """The content of that file; equal samples give equal bytes. `task`: the task, where labels do not imply it."""
    samples: dict[str, Any] = {}
    for split, pair in (("train", client.train), ("test", client.test)):
        if pair is not None:
            x, y = pair
            samples |= _named_inputs(split, x) | {f"{split}_y": y}
    if classes is not None:
        samples["classes"] = np.array(classes)
    if task is not None:
        samples["task"] = np.array(task)
    arrays: dict[str, Any] = {name: np.asarray(values) for name, values in samples.items()}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _named_inputs(split: str, x: Inputs) -> dict[str, Tensor]:
    """The arrays of inputs by their names in an archive, which has one array, or several with a name each."""
    if is_one_tensor(x):
        return {f"{split}_x": x}
    if not isinstance(x, dict) or not all(map(is_one_tensor, x.values())):
        raise UnalikeError(
            f"found samples {layout_of(x)}, which no file for a site can hold; expected one dictionary of arrays by their names"
        )
    return {f"{split}_x_{name}": values for name, values in x.items()}
