"""The coordinator's process: Flower's SuperLink behind its gate, the rounds, the commands of the operator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
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
from unalike.runtime.run_directory import RunDirectory
from unalike.runtime.run_recorder import Run

Tell = Callable[[str], None]

LATECOMERS = 60.0
"""Seconds that the run waits for the last sites when there are enough to begin with."""
LOOK = 0.5
SOON = 60
"""Days before the end of the server's certificate that are spoken of."""


def coordinate(
    folder: FederationFolder,
    tell: Tell,
    *,
    wait: bool = False,
    port: int | None = None,
    beside: Callable[[Supervisor], None] = lambda supervisor: None,
    again: str | None = None,
) -> Run | None:
    """Bring the federation up, run its rounds, end everything; None if it was told to stop before, or had nothing to do.

    `wait`: begin at the operator's word. `beside` starts more children, such as sites of this machine. `again` is the command
    that goes on, `unalike federation up` with the folder unless given.
    """
    from unalike.federation.flower.flower_processes import check_port, link

    federation, network = folder.federation, folder.network
    host, port = network.listen, port or network.port
    if _over(folder, federation):
        tell(f"nothing is left to do: all rounds are in {folder.run}, report {folder.path / 'report.html'}")
        return None
    with folder.held():
        check_port(host, port)
        _check_certificate(folder, tell)
        with (
            Supervisor(folder.logs) as supervisor,
            link(folder.path, supervisor, host, port, folder.nodes, federation.message_bytes) as transport,
        ):
            tell(
                f"{federation.name} is up at {host}:{port}; {len(folder.nodes)} sites are enrolled, logs in {folder.logs}"
            )
            beside(supervisor)
            return rounds(folder, transport, tell, wait=wait, check=supervisor.check, again=again)


def rounds(
    folder: FederationFolder,
    transport: Transport,
    tell: Tell,
    *,
    wait: bool = False,
    check: Callable[[], None] = lambda: None,
    again: str | None = None,
) -> Run | None:
    """The rounds that the federation still lacks, over a transport; None if it was told to stop before the end."""
    federation, desk = folder.federation, OperatorCommands(folder.federation, transport, wait)
    desk.round = RunDirectory(folder.run).round
    with listening(folder.socket, desk.commands):
        try:
            desk.gather(tell, check)

            def progress(row: dict[str, Any], what: str = "") -> None:
                check()
                desk.round = int(row["round"])
                tell(
                    f"round {desk.round} of {federation.rounds}: {row['participants']} sites, {row['seconds']:.1f} s, "
                    f"{headline(row)}".rstrip(", ")
                )

            own = {name: folder.samples(name) for name in ("test", "proxy")}
            coordinator = Coordinator(
                federation, folder.key, transport, folder.run, control=desk.control, tell=tell, **own
            )
            run = coordinator.run(progress=progress)
        except Stopped:
            tell(
                f"stopped after round {desk.round}; `{again or f'unalike federation up {folder.path}'}` goes on from there"
            )
            return None
    report(folder, run, again or f"unalike federation up {folder.path.name}")
    tell(f"done: history and model in {folder.run}, report {folder.path / 'report.html'}")
    return run


def _check_certificate(folder: FederationFolder, tell: Tell) -> None:
    left, renew = folder.days_left, f"`unalike federation renew {folder.path}` makes a new one, sites need nothing"
    if fault := folder.certificate_fault:
        raise UnalikeError(f"the server's certificate {fault}, no site would connect; {renew}")
    if left < SOON:
        tell(f"the server's certificate expires in {left:.0f} days; {renew}")


def _over(folder: FederationFolder, federation: Federation) -> bool:
    """Whether the folder holds the whole run and its report."""
    events, config = folder.run / "events.jsonl", RunDirectory(folder.run).config
    if config is None or not events.exists() or not (folder.path / "report.html").exists():
        return False
    last = events.read_bytes().splitlines()[-1:]
    return bool(last) and b'"finished"' in last[0] and config["rounds"] == federation.rounds


def report(folder: FederationFolder, run: Run, command: str) -> None:
    """Write the report of a run that is over, and the command that made it.

    Nothing is known here of the sites' samples but their numbers.
    """
    from unalike.experiments.compare import facts_of
    from unalike.experiments.comparison import Comparison
    from unalike.experiments.experiment import Cell
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


class OperatorCommands:
    """Where the operator's commands arrive, and what they are told."""

    def __init__(self, federation: Federation, transport: Transport, wait: bool):
        self.federation, self.transport, self.control = federation, transport, Control()
        self.round = 0
        self._gathered = False
        self._begin = Event()
        if not wait:
            self._begin.set()

    @property
    def commands(self) -> dict[str, Callable[[], Answer]]:
        """Command -> what sees to it."""
        return {"status": self.status, "run": self.run, "pause": self.pause, "resume": self.resume, "stop": self.stop}

    def status(self) -> Answer:
        connected = set(self.transport.sites())
        rows = [
            {"name": s.name, "connected": s.name in connected, "samples": s.samples, "revoked": s.revoked}
            for s in self.federation.sites
        ]
        held = self.control.state == "running" and not self._gathered
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

    def gather(self, tell: Tell, check: Callable[[], None]) -> None:
        """Wait for the operator's word and for the sites: for all of them, or for enough and a while longer."""
        names = [site.name for site in self.federation.sites if not site.revoked]
        enough, since, told = self.federation.enough(len(names)), time.monotonic(), ""
        while True:
            check()
            self.control.wait()
            connected = set(self.transport.sites())
            missing = [name for name in names if name not in connected]
            if len(connected) < enough:
                since = time.monotonic()
            if self._begin.is_set() and (not missing or time.monotonic() - since > LATECOMERS):
                self._gathered = True
                return
            line = f"{len(connected)} of {len(names)} sites are connected" + (
                f", waiting for {', '.join(missing[:10])}" if missing else "; waiting for `unalike federation run`"
            )
            if line != told:
                tell(line)
                told = line
            time.sleep(LOOK)
