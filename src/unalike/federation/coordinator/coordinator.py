"""The coordinator: admits the sites, runs the plan with them, and keeps the run; one run of the queue after the other."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.progress import ProgressCallback
from unalike._utils.tensor_files import sweep
from unalike.core.codec import Facts
from unalike.core.types import Tree
from unalike.data.client_data import SPLITS
from unalike.engine.threads import threads_for
from unalike.federation.coordinator.exchange import Exchange, SameRequest
from unalike.federation.coordinator.federated_evaluation import pooled_first
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.coordinator.network_backend import DiscardedRound, NetworkBackend
from unalike.federation.coordinator.operator_commands import listening
from unalike.federation.coordinator.run_control import Control, OperatorCommands, Stopped
from unalike.federation.coordinator.run_pages import UNTESTED, write_pages
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import PROTOCOL, AdmitRequest, printable, versions
from unalike.federation.protocol.roster import (
    Roster,
    SampleCounts,
    new_run,
    placeholders,
    run_config_of,
)
from unalike.federation.protocol.transport import Transport
from unalike.federation.security.keys import PrivateKey, public_text
from unalike.runtime.records.history import Row
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.round_loop import Ending, execute
from unalike.runtime.run_recorder import Run
from unalike.runtime.setup.run_config import Pair
from unalike.runtime.setup.stopping import names_in
from unalike.training.validation import RefusedUpdate

TOLD = {
    "absent": "{client}: {why}",
    "refused": "{client} was refused: {why}",
    "discarded": "discarded, {why}; made again without {client}, whose update is {times} times as large as usual",
    "diverged model": "{why}, and no site stands out by the size of its update: a lower learning rate may help",
    "no quorum": "{sound} valid answers, {quorum} make a round; the sites that are missing are asked again",
    "paused": "paused: {why}; goes on when the sites are back, or by `unalike federation resume FOLDER`",
    "resumed": "goes on",
    "other version": "{client} has {name} {found} and this machine {ours}: numbers may differ in the last digits",
    "not in this run": "{client} has connected; it takes no part in this run, which began without it",
    "large share": "{client} has {percent} % of all training samples, and as much of the weight",
    "untested": UNTESTED,
}
"""Event -> the line that the operator reads."""

AUDITED = ("admitted", "late", "versions", "connected")
"""Events besides those of `TOLD` that the audit log holds."""
LAST_SECONDS = 3.0
"""Maximum seconds between the end of a run and the next one, in which sites answer that they have heard of it."""
WARNED_SHARE = 0.5
"""The share of the training samples above which a site is named at admission."""


class Coordinator:
    """Runs a federation over a transport into the folder `out`; a run that began there is continued.

    `test` are samples of the coordinator's own for the protocol "server", `proxy` those that a method learns from. `start` is a
    file of initial weights. `control` pauses, resumes and stops the run from another thread. `tell` takes one line for each
    problem, `audit` what the audit log holds: refusals, pauses, versions, admissions. `last_words` is the notice at the end.
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
        audit: Callable[..., None] = lambda event, **facts: None,
        last_words: Callable[[], str] = lambda: "finished",
    ):
        if public_text(key) != federation.coordinator:
            raise UnalikeError(
                "the private key is not the coordinator's in the federation file; use the one made with it"
            )
        self.federation, self.key, self.transport = federation, key, transport
        self.directory = RunDirectory(out)
        self.test, self.proxy, self.start = test, proxy, start
        self.control = control or Control()
        self.tell, self.audit, self.last_words = tell, audit, last_words

    def run(
        self, *, stop: Ending | None = None, progress: ProgressCallback = lambda row, what="": None
    ) -> Run:
        """Run to the end. Raises `Stopped` when the operator stops it; run again, it continues from there."""
        sweep(self.directory.path)
        roster, enrolled = self._roster(), self.federation.sites
        begun = len(
            self.directory.names or enrolled
        )  # sites that were enrolled later are in later runs
        federation = replace(self.federation, sites=enrolled[:begun])
        run_config = pooled_first(
            run_config_of(
                *(federation, placeholders(federation, roster), self.test, self.proxy),
                start=self.start,
                coordinated=True,
            )
        )
        run_config.description["federation"] = (
            self.federation.name
        )  # a cached property: the record of the run
        left_out: dict[Place, set[str]] = {}

        def kept(row: Row, what: str = "") -> None:
            if row["round"] and row["round"] % self.federation.keep_every == 0:
                self.directory.keep(row["round"])
            progress(row, what)

        while True:
            mailbox = Mailbox(
                self.federation,
                self.key,
                self.transport,
                roster.run,
                self.control,
                self._event,
                roster.sites,
            )
            try:
                with threads_for(run_config.model):
                    run = execute(
                        run_config,
                        backend=NetworkBackend(
                            run_config.here(), mailbox, self.directory.path / "arrived", left_out
                        ),
                        out=self.directory.path,
                        resume=True,
                        stop=stop,
                        progress=kept,
                    )
            except DiscardedRound as discarded:
                left_out.setdefault(discarded.place, set()).add(discarded.site)
                self.directory.drop_later(*discarded.place)
            except Stopped:
                mailbox.notify(self.transport.sites(), "stopped")
                self.directory.event("interrupted", why="the operator stopped the coordinator")
                raise
            else:
                what = self.last_words()
                mailbox.notify(
                    self.transport.sites(), what, LAST_SECONDS if what == "next" else 0.0
                )
                return run

    def _event(self, kind: str, **facts: Any) -> None:
        self.directory.event(kind, **facts)
        if kind in TOLD or kind in AUDITED:
            self.audit(kind, **facts)
        if kind in TOLD:
            self.tell(printable(f"round {facts['round']}: {TOLD[kind].format(**facts)}"))

    def _roster(self) -> Roster:
        """The roster of the run in the folder, or of a new one; its name is written down before any site hears of it."""
        file = self.directory.path / "roster.json"
        roster = Roster.load(file)
        if not roster.run:
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
        request: Request = ("admit", AdmitRequest(federation.terms, versions()).facts, {})
        names = {site.name for site in federation.sites if not site.revoked}
        exchange = Exchange(
            mailbox, (0, 0), SameRequest(request, self._read), sorted(names), names
        ).run()
        try:
            self._note_shares(exchange.values)
            self._check_validated(exchange.values)
        except UnalikeError:
            (
                self.directory.path / "roster.json"
            ).unlink()  # to a run of the same name sites would repeat their answers
            raise
        self._note_untested(exchange.values)
        for site in sorted(exchange.values):
            self._event("admitted", client=site, **asdict(exchange.values[site]))
        return Roster(
            run,
            {
                site.name: exchange.values[site.name]
                for site in federation.sites
                if site.name in exchange.values
            },
        )

    def _read(self, site: str, facts: Facts, tensors: Tree) -> SampleCounts:
        enrolled = self.federation.sites[self.federation.number(site)]
        theirs, counts = facts.pop("versions", None), [facts.get(part) for part in SPLITS]
        if not isinstance(theirs, dict) or theirs.get("protocol") != PROTOCOL:
            raise RefusedUpdate(f"versions {str(theirs)[:80]!a}; expected protocol {PROTOCOL}")
        if (
            tensors
            or set(facts) != set(SPLITS)
            or not all(type(n) is int and 0 <= n < 2**31 for n in counts)
        ):
            raise RefusedUpdate(
                f"samples {str(facts)[:80]!a}; expected how many there are of {', '.join(SPLITS)}"
            )
        if facts["train"] > enrolled.samples:
            raise RefusedUpdate(
                f"{facts['train']} training samples; enrolled for at most {enrolled.samples}"
            )
        self._event(
            "versions", client=site, versions={k: str(v)[:40] for k, v in [*theirs.items()][:8]}
        )
        for name, ours in versions().items():
            if (found := str(theirs.get(name))[:40]) != ours:
                self._event(
                    "other version", round=0, client=site, name=name, found=found, ours=ours
                )
        return SampleCounts(**facts)

    def _note_untested(self, sites: Mapping[str, SampleCounts]) -> None:
        """Tell which sites do not evaluate, on test samples or on validation samples that were agreed on."""
        for split, what, wanted in (
            ("test", "test", self.test is None),
            ("val", "validation", self.federation.val > 0),
        ):
            without = [name for name, site in sites.items() if not getattr(site, split)]
            if without and wanted:
                self._event("untested", round=0, sites=", ".join(without), samples=what)

    def _check_validated(self, sites: Mapping[str, SampleCounts]) -> None:
        """Raise `UnalikeError` where validation samples decide, and no site has enough of them."""
        federation = self.federation
        by_scores = {
            "stop": "patience" in names_in(federation.stop),
            "select": federation.select == "best",
        }
        deciding = [name for name, is_so in by_scores.items() if is_so]
        if deciding and not any(site.val for site in sites.values()):
            raise UnalikeError(
                f"found no site that evaluates on validation samples, a share of val = {federation.val:g} of its training "
                f"samples and at least least_test in its site.toml. Expected some for {' and '.join(deciding)} in "
                "federation.toml: have sites lower least_test, leave that setting out, or make a federation with a larger --val"
            )

    def _note_shares(self, sites: Mapping[str, SampleCounts]) -> None:
        """Tell which sites have most of the weight. Raises `UnalikeError` for one with more than the largest share."""
        total = sum(site.train for site in sites.values())
        for name, site in sites.items() if len(sites) > 1 else ():
            share = site.train / max(1, total)
            if share > self.federation.max_weight:
                raise UnalikeError(
                    f"{name} has {site.train} of {total} training samples, {share:.0%} of the weight; expected at most "
                    f"{self.federation.max_weight:.0%} (max_weight in federation.toml): give it fewer samples, revoke it, or raise "
                    "the share"
                )
            if share > WARNED_SHARE:
                self._event(
                    "large share",
                    round=0,
                    client=name,
                    samples=site.train,
                    percent=round(100 * share),
                )


