"""`unalike federation up`: start Flower's SuperLink and the gateway, run the rounds, take the operator's commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.progress import headline
from unalike._utils.tensor_files import write_bytes
from unalike.federation.coordinator.control import Control, Stopped
from unalike.federation.coordinator.coordinator import Coordinator
from unalike.federation.operations.commands import Answer, listening
from unalike.federation.operations.federation_folder import FederationFolder
from unalike.federation.operations.processes import Supervisor
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.transport import Transport
from unalike.methods.plans.diagnosis import Diagnosis
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.run_recorder import Run

Log = Callable[[str], None]

LATECOMERS = 60.0
"""Seconds to wait for the remaining sites once a quorum is connected."""
POLL = 0.5
REPEAT = 10.0
"""Seconds after which the log says again how many sites are connected."""
EXPIRY_WARNING = 60
"""Days before the server's certificate expires from which on `up` warns."""


def coordinate(
    folder: FederationFolder,
    log: Log,
    *,
    wait: bool = False,
    port: int | None = None,
    beside: Callable[[Supervisor], None] = lambda supervisor: None,
    again: str | None = None,
) -> Run | None:
    """Start the federation, run its rounds and end all processes. None if it was stopped before the end, or had nothing to do.

    `wait`: begin when the operator says `unalike federation run`. `beside` starts further child processes, such as sites on this
    machine. `again` is the command that continues the run, by default `unalike federation up` with the folder.
    """
    from unalike.federation.flower.flower_processes import check_port, superlink

    federation, network = folder.federation, folder.network
    host, port = network.listen, port or network.port
    if _over(folder, federation):
        log(f"nothing to do: all rounds are in {folder.run}, report {_last_page(folder, federation)}")
        return None
    with folder.held():
        check_port(host, port)
        _check_certificate(folder, log)
        with (
            Supervisor(folder.logs) as supervisor,
            superlink(folder.path, supervisor, host, port, folder.nodes, federation.message_bytes) as transport,
        ):
            log(
                f"{federation.name} is up at {host}:{port}; {len(folder.nodes)} sites are enrolled, logs in {folder.logs}"
            )
            beside(supervisor)
            return run_rounds(folder, transport, log, wait=wait, check=supervisor.check, again=again)


def run_rounds(
    folder: FederationFolder,
    transport: Transport,
    log: Log,
    *,
    wait: bool = False,
    check: Callable[[], None] = lambda: None,
    again: str | None = None,
) -> Run | None:
    """Run the remaining rounds over a transport. None if the operator stopped the run before the end."""
    federation, operator = folder.federation, OperatorCommands(folder.federation, transport, wait)
    operator.round = RunDirectory(folder.run).round
    with listening(folder.socket, operator.commands):
        try:
            operator.wait_for_sites(log, check)

            def progress(row: dict[str, Any], what: str = "") -> None:
                check()
                operator.round = int(row["round"])
                log(
                    f"round {operator.round} of {federation.rounds}: {row['participants']} sites, {row['seconds']:.1f} s, "
                    f"{headline(row)}".rstrip(", ")
                )

            coordinator = Coordinator(
                *(federation, folder.key, transport, folder.run),
                test=folder.samples("test"),
                proxy=folder.samples("proxy"),
                start=folder.start,
                control=operator.control,
                tell=log,
            )
            run = coordinator.run(progress=progress)
        except Stopped:
            log(
                f"stopped after round {operator.round}; `{again or f'unalike federation up {folder.path}'}` continues from there"
            )
            return None
    if isinstance(run.run_config.plan, Diagnosis):
        write_diagnosis(folder, run, log)
    if not _without_rounds(run):
        write_report(folder, run, again or f"unalike federation up {folder.path.name}")
    log(f"done: history and model in {folder.run}, report {_last_page(folder, federation)}")
    return run


def _without_rounds(run: Run) -> bool:
    """Whether the run is a diagnosis without rounds, which has no scores to report."""
    return isinstance(run.run_config.plan, Diagnosis) and not run.run_config.options.rounds


def _last_page(folder: FederationFolder, federation: Federation) -> Path:
    """The page that is written last: the report, or without rounds that of a diagnosis."""
    return folder.path / ("report.html" if federation.rounds else "diagnosis.html")


def _check_certificate(folder: FederationFolder, log: Log) -> None:
    left, renew = folder.days_left, f"`unalike federation renew {folder.path}` makes a new one, sites need nothing"
    if fault := folder.certificate_fault:
        raise UnalikeError(f"the server's certificate {fault}, no site would connect; {renew}")
    if left < EXPIRY_WARNING:
        log(f"the server's certificate expires in {left:.0f} days; {renew}")


