"""The coordinator: admits the sites, runs the plan with them, and keeps the run; one run of the queue after the other."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.printable import all_printable, printable
from unalike._utils.progress import ProgressCallback
from unalike._utils.tensor_files import sweep
from unalike.core.codec import Facts
from unalike.core.options import MAX_SAMPLES
from unalike.core.types import Tree
from unalike.data.client_data import SPLITS
from unalike.engine.threads import threads_for
from unalike.federation.coordinator.deciding_score import with_deciding_metrics
from unalike.federation.coordinator.exchange import Exchange, SameRequest
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.late_sites import why_sites_are_fixed
from unalike.federation.coordinator.mailbox import ADMISSION, Mailbox, Place, Request
from unalike.federation.coordinator.network_backend import DiscardedRound, NetworkBackend, NewSites
from unalike.federation.coordinator.operator_commands import listening
from unalike.federation.coordinator.run_control import Control, OperatorCommands, Stopped
from unalike.federation.coordinator.run_pages import JOINED, UNTESTED, write_pages
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import PROTOCOL, AdmitRequest, versions
from unalike.federation.protocol.roster import (
    Roster,
    SampleCounts,
    new_run,
    placeholders,
    run_config_of,
)
from unalike.federation.protocol.transport import Transport
from unalike.federation.secure_aggregation.sum_ledger import SumLedger
from unalike.federation.security.keys import PrivateKey, public_text
from unalike.runtime.records.history import Row
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.round_loop import Ending, execute
from unalike.runtime.run_recorder import Run
from unalike.runtime.setup.run_config import Pair, RunConfig
from unalike.runtime.setup.stopping import names_in
from unalike.training.validation import RefusedUpdate

ANNOUNCED_EVENTS = {
    "absent": "{client}: {why}",
    "refused": "{client} was refused: {why}",
    "scaled down": "{client}: {why}",
    "discarded": "discarded, {why}; made again without {client}, whose update is {times} times as large as usual",
    "diverged model": "{why}, and no site stands out by the size of its update: a lower learning rate may help",
    "outlying loss": "{client}: {why}",
    "no quorum": "{sound} valid answers, {quorum} make a round; the sites that are missing are asked again",
    "paused": "paused: {why}; goes on when the sites are back, or by `unalike federation resume FOLDER`",
    "resumed": "goes on",
    "other version": "{client} has {name} {found} and this machine {ours}: numbers may differ in the last digits",
    "joined": JOINED,
    "not in this run": "{client} has connected; it takes no part in this run: {why}",
    "idle summands": "training fails at {idle} of {sites} sites, or gives what a sum cannot hold; their sum shows nothing",
    "large share": "{client} has {percent} % of all {part} samples, and as much of the weight",
    "untested": UNTESTED,
}
"""Event -> the line that the operator reads."""

SUMS = "sums.jsonl"
"""The file of the sums that were unmasked, in the folder of a federation."""
AUDIT_ONLY_EVENTS = ("admitted", "late", "versions", "connected")
"""Events besides those of `ANNOUNCED_EVENTS` that the audit log holds."""
FAREWELL_SECONDS = 3.0
"""Maximum seconds between the end of a run and the next one, in which sites answer that they have heard of it."""
WARNED_SHARE = 0.5
"""The share of the training samples above which a site is named at admission."""
SPLIT_WORDS = {"train": "training", "test": "test", "val": "validation"}
"""Split -> its samples in words."""
MAX_LISTED_VERSIONS = 8
"""Versions of programs in a site's answer to the admission that are written down."""