Log = Callable[[str], None]


def run_rounds(
    folder: FederationFolder,
    transport: Transport,
    log: Log,
    *,
    wait: bool = False,
    stay: bool = False,
    check: Callable[[], None] = lambda: None,
    again: str | None = None,
) -> Run | None:
    """Run what is left of the folder's queue over a transport, one run after the other; returns the last run.

    None if the operator stopped it before the end. `stay`: then wait for runs that are added.
    """
    operator, audit, run = OperatorCommands(folder.federation, transport, wait), folder.audit, None
    up = again or f"unalike federation up {folder.path}"

    def progress(row: dict[str, Any], what: str = "") -> None:
        check()
        operator.round = int(row["round"])
        log(
            f"round {operator.round} of {operator.federation.rounds}: {row['participants']} sites, {row['seconds']:.1f} s, "
            f"{row['headline']}".rstrip(", ")
            + (f", loss {row['loss']:.3g}" if row.get("loss", -1.0) >= 0 else "")
        )

    audit("started", versions=versions())
    with listening(folder.socket, operator.commands, operator.status, audit):
        try:
            while (queued := next(iter(folder.waiting), None)) or stay:
                if queued is None:
                    operator.wait_for_runs(log, check)
                    continue
                operator.enter(queued)
                operator.wait_for_sites(log, check)
                audit(
                    "run",
                    method=queued.federation.method,
                    seed=queued.federation.seed,
                    folder=str(queued.path),
                )
                coordinator = Coordinator(
                    *(queued.federation, folder.key, transport, queued.path),
                    test=folder.samples("test"),
                    proxy=folder.samples("proxy"),
                    start=folder.start,
                    control=operator.control,
                    tell=log,
                    audit=audit,
                    last_words=lambda: "next" if stay or folder.waiting[1:] else "finished",
                )
                run = coordinator.run(progress=progress)
                audit("finished", round=operator.round)
                write_pages(folder, queued, run, log, up)
        except Stopped:
            audit("stopped", round=operator.round)
            log(f"stopped after round {operator.round}; `{up}` goes on")
            return None
    return run
