"""The coordinator: admits the sites, runs the plan with them, keeps the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.progress import ProgressCallback
from unalike._utils.tensor_files import sweep
from unalike.core.codec import Facts
from unalike.core.types import Tree
from unalike.engine.threads import threads_for
from unalike.federation.coordinator.exchange import Exchange, SameRequest
from unalike.federation.coordinator.federated_evaluation import pooled_first
from unalike.federation.coordinator.mailbox import Mailbox, Request
from unalike.federation.coordinator.network_backend import NetworkBackend
from unalike.federation.coordinator.run_control import Control, Stopped
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import AdmitRequest, printable
from unalike.federation.protocol.roster import PARTS, Roster, SampleCounts, new_run, placeholders, run_config_of
from unalike.federation.protocol.transport import Transport
from unalike.federation.security.keys import PrivateKey, public_text
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.round_loop import Ending, execute
from unalike.runtime.run_config import Pair
from unalike.runtime.run_recorder import Run
from unalike.training.validation import RefusedUpdate

TOLD = {
    "absent": "{client}: {why}",
    "refused": "{client} was refused: {why}",
    "no quorum": "{sound} valid answers, {quorum} make a round; the sites that are missing are asked again",
    "paused": "paused: {why}; `unalike federation resume FOLDER` goes on",
    "resumed": "goes on",
}
"""Event -> the line that the operator reads."""


class Coordinator:
    """Runs a federation over a transport into the folder `out`; a run that began there is continued.

    `test` are samples of the coordinator's own for the protocol "server", `proxy` those that a method learns from. `start` is a
    file of initial weights. `control` pauses, resumes and stops the run from another thread. `tell` takes one line for each
    problem.
    """

    def __init__(
        self,
        federation: Federation,
        key: PrivateKey,
        transport: Transport,
        out: Path | str,
        *,
        test: Pair | None = None,
        proxy: Pair | None = None,
        start: Path | None = None,
        control: Control | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ):
        if public_text(key) != federation.coordinator:
            raise UnalikeError(
                "the private key is not the coordinator's in the federation file; use the one made with it"
            )
        self.federation, self.key, self.transport = federation, key, transport
        self.directory = RunDirectory(out)
        self.test, self.proxy, self.start = test, proxy, start
        self.control = control or Control()
        self.tell = tell

    def run(self, *, stop: Ending | None = None, progress: ProgressCallback = lambda row, what="": None) -> Run:
        """Run to the end. Raises `Stopped` when the operator stops it; run again, it continues from there."""
        sweep(self.directory.path)
        roster = self._roster()
        run_config = pooled_first(
            run_config_of(
                *(self.federation, placeholders(self.federation, roster), self.test, self.proxy),
                start=self.start,
                coordinated=True,
            )
        )
        run_config.record["federation"] = self.federation.name  # a cached property: the record of the run
        mailbox = Mailbox(self.federation, self.key, self.transport, roster.run, self.control, self._event)
        try:
            with threads_for(run_config.model):
                return execute(
                    run_config,
                    backend=NetworkBackend(run_config.here(), mailbox, self.directory.path / "arrived"),
                    out=self.directory.path,
                    resume=True,
                    stop=stop,
                    progress=progress,
                )
        except Stopped:
            self.directory.event("interrupted", why="the operator stopped the coordinator")
            raise

    def _event(self, kind: str, **facts: Any) -> None:
        self.directory.event(kind, **facts)
        if kind in TOLD:
            self.tell(printable(f"round {facts['round']}: {TOLD[kind].format(**facts)}"))

    def _roster(self) -> Roster:
        """The roster of the run in the folder, or of a new one; its name is written down before any site hears of it."""
        file = self.directory.path / "roster.json"
        roster = Roster.load(file)
        if roster is None:
            roster = Roster(new_run(), {})
            roster.save(file)
        if not roster.sites:
            roster = self._admitted(roster.run)
            roster.save(file)
        return roster

    def _admitted(self, run: str) -> Roster:
        """Ask all enrolled sites; those that answer before the deadline are admitted."""
        federation = self.federation
        mailbox = Mailbox(federation, self.key, self.transport, run, self.control, self._event)
        request: Request = ("admit", AdmitRequest(federation.terms).facts, {})
        names = {site.name for site in federation.sites if not site.revoked}
        exchange = Exchange(
            mailbox=mailbox,
            place=(0, 0),
            requests=SameRequest(request, self._read),
            sites=sorted(names),
            counted=names,
            quorum=federation.enough(len(names)),
        ).run()
        for site in sorted(exchange.values):
            self.directory.event("admitted", client=site, **asdict(exchange.values[site]))
        return Roster(
            run, {site.name: exchange.values[site.name] for site in federation.sites if site.name in exchange.values}
        )

    def _read(self, site: str, facts: Facts, tensors: Tree) -> SampleCounts:
        enrolled = self.federation.sites[self.federation.number(site)]
        counts = [facts.get(part) for part in PARTS]
        if tensors or set(facts) != set(PARTS) or not all(type(n) is int and 0 <= n < 2**31 for n in counts):
            raise RefusedUpdate(f"samples {str(facts)[:80]!a}; expected how many there are of {', '.join(PARTS)}")
        if facts["train"] > enrolled.samples:
            raise RefusedUpdate(f"{facts['train']} training samples; enrolled for at most {enrolled.samples}")
        return SampleCounts(**facts)