class Coordinator:
    """Runs a federation over a transport into the folder `out`; a run that began there is continued.

    `test` are samples of the coordinator's own for the protocol "server", `proxy` those that a method learns from. `start` is a
    file of initial weights. `control` pauses, resumes and stops the run from another thread. `tell` takes one line for each
    problem, `audit` what the audit log holds: refusals, pauses, versions, admissions. `last_words` is the notice at the end.
    `unmasked` has the sums of secure aggregation of all runs of the federation, by default in `out`. `after` is the name of the
    newest run that the federation had before.
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
        audit: Callable[..., None] = lambda event, **details: None,
        last_words: Callable[[], str] = lambda: "finished",
        unmasked: SumLedger | None = None,
        after: str = "",
    ):
        if public_text(key) != federation.coordinator:
            raise UnalikeError(
                "the private key is not the coordinator's in the federation file; use the one made with it"
            )
        self.federation = federation
        self.key = key
        self.transport = transport
        self.directory = RunDirectory(out)
        self.test = test
        self.proxy = proxy
        self.start = start
        self.control = control or Control()
        self.tell = tell
        self.audit = audit
        self.last_words = last_words
        self.after = after
        self.unmasked = unmasked or SumLedger(self.directory.path / SUMS)

    def run(
        self, *, stop: Ending | None = None, progress: ProgressCallback = lambda row, what="": None
    ) -> Run:
        """Run to the end. Raises `Stopped` when the operator stops it; run again, it continues from there."""
        sweep(self.directory.path)
        roster = self._roster()
        mailbox = self._mailbox(roster.run, members=roster.sites)
        left_out: dict[Place, set[str]] = {}

        def keep_and_report(row: Row, what: str = "") -> None:
            if row["round"] and row["round"] % self.federation.keep_every == 0:
                self.directory.keep(row["round"])
            progress(row, what)

        # A round that has to be discarded ends the attempt. The next one goes on before it, without the site that stood out.
        # So do sites that join: the next attempt goes on where this one was, with them.
        while True:
            run_config = self._run_config(roster)
            backend = NetworkBackend(
                run_config=run_config.here(),
                mailbox=mailbox,
                arrived=self.directory.path / "arrived",
                left_out=left_out,
                unmasked=self.unmasked,
                samples=sum(counts.train for counts in roster.at_start.sites.values()),
                began=self._began,
            )
            try:
                with threads_for(run_config.model):
                    run = execute(
                        run_config,
                        backend=backend,
                        out=self.directory.path,
                        resume=True,
                        stop=stop,
                        progress=keep_and_report,
                    )
            except DiscardedRound as discarded:
                left_out.setdefault(discarded.place, set()).add(discarded.site)
                self.directory.drop_later(*discarded.place)
                mailbox.forget_requests()
            except NewSites:
                roster = self._joined(roster, mailbox)
                mailbox.members = roster.sites
            except Stopped:
                mailbox.notify(self.transport.sites(), "stopped")
                self.directory.event("interrupted", why="the operator stopped the coordinator")
                raise
            else:
                what = self.last_words()
                # Answers that are still on their way would be refused by the next run.
                seconds = FAREWELL_SECONDS if what == "next" else 0.0
                mailbox.notify(self.transport.sites(), what, seconds)
                return run

    @property
    def _began(self) -> float:
        """The time at which the run began, in seconds since 1970: that of its first event, which is of the admission."""
        return next((float(event["time"]) for event in self.directory.events), time.time())

    def _run_config(self, roster: Roster) -> RunConfig:
        """The run as configured by the federation file, with placeholders for the samples of the admitted sites."""
        run_config = self._configured(roster)
        # A cached property, which is written into the folder of the run: sites that join later make no other run of it.
        if roster.joined:
            run_config.description.update(self._configured(roster.at_start).description)
        run_config.description["federation"] = self.federation.name
        return run_config

    def _configured(self, roster: Roster) -> RunConfig:
        """The run with the sites of this roster."""
        # Sites that were enrolled after the run began are in later runs.
        enrolled = self.federation.sites
        begun_with = len(self.directory.names or enrolled)
        federation = replace(self.federation, sites=enrolled[:begun_with])
        run_config = run_config_of(
            federation,
            population=placeholders(federation, roster),
            test=self.test,
            proxy=self.proxy,
            start=self.start,
            coordinated=True,
        )
        return with_deciding_metrics(run_config, federation)

    def _mailbox(self, run: str, members: Collection[str] | None = None) -> Mailbox:
        why_fixed = why_sites_are_fixed(self.federation)
        return Mailbox(
            federation=self.federation,
            key=self.key,
            transport=self.transport,
            run=run,
            control=self.control,
            event=self._event,
            members=members,
            admission=None if why_fixed else self._admission,
            why_fixed=why_fixed,
        )

    def _event(self, kind: str, **details: Any) -> None:
        """Write an event down in the run's folder; some are for the audit log, too, and some for the operator to read.

        What a site has sent is in it without control characters.
        """
        details = all_printable(details)
        self.directory.event(kind, **details)
        if kind in ANNOUNCED_EVENTS or kind in AUDIT_ONLY_EVENTS:
            self.audit(kind, **details)
        if kind in ANNOUNCED_EVENTS:
            line = ANNOUNCED_EVENTS[kind].format(**details)
            self.tell(printable(f"round {details['round']}: {line}"))

    # admission --------------------------------------------------------------------------------------------------------

    @property
    def _roster_file(self) -> Path:
        return self.directory.path / "roster.json"

    @property
    def _admission(self) -> Request:
        """The request to a site to join the run."""
        admit_request = AdmitRequest(terms=self.federation.terms, versions=versions())
        return Request("admit", admit_request.facts, {})

    def _roster(self) -> Roster:
        """The roster of the run in the folder, or of a new one; its name is written down before any site hears of it."""
        roster = Roster.load(self._roster_file)
        if not roster.run:
            roster = Roster(new_run(self.after), {})
            roster.save(self._roster_file)
        if not roster.sites:
            roster = self._admitted(roster.run)
            roster.save(self._roster_file)
        return roster

    def _admitted(self, run: str) -> Roster:
        """Ask all enrolled sites; those that answer before the deadline are admitted."""
        federation = self.federation
        names = {site.name for site in federation.sites if not site.revoked}
        exchange = Exchange(
            mailbox=self._mailbox(run),
            place=ADMISSION,
            requests=SameRequest(self._admission, self._read_admission),
            sites=sorted(names),
            counted=names,
        ).run()
        counts = exchange.values

        try:
            self._check_shares(counts)
            self._check_validated(counts)
        except UnalikeError:
            # A run of the same name would get the same answers again, also from a site that has changed its data.
            self._roster_file.unlink()
            raise

        self._report_untested(counts)
        for site in sorted(counts):
            self._event("admitted", client=site, **asdict(counts[site]))
        # In the order of the federation file, which numbers the clients.
        admitted = {
            site.name: counts[site.name] for site in federation.sites if site.name in counts
        }
        return Roster(run, admitted)

    def _joined(self, roster: Roster, mailbox: Mailbox) -> Roster:
        """The roster with the newcomers, each of which is checked as at the admission. Who does not pass takes no part."""
        # Their answers have come: the exchange waits for nobody, and leaves the requests of sites under way open.
        exchange = Exchange(
            mailbox=mailbox,
            place=ADMISSION,
            requests=SameRequest(self._admission, self._read_admission),
            sites=mailbox.newcomers,
            counted=set(),
            under_way=mailbox.under_way,
        ).run()
        for site, counts in sorted(exchange.values.items()):
            try:
                self._check_share(site, roster.sites | {site: counts})
            except UnalikeError as error:
                mailbox.turn_away(site, str(error))
                continue
            roster = roster.with_late({site: counts}, mailbox.number)
            self._event("joined", round=mailbox.number, client=site, **asdict(counts))
            self._report_untested({site: counts})
        # Only what is on disk counts: after a kill before this line the sites are asked anew.
        roster.save(self._roster_file)
        return roster

    def _read_admission(self, site: str, facts: Facts, tensors: Tree) -> SampleCounts:
        """A site's numbers of samples, once its answer is known to be possible."""
        theirs = facts.pop("versions", None)
        if not isinstance(theirs, dict) or theirs.get("protocol") != PROTOCOL:
            raise RefusedUpdate(f"versions {str(theirs)[:80]!a}; expected protocol {PROTOCOL}")

        counts = [facts.get(part) for part in SPLITS]
        are_counts = all(type(n) is int and 0 <= n < 2**31 for n in counts)
        if tensors or set(facts) != set(SPLITS) or not are_counts:
            raise RefusedUpdate(
                f"samples {str(facts)[:80]!a}; expected how many there are of {', '.join(SPLITS)}"
            )
        enrolled = self.federation.sites[self.federation.number(site)]
        # Evaluations are weighted by numbers, too; validation samples are taken from those that a site is enrolled for.
        most = {"train": enrolled.samples, "val": enrolled.samples}
        most["test"] = max(enrolled.samples, MAX_SAMPLES)
        for part, word in SPLIT_WORDS.items():
            if facts[part] > most[part]:
                raise RefusedUpdate(
                    f"{facts[part]} {word} samples; enrolled for at most {most[part]}"
                )

        self._report_versions(site, theirs)
        return SampleCounts(**facts)

    def _report_versions(self, site: str, theirs: dict[str, Any]) -> None:
        """Write down a site's versions, and tell where they differ from those of this machine."""
        listed = list(theirs.items())[:MAX_LISTED_VERSIONS]
        short = {name[:40]: str(version)[:40] for name, version in listed}
        self._event("versions", client=site, versions=short)
        for name, ours in versions().items():
            found = str(theirs.get(name))[:40]
            if found != ours:
                self._event(
                    "other version", round=0, client=site, name=name, found=found, ours=ours
                )

    def _report_untested(self, sites: Mapping[str, SampleCounts]) -> None:
        """Tell which sites do not evaluate, on test samples or on validation samples that were agreed on."""
        evaluated = []
        if self.test is None:
            evaluated.append(("test", "test"))
        if self.federation.val > 0:
            evaluated.append(("val", "validation"))
        for split, word in evaluated:
            without = [name for name, counts in sites.items() if not getattr(counts, split)]
            if without:
                self._event("untested", round=0, sites=", ".join(without), samples=word)

    def _check_validated(self, sites: Mapping[str, SampleCounts]) -> None:
        """Raise `UnalikeError` where validation samples decide, and no site has enough of them."""
        federation = self.federation
        deciding = []
        if "patience" in names_in(federation.stop):
            deciding.append("stop")
        if federation.select == "best":
            deciding.append("select")
        if deciding and not any(counts.val for counts in sites.values()):
            raise UnalikeError(
                f"found no site that evaluates on validation samples, a share of val = {federation.val:g} of its training "
                f"samples and at least least_test in its site.toml. Expected some for {' and '.join(deciding)} in "
                "federation.toml: have sites lower least_test, leave that setting out, or make a federation with a larger --val"
            )

    def _check_shares(self, sites: Mapping[str, SampleCounts]) -> None:
        """Tell which sites have most of the weight. Raises `UnalikeError` for one with more than the largest share."""
        for name in sites:
            self._check_share(name, sites)

    def _check_share(self, name: str, sites: Mapping[str, SampleCounts]) -> None:
        """Tell if one of these sites has most of the weight. Raises `UnalikeError` if it has more than the largest share."""
        if len(sites) <= 1:
            return
        counts = sites[name]
        for split, part in SPLIT_WORDS.items():
            total = sum(getattr(each, split) for each in sites.values())
            claimed = getattr(counts, split)
            share = claimed / max(1, total)
            if split == "train" and share > self.federation.max_weight:
                raise UnalikeError(
                    f"{name} has {claimed} of {total} training samples, {share:.0%} of the weight; expected at most "
                    f"{self.federation.max_weight:.0%} (max_weight in federation.toml): give it fewer samples, revoke it, or "
                    "raise the share"
                )
            # Others may evaluate on none. As many as a site trains on are bounded by these.
            is_bounded = split != "train" and claimed <= counts.train
            if share > WARNED_SHARE and not is_bounded:
                self._check_claim(name, claimed, total, part, len(sites))
                self._event(
                    "large share",
                    round=0,
                    client=name,
                    samples=claimed,
                    part=part,
                    percent=round(100 * share),
                )

    def _check_claim(self, name: str, claimed: int, total: int, part: str, sites: int) -> None:
        """Raise `UnalikeError` for a site with most of the weight by its word alone. Of two sites one always has half or more."""
        enrolled = self.federation.sites[self.federation.number(name)].samples
        # a number that a person wrote down covers as many samples, of whatever part
        is_covered = claimed <= enrolled < MAX_SAMPLES
        if sites > 2 and not is_covered:
            known = "nobody has said how many it has"
            if enrolled < MAX_SAMPLES:
                known = f"it is enrolled for {enrolled}"
            raise UnalikeError(
                f"{name} claims {claimed} of {total} {part} samples, most of the weight, and {known}: write its number as samples "
                "in federation.toml if it is right, or revoke the site; `unalike federation init` takes numbers from --summary "
                "or --sites north:120"
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
    operator = OperatorCommands(folder.federation, transport, wait)
    audit = folder.audit
    up = again or f"unalike federation up {folder.path}"
    run = None

    def log_round(row: dict[str, Any], what: str = "") -> None:
        check()
        operator.round = int(row["round"])
        line = (
            f"round {operator.round} of {operator.federation.rounds}: {row['participants']} sites"
        )
        line += f", {row['seconds']:.1f} s, {row['headline']}"
        line = line.rstrip(", ")
        # rounds that are not evaluated have no loss
        if row.get("loss", -1.0) >= 0:
            line += f", loss {row['loss']:.3g}"
        log(line)

    def last_words() -> str:
        return "next" if stay or folder.waiting[1:] else "finished"

    unmasked = SumLedger(folder.path / SUMS)
    audit("started", versions=versions())
    with listening(folder.socket, operator.commands, operator.status, audit):
        try:
            while True:
                # The folder is read anew each time: the operator may have added runs.
                queued = next(iter(folder.waiting), None)
                if queued is None and not stay:
                    return run
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
                paths = [other.path for other in folder.queue]
                coordinator = Coordinator(
                    federation=queued.federation,
                    key=folder.key,
                    transport=transport,
                    out=queued.path,
                    test=folder.samples("test"),
                    proxy=folder.samples("proxy"),
                    start=folder.start,
                    control=operator.control,
                    tell=log,
                    audit=audit,
                    last_words=last_words,
                    unmasked=unmasked,
                    after=max(Roster.load(path / "roster.json").run for path in paths),
                )
                run = coordinator.run(progress=log_round)
                audit("finished", round=operator.round)
                write_pages(folder, queued, run, log, up)
        except Stopped:
            audit("stopped", round=operator.round)
            log(f"stopped after round {operator.round}; `{up}` goes on")
            return None