def _over(folder: FederationFolder, federation: Federation) -> bool:
    """Whether the folder holds the complete run and its report."""
    directory, has_report = RunDirectory(folder.run), _last_page(folder, federation).exists()
    config = directory.config
    return has_report and config is not None and directory.finished and config["rounds"] == federation.rounds


def write_report(folder: FederationFolder, run: Run, command: str) -> None:
    """Write the report of a finished run, with the command that made it.

    Of the sites' samples only the numbers are known here.
    """
    from unalike.experiments.comparison import Comparison
    from unalike.experiments.experiment import Cell
    from unalike.experiments.experiment_facts import facts_of
    from unalike.experiments.joining import join
    from unalike.reporting.html import write_text

    name, method, seed = folder.federation.name, folder.federation.method, folder.federation.seed
    facts = facts_of([Cell(method, seed, run.run_config)], {method: method}, method, [seed], {"federation": name})
    known: dict[str, Any] = {k: facts.partition[k] for k in ("clients", "smallest", "largest") if k in facts.partition}
    facts = replace(facts, label_counts=None, partition=known, command=command, notes=[*facts.notes, *run.notes])
    write_bytes(folder.run / "comparison.json", json.dumps(asdict(facts), indent=1).encode())
    write_text(
        join([(name, Comparison.load(folder.run))]).page(f"Federation {name}", None), folder.path / "report.html"
    )


def write_diagnosis(folder: FederationFolder, run: Run, log: Log) -> None:
    """Write the page of a finished diagnosis, and log its findings."""
    from unalike.diagnosis.from_counts.run_diagnosis import run_diagnosis

    found = run_diagnosis(run, f"federation {folder.federation.name}")
    page = found.save(folder.path)
    for line in (*found.findings, *(f"note: {note}" for note in found.notes)):
        log(line)
    log(f"diagnosis: {page}")


class OperatorCommands:
    """Handlers of the operator's commands; each returns the status."""

    def __init__(self, federation: Federation, transport: Transport, wait: bool):
        self.federation, self.transport, self.control = federation, transport, Control()
        self.round = 0
        self._sites_ready = False
        self._begin = Event()
        if not wait:
            self._begin.set()

    @property
    def commands(self) -> dict[str, Callable[[], Answer]]:
        """Command -> its handler."""
        return {"status": self.status, "run": self.run, "pause": self.pause, "resume": self.resume, "stop": self.stop}

    def status(self) -> Answer:
        connected = set(self.transport.sites())
        rows = [
            {"name": s.name, "connected": s.name in connected, "samples": s.samples, "revoked": s.revoked}
            for s in self.federation.sites
        ]
        held = self.control.state == "running" and not self._sites_ready
        return {
            "state": "waiting" if held or not self._begin.is_set() else self.control.state,
            "why": self.control.why,
            "round": self.round,
            "rounds": self.federation.rounds,
            "sites": rows,
        }

    def run(self) -> Answer:
        self._begin.set()
        return self.status()

    def pause(self) -> Answer:
        self.control.pause()
        return self.status()

    def resume(self) -> Answer:
        self.control.resume()
        return self.status()

    def stop(self) -> Answer:
        self.control.stop()
        self._begin.set()
        return self.status()

    def wait_for_sites(self, log: Log, check: Callable[[], None]) -> None:
        """Wait until the operator lets the run begin and all sites are connected, or a quorum for `LATECOMERS` seconds."""
        names = [site.name for site in self.federation.sites if not site.revoked]
        enough, since = self.federation.enough(len(names)), time.monotonic()
        logged, logged_at = "", time.monotonic()
        while True:
            check()
            self.control.wait()
            connected = set(self.transport.sites())
            missing = [name for name in names if name not in connected]
            if len(connected) < enough:
                since = time.monotonic()
            line = f"{len(connected)} of {len(names)} sites are connected"
            line += f", waiting for {', '.join(missing[:10])}" if missing else ""
            if not missing and not self._begin.is_set():
                line += "; waiting for `unalike federation run`"
            if line != logged or (missing and time.monotonic() - logged_at > REPEAT):
                log(line)
                logged, logged_at = line, time.monotonic()
            if self._begin.is_set() and (not missing or time.monotonic() - since > LATECOMERS):
                self._sites_ready = True
                return
            time.sleep(POLL)
