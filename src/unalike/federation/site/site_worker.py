"""A site's request handlers: receive an envelope, check it, do what it asks within the agreed terms, store the reply, send it."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.journal import Journal
from unalike._utils.printable import printable
from unalike._utils.spec import parse_one
from unalike.core import tree
from unalike.core.codec import Facts, Limits, Malformed, checksum
from unalike.core.inputs import take_rows
from unalike.core.model import Model
from unalike.core.nests import map_tensors
from unalike.core.tasks.registry import find_task
from unalike.core.types import Broadcast, Tree
from unalike.core.views import Members, ServerState
from unalike.data.array_checks import Pair
from unalike.data.client_data import SPLITS, ClientData
from unalike.engine.loop import Loop
from unalike.engine.threads import threads_for
from unalike.federation.protocol.envelope import Envelope, Head, identity, seal, unseal
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import (
    ANSWER,
    NOTICE,
    NOTICES,
    PROTOCOL,
    UNABLE,
    AdmitRequest,
    AgreedRequest,
    ChooseRequest,
    Declined,
    MaskedTrainRequest,
    QueryRequest,
    SetupRequest,
    StepRequest,
    TrainRequest,
    UnmaskRequest,
    versions,
)
from unalike.federation.protocol.request_tensors import (
    fixed_tensors,
    received_samples,
    round_tensors,
)
from unalike.federation.protocol.roster import DIGITS_OF_TIME, run_config_of, site_population
from unalike.federation.secure_aggregation.dither import random_words
from unalike.federation.secure_aggregation.sum_ledger import SumLedger
from unalike.federation.secure_aggregation.summands import (
    Summand,
    check_one_weighing,
    check_summed,
    check_threshold,
    own_weights,
    trained_summand,
)
from unalike.federation.security.keys import PrivateKey, public_key, public_text
from unalike.federation.site.earlier_requests import EarlierRequests
from unalike.federation.site.plan_replay import model_of_step, planned_step
from unalike.federation.site.release_ledger import ReleaseLedger
from unalike.federation.site.secure_sums import Masks, SecureSums
from unalike.federation.site.site_folder import JOURNAL, LEDGER, SUMS, SiteFolder
from unalike.federation.site.site_policy import NO_RULES, SitePolicy
from unalike.methods.client_query import registry as queries
from unalike.methods.method import Method
from unalike.methods.plan import QueryStep, Stage
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.scoring import Predict, SharedModel, score
from unalike.runtime.stages.model_group import ModelGroup
from unalike.runtime.stages.query_runner import ask_client
from unalike.training.client.client_states import ClientStates, group_folder
from unalike.training.client.client_update import initial_client_state
from unalike.training.flat_update import flatten_update
from unalike.training.server.server_round import SumWeights
from unalike.training.validation import RefusedUpdate, check_tree

Answer = tuple[Facts, Tree]
S = TypeVar("S", bound=StepRequest)

RUN_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{16}")
"""The name of a run: when it began, in nanoseconds since 1970, and a random number."""
FUTURE_NANOSECONDS = 24 * 3600 * 10**9
"""Nanoseconds by which a run may be from the future, by this machine's clock."""
MAX_JOURNAL_TEXT = 1000
"""Characters of the reason of a declined request in the journal."""
FIXED_PREFIXES = ("fixed.", "shared/")
"""Prefixes of the tensors that are sent once for a whole step."""


class SiteGroup(NamedTuple):
    """A model group at a site, and the tensors that requests for it have: names, shapes and types.

    `step` is what the request says of its step for which the group was made; `trains`: the plan trains in it.
    """

    group: ModelGroup
    declared: Tree
    step: Facts
    trains: bool


class SiteWorker:
    """One site of a federation.

    It answers requests that the coordinator signed, of the newest run, under the terms of its own copy of the federation file. The
    methods and queries are those of the plan that is installed here; nothing leaves the site but what these declare
    (`ua.wire(method, model)`) and the sums and counts of its metrics. Its state is in `folder` and is written before a reply is
    sent, so the process may be killed at any moment. A new run removes the files of all runs but the last two. A run continues
    only with the samples that the site was admitted with. `device` is where the site trains; it is not reported to anybody.
    `public` are the public samples of the terms, which come with the bundle and never in a request.
    `log` gets the reason when a request is declined. `policy` are the site's own rules. Every answer and every request
    that was declined is an entry of `journal`, and every update of a private method one of `ledger`. `done` is set when the
    coordinator says that all runs are finished.
    """

    def __init__(
        self,
        federation: Federation,
        name: str,
        key: PrivateKey,
        data: ClientData,
        folder: Path | str,
        device: str = "cpu",
        log: Callable[[str], None] = lambda line: None,
        policy: SitePolicy = NO_RULES,
        public: Pair | None = None,
    ):
        self.federation = federation
        self.name = name
        self.key = key
        self.log = log
        self.folder = SiteFolder(Path(folder))
        self.policy = policy
        self.journal = Journal(self.folder.path / JOURNAL)
        self.ledger = ReleaseLedger(self.folder.path / LEDGER, policy.epsilon)
        self.done = Event()
        self.number = federation.number(name)
        if public_text(key) != federation.sites[self.number].key:
            raise UnalikeError(
                f"the private key is not that of {name!r} in the federation file; use the site's own bundle"
            )
        self.coordinator = public_key(federation.coordinator)
        self.limits = Limits(bytes=federation.message_bytes)
        self.agreed = federation.variants
        self._data = data
        self._public = public
        self._device = device
        self._unmasked = SumLedger(self.folder.path / SUMS)
        self._groups: dict[tuple[str, int, int], SiteGroup] = {}
        """Run, step and number of a group -> the group, of the step that is under way."""
        self._sent_updates: dict[tuple[str, int, int], int] = {}
        """Run, step and number of a group -> the round of the update that was sent last."""
        self._lock = Lock()
        self._begin_with(federation)

    def _begin_with(self, federation: Federation) -> None:
        """Go on with runs of this method and seed, which are among those agreed on."""
        # The site's own rules come first: samples that they leave out are seen by nothing that follows.
        task = find_task(federation.data.task)
        data = self.policy.allowed(self._data, federation.method, task)
        population = site_population(federation, self.number, data)
        count = len(population.train[self.number])
        enrolled = federation.sites[self.number]
        if count > enrolled.samples:
            raise UnalikeError(
                f"{self.name!r} has {count} training samples and is enrolled for {enrolled.samples}; "
                "use fewer, or ask the coordinator for a larger number"
            )

        # A site reads the public samples that the terms name. Without any a plan is outlined with others, which nothing reads.
        proxy: Pair | None = (population.x, population.y)
        if federation.public is not None:
            self.policy.check_public(federation.public.samples)
            proxy = self._public
        run_config = run_config_of(federation, population, proxy=proxy, device=self._device)
        run_config = run_config.here()
        if federation.secure_aggregation:
            check_one_weighing(federation)
        for planned in run_config.outline:
            if isinstance(planned, Stage):
                coefficients = planned.method.least_samples(run_config.settings)
                self.policy.check_fit(count, coefficients)
            if federation.secure_aggregation:
                check_summed(planned, run_config.settings)
                check_threshold(planned, federation, run_config.settings)

        # Nothing is taken over before all was checked: what is refused now is refused again.
        # Where networks differ, the site trains its own, and knows no other from here on.
        self.samples = population.fingerprint
        self.run_config = run_config.with_network_of(self.number)
        self.networks = len(run_config.models or ("all",))
        """Networks of the federation: the sites with one of them are a group."""
        self.population = run_config.population
        self.federation = federation
        self.terms = federation.terms
        self._groups.clear()

    def handle(self, message: bytes) -> bytes:
        """Answer a request; a repeated request gets the same bytes. One request at a time."""
        with self._lock, threads_for(self.run_config.model):
            # As long as the message has no valid signature, nothing in it is known: a refusal answers no certain request.
            head = Head(run="unknown", stage=0, round=0, site=self.name, kind="request")
            digest = ""
            try:
                # 1. The coordinator has signed it, for this site and the newest run.
                request = unseal(message, self.coordinator, self.limits)
                head, digest = request.head, request.digest
                self._check_head(head)

                # 2. The site's own rules have room for a new run, and so has the disk.
                if head.run not in self.folder.runs():
                    self.policy.check_new_run(self._earlier.begun.values(), time.time())
                self.folder.make_room(head.run)

                # 3. What was answered before is not done again: the stored reply is sent once more.
                #    Keys and shares are no work. They are made anew, and are the same.
                replies = self.folder.replies(head.run, public_text(self.key))
                reply = replies.find(request)
                if reply is not None:
                    return reply

                # 4. It is done within the rules for a round, for which every request counts, also one that is declined now.
                self._check_rules(head, before=self._earlier.count(head, digest))
                reply = self._answer(request, message)
                if head.kind in MASKING:
                    return reply

                # 5. The reply is on disk before it leaves: a kill loses nothing.
                replies.store(request, reply)
                return reply
            except Exception as error:
                # A request that fails must not stop the site from answering the next one.
                return self._decline(error, message, head, digest)

    def _answer(self, request: Envelope, message: bytes) -> bytes:
        """Do what a request asks, write that into the journal, and sign the answer."""
        head = request.head
        facts, tensors = HANDLERS[head.kind](self, request)
        tensors = tree.map(Tensor.cpu, tensors)
        reply_head = replace(head, kind=ANSWER, answers=request.digest)
        reply = seal(reply_head, facts, tensors, self.key)
        self._write_down(
            "answered",
            message,
            head,
            request.digest,
            trained=_is_update(tensors),
            evaluated=sorted(facts.get("tallies", ())),
            sent=len(reply),
            reply=identity(reply),
        )
        self._earlier.begun.setdefault(head.run, time.time())
        return reply

    def _decline(self, error: Exception, message: bytes, head: Head, digest: str) -> bytes:
        """The reply to a request that fails: a code. The reason may hold paths and values, and stays at the site."""
        is_expected = isinstance(error, UnalikeError | OSError)
        why = printable(str(error) if is_expected else f"{type(error).__name__}: {error}")
        self.log(f"declined a request: {why}")
        code = _code_of(error)
        # On a full disk the journal cannot be written either; the coordinator hears of it all the same.
        with suppress(UnalikeError):
            self._write_down(
                "declined", message, head, digest, code=code, why=why[:MAX_JOURNAL_TEXT]
            )
        reply_head = replace(head, kind=UNABLE, answers=digest)
        return seal(reply_head, {"code": code}, {}, self.key)

    @cached_property
    def _earlier(self) -> EarlierRequests:
        """The requests that the rules count."""
        return EarlierRequests(self.journal.path, self.name, MASKING)

    def _write_down(
        self, event: str, message: bytes, head: Head, request: str, **details: Any
    ) -> None:
        """Add an entry about a request to the journal."""
        self.journal.add(
            event,
            run=head.run,
            step=head.stage,
            round=head.round,
            site=head.site,
            kind=head.kind,
            request=request,
            received=len(message),
            **details,
        )

    # 1. Check the request.

    def _check_head(self, head: Head) -> None:
        """Raise an `UnalikeError` for a request to another site, of an unknown kind, or of a run that is not the newest."""
        if head.site != self.name:
            raise Malformed(f"a request to {head.site!r}; this is {self.name!r}")
        if head.kind not in HANDLERS:
            raise Malformed(
                f"a request of the kind {head.kind!r}; expected one of {', '.join(HANDLERS)}"
            )
        # A run from the future would be the newest for ever, and end all real ones.
        if not RUN_NAME.fullmatch(head.run):
            raise Malformed(
                f"a run {head.run}; expected the time at which it began in {DIGITS_OF_TIME} digits, and a random number"
            )
        if int(head.run[:DIGITS_OF_TIME]) > time.time_ns() + FUTURE_NANOSECONDS:
            raise Declined(
                "clock",
                f"run {head.run} begins more than a day after the time of this machine, {datetime.now():%Y-%m-%d %H:%M}; expected "
                "the time at which it began: set the clock of this machine, or of the coordinator's",
            )
        newest = max(self.folder.runs(), default="")
        if head.run < newest:
            raise Declined("over", f"run {head.run} is over: {newest} is newer; a replay?")

    def _check_rules(self, head: Head, before: int) -> None:
        """Raise `Declined` where the site's own rules exclude a request; so many others of its round came `before`."""
        if head.kind in MASKING:
            self.policy.check_masking_request(before)
            before = 0
        self.policy.check_request(
            head=head,
            agreed_rounds=self.federation.rounds,
            before=before,
            earlier=self._earlier,
        )

    def _opened(self, request: Envelope, kind: type[S]) -> tuple[S, Tree]:
        """The request's facts, checked against the terms and the samples at admission; and its tensors."""
        facts, tensors = request.open(self.limits)
        step = kind.read(facts)
        self._check_terms(step)

        # The plan is run up to the step of the head, and not to another one, whose model might differ.
        if len(step.outcomes) != request.head.stage - 1:
            raise Declined(
                "plan",
                f"outcomes of {len(step.outcomes)} steps in a request of step {request.head.stage}",
            )

        # The number of all samples goes into plans and weights. It cannot be above what the sites were enrolled for.
        most = sum(site.samples for site in self.federation.sites)
        if step.samples > most and not self.federation.open:
            raise Declined(
                "plan", f"{step.samples} training samples of all sites; expected at most {most}"
            )

        self._bind_samples(request.head.run)
        return step, tensors

    def _bind_samples(self, run: str) -> None:
        """A run has the same samples from its beginning to its end. Raises `Declined` where these are other ones.

        A run that went back to an earlier round admits nobody anew, so that any first request binds the samples.
        """
        admitted = self.folder.admitted(run)
        if not admitted:
            self.folder.admit(run, self.samples, self.policy.of_samples)
        elif admitted[0] != self.samples:
            now = self.policy.of_samples
            rules = ""
            for then in admitted[1:]:
                if then != now:
                    rules += f" and with {then} in site.toml (now {now})"
            raise Declined(
                "samples",
                f"the samples of {self.name!r} are not those that it was admitted to this run with; join with the data that the "
                f"run began with{rules}, or ask the coordinator for a new run",
            )

    def _check_terms(self, asked: AgreedRequest) -> None:
        """Go on with other terms if these were agreed on, too. Raises `Declined` for terms that were not."""
        if asked.terms != self.terms and asked.terms in self.agreed:
            self._begin_with(self.agreed[asked.terms])
        if asked.terms != self.terms:
            raise Declined(
                "terms",
                "the coordinator runs other terms than this site agreed to (method, model, work, seed, data, protocol, sites); "
                "compare the federation files",
            )

    def _check_place(self, head: Head, step: TrainRequest) -> None:
        """Raise `Declined` for training in another round than that of the head, or from a client state of a later one.

        A stage that only evaluates counts no round: its model keeps the round in which it was trained. A plan that divides clients
        goes on with a model of an earlier stage, and with its rounds.
        """
        accepted = step.accepted
        earlier_rounds = step.round - head.round
        most = self.federation.rounds if self.run_config.plan.divides else 0
        trains_elsewhere = step.train and not 0 <= earlier_rounds <= most
        is_later = accepted is not None and accepted >= max(step.round, head.round)
        if trains_elsewhere or is_later:
            raise Declined(
                "plan",
                f"round {step.round}, from the client state of round {accepted}; the message is of round {head.round}",
            )

    def _check_round(self, step: TrainRequest, group: ModelGroup) -> None:
        """Raise `Declined` for what a round of the agreed method does not have."""
        settings = group.settings
        protocols = set(self.federation.protocol)
        shown = set()
        if "clients" in protocols or "server" in protocols:
            shown.add("clients")
        if group.method.is_personal(settings.model):
            shown.add("personal")
        local = {"local"} if step.local else set()

        def check(what: str, found: set[Any], agreed: set[Any]) -> None:
            if found <= agreed:
                return
            odd = ", ".join(sorted(str(item) for item in found - agreed))
            usual = ", ".join(sorted(str(item) for item in agreed))
            raise Declined(
                "plan", f"{what} {odd} in round {step.round}; expected {usual or 'none'}"
            )

        check("evaluations of", set(step.evaluate), shown)
        check("evaluations of", local, protocols)
        check("a learning rate of", {step.lr}, {settings.work.lr_at(step.round)})

    # 2. Do what it asks: one handler for each kind of request.

    def _admit(self, request: Envelope) -> Answer:
        """The numbers of samples; the run is bound to these samples from now on."""
        facts, _ = request.open(self.limits)
        theirs = dict(facts.get("versions") or {}).get("protocol")
        if theirs != PROTOCOL:
            raise Declined(
                "version", f"the coordinator speaks protocol {theirs}; this site speaks {PROTOCOL}"
            )
        self._check_terms(AdmitRequest.read(facts))
        self._bind_samples(request.head.run)
        counts = {split: len(self._rows(split)) for split in SPLITS}
        return counts | {"versions": versions()}, {}

    def _hear_notice(self, request: Envelope) -> Answer:
        """Print what the coordinator says, and end where it says that all runs are finished."""
        facts, _ = request.open(self.limits)
        what = facts.get("what")
        if what not in NOTICES:
            raise Malformed(f"a notice {str(facts)[:80]!a}; expected one of {', '.join(NOTICES)}")
        self.log(NOTICES[str(what)])
        if what in ("next", "finished") and self.folder.has_model:
            home = self.folder.path.parent
            self.log(
                f"this site's model of the last round is kept: `unalike evaluate {home}`, `unalike predict {home}`"
            )
        if what == "finished":
            self.done.set()
        return {}, {}

    def _train(self, request: Envelope) -> Answer:
        """Evaluate the received model, and train it if asked to: one exchange does both."""
        kind = MaskedTrainRequest if self.federation.secure_aggregation else TrainRequest
        step, tensors = self._opened(request, kind)
        self._check_place(request.head, step)
        if step.train:
            self.policy.check_training(request.head.round, self.federation.rounds)
        sent_once = {n: t for n, t in tensors.items() if n.startswith(FIXED_PREFIXES)}
        sent_anew = {n: t for n, t in tensors.items() if n not in sent_once}
        me = self.number

        # The model that the coordinator sent, in the shapes of the step that was agreed on.
        tensors = sent_anew | self._fixed(request, step, sent_once)
        trees = tree.unpack(self._on_device(tensors))
        group, broadcast = self._broadcast(request, step, tensors, trees)
        if sent_once:
            self.folder.keep_fixed_tensors(request.head.run, request.head.stage, sent_once)
        self._tell_outcome(request.head, step)
        group.state = ServerState(
            round=broadcast.round,
            params=broadcast.params,
            buffers=broadcast.buffers,
            part_states={},
        )

        # The client state is that of the last update that counted: of rounds that were discarded nothing stays.
        group.accepted = _accepted_rounds(me, step.accepted)
        client_states = group.client_states
        assert isinstance(client_states, ClientStates), "a site keeps its states itself"
        client_states.keep_rounds_from(broadcast.round)
        client_states.drop_other_versions(group.accepted)

        # What cannot be released or masked is declined before any sample is read: the answer says nothing about them.
        if step.train and group.method.releases_once:
            self._check_first_update(request)
        masks = None
        if step.train and isinstance(step, MaskedTrainRequest):
            members = Members(clients=step.clients, samples=float(step.samples))
            weights = own_weights(group, [me], members)
            masks = self._sums(request).begin_summand(
                request.head,
                step,
                sent_anew,
                keeps_states=not client_states.empty,
                factor=float(weights.coefficients[0]),
            )
        if step.train and group.method.releases_once:
            self._write_release(request.head, group)

        # Evaluation comes before training: its numbers are those of the round before.
        models = {name: PREDICTS[name](group, me, broadcast) for name in step.evaluate}
        sums = {}
        for name, predict in models.items():
            if self.federation.tells_scores(name, group.predicts_the_same_for_all):
                sums[name] = self._metric_sums(predict)
        if models:
            self._keep_model(request, group, models.get("personal") or models["clients"])
        if not step.train:
            return {"tallies": sums}, {}

        # The update leaves in clear, or as a summand behind masks.
        if masks is None:
            stacked = group.executor.run(broadcast, [me], group.accepted)
            update = map_tensors(lambda t: t[0], stacked)
            answer = flatten_update(update)
        else:
            summand = self._summand(request, group, broadcast, masks, weights)
            update = summand.client_update
            answer = self._sums(request).masked(masks, summand.words)

        # The new client state is kept beside the old one until the coordinator says which of them counts.
        group.client_states.save({me: broadcast.round})
        self._sent_updates[request.head.run, request.head.stage, step.group] = broadcast.round
        if step.local:
            group.accepted = {me: broadcast.round}
            sums["local"] = self._metric_sums(group.local_model(me, group.state, update))
        return {"tallies": sums}, answer

    def _tell_outcome(self, head: Head, step: TrainRequest) -> None:
        """Say so where this site's last update did not count, or not fully: a request names the last one that did."""
        sent = self._sent_updates.pop((head.run, head.stage, step.group), None)
        if sent is None or sent >= step.round:
            return
        outcome = ""
        if step.accepted != sent:
            outcome = "did not count: the coordinator refused it, or it came late, as its log says"
        elif step.share < 1:
            share = f"{step.share:.2g} of its size"
            why = "it was much larger than those of the others, or against them"
            outcome = f"counted with {share}: {why}"
        if outcome:
            self.log(
                f"round {sent + 1}: the update of this site {outcome}. Columns in other units are a usual reason: compare "
                "your table with the agreed one"
            )

    def _summand(
        self,
        request: Envelope,
        group: ModelGroup,
        broadcast: Broadcast,
        masks: Masks,
        weights: SumWeights,
    ) -> Summand:
        """The summand of this site in a round. Only its own journal and log say whether it is idle."""
        summand = trained_summand(
            group,
            broadcast,
            client=self.number,
            weights=weights,
            sites=len(masks.cohort),
            random_words=partial(random_words, self.folder.secret(self.samples), masks.model),
        )
        if summand.why_idle:
            head = request.head
            if not group.client_states.empty:
                self._sums(request).leave_history(head)
            why = printable(summand.why_idle)
            self.log(
                f"training in round {head.round} failed, and so does the sum of that round: {why}"
            )
            self.journal.add(
                "idle summand",
                run=head.run,
                step=head.stage,
                round=head.round,
                why=why[:MAX_JOURNAL_TEXT],
            )
        return summand

    def _check_first_update(self, request: Envelope) -> None:
        """Raise `Declined` where an update for this round may have left: a reply is stored before it is sent."""
        replies = self.folder.replies(request.head.run, public_text(self.key))
        if request.head.place in replies.places_of_other_keys():
            raise Declined(
                "released",
                f"an answer of round {request.head.round} of a private method left with an earlier key",
            )
        for file in replies.of_round(request):
            _, tensors = unseal(file.read_bytes(), self.key.public_key()).open()
            if _is_update(tensors):
                raise Declined(
                    "released",
                    f"a second update for round {request.head.round} of a private method",
                )

    def _check_first_answer(self, request: Envelope) -> None:
        """Raise `Declined` where a query of this step was answered: with other ranges it has other noise, which averages out."""
        # A step has one round to ask in: replies of later ones, such as those to notices, would push the answer out of those kept.
        if request.head.round:
            raise Declined("plan", f"a query in round {request.head.round}; expected round 0")
        replies = self.folder.replies(request.head.run, public_text(self.key))
        if request.head.place in replies.places_of_other_keys():
            raise Declined(
                "plan", f"an answer of step {request.head.stage} left with an earlier key"
            )
        for file in replies.of_round(request):
            _, tensors = unseal(file.read_bytes(), self.key.public_key()).open()
            if tensors:
                raise Declined("plan", f"a second query in step {request.head.stage}; expected one")

    def _write_release(self, head: Head, group: ModelGroup) -> None:
        """Enter what a private method is about to release. Raises `Declined` where it would exceed the site's epsilon."""
        self.ledger.add_update(
            group.method, group.settings, run=head.run, step=head.stage, round=head.round
        )

    def _mask(self, request: Envelope) -> Answer:
        """Answer a request of secure aggregation that needs no samples."""
        facts, tensors = request.open(self.limits)
        steps = len(self.run_config.outline)
        if not 0 < request.head.stage <= steps:
            raise Declined("plan", f"step {request.head.stage} of a plan of {steps}")
        kind, answer = MASKING[request.head.kind]
        asked = kind.read(facts)
        self._check_terms(asked)
        return {}, answer(self._sums(request), request.head, asked, tensors)

    def _ask(self, request: Envelope) -> Answer:
        """The answer to a query of the plan."""
        asked, tensors = self._opened(request, QueryRequest)
        planned_step(self.run_config, request.head.stage, asked.query, QueryStep, asked)
        self._check_first_answer(request)
        [answer] = self._query_answers(asked, tree.unpack(tensors), ["model"])
        return {}, answer

    def _choose(self, request: Envelope) -> Answer:
        """The number of the model with the smallest answer; the answers themselves stay here."""
        asked, tensors = self._opened(request, ChooseRequest)
        planned = planned_step(self.run_config, request.head.stage, asked.query, Stage, asked)
        # Among more models than the plan has, a choice would tell more: of 4000 that predict constants, the mean label.
        agreed = len(planned.groups or ())
        models = tree.unpack(tensors)
        if not len(models) == asked.groups == agreed:
            raise Declined(
                "plan",
                f"a choice among {asked.groups} models, of which {len(models)} came; expected {agreed}",
            )
        answers = self._query_answers(asked, models, [str(i) for i in range(asked.groups)])
        numbers = [float(number) for answer in answers for number in answer.values()]
        return {"choice": numbers.index(min(numbers))}, {}

    # 3. What the handlers need.

    def _sums(self, request: Envelope) -> SecureSums:
        """This site's secrets of the run."""
        folder = self.folder.path / request.head.run / "sums"
        return SecureSums(
            federation=self.federation,
            name=self.name,
            key=self.key,
            folder=folder,
            unmasked=self._unmasked,
            sums_per_model=self.policy.sums_per_model,
        )

    def _keep_model(self, request: Envelope, group: ModelGroup, predict: Predict) -> None:
        """Keep the model that was evaluated for the site's own use: its personal model where it has one, else the shared model.

        Not kept are a model that needs facts of the client beside the sample, and the models of a run whose best round is chosen.
        """
        model = group.settings.model
        if group.method.is_conditioned(model) or self.federation.select == "best":
            return
        if isinstance(predict, SharedModel):
            values = model.state_dict(predict.params | predict.buffers)
        else:
            values = group.personal(self.number, None)
        self.folder.write_model(
            run=request.head.run,
            run_config=self.run_config,
            site=self.name,
            values=values,
            encoding=self.federation.data.encoding,
        )

    def _query_answers(
        self, asked: QueryRequest, models: dict[str, Tree], names: list[str]
    ) -> list[Tree]:
        """The answers to a query about each of the named models."""
        query = queries.build(parse_one(asked.query))
        model = model_of_step(self.run_config, asked)
        settings = replace(self.run_config.settings, model=model)
        # Noise is drawn from a secret of this site, so that the same question has the same answer.
        secret = self.folder.secret(self.samples)
        answers = []
        for name in names:
            received = self._on_device(models.get(name, {}))
            values = _received(model.params | model.buffers, received)
            state = ServerState(
                round=0,
                params=tree.only(values, model.params),
                buffers=tree.only(values, model.buffers),
                part_states={},
            )
            answer = ask_client(
                query,
                settings=settings,
                state=state,
                population=self.population,
                client=self.number,
                transform=self.run_config.options.chain,
                secret=secret,
            )
            answers.append(answer)
        return answers

    def _broadcast(
        self, request: Envelope, step: TrainRequest, tensors: Tree, trees: dict[str, Tree]
    ) -> tuple[ModelGroup, Broadcast]:
        """This site's model group, and the broadcast to it, of a request with these `tensors`, which are `trees` by kind."""
        group = self._group(request, step, tensors, trees)
        model = group.settings.model
        params = trees.get("params", {}) | trees.get("fixed.params", {})
        buffers = trees.get("buffers", {}) | trees.get("fixed.buffers", {})
        broadcast = Broadcast(
            round=step.round,
            params=_received(model.params, params),
            buffers=_received(model.buffers, buffers),
            messages=_with_prefix(trees, "messages."),
            lr=step.lr,
        )
        self._check_round(step, group)
        return group, broadcast

    def _group(
        self, request: Envelope, asked: TrainRequest, tensors: Tree, trees: dict[str, Tree]
    ) -> ModelGroup:
        """This site's model group in a step: made with the first request, then kept until the next step."""
        key = (request.head.run, request.head.stage, asked.group)
        # What a request says of its step is checked where the group is made.
        kept = self._groups.get(key)
        if kept is None or kept.step != asked.facts_of_step:
            kept = self._new_group(request, asked, trees)

        # A tensor that nothing reads would give the same model another digest, or a new group other values.
        try:
            check_tree(tensors, kept.declared, what="the request")
        except RefusedUpdate as error:
            raise Declined("plan", str(error)) from None
        if asked.train and not kept.trains:
            raise Declined("plan", f"training in step {request.head.stage}, which only evaluates")

        # Where clients choose their group, the groups of one step are kept side by side.
        same_step = {k: group for k, group in self._groups.items() if k[:2] == key[:2]}
        self._groups = same_step | {key: kept}
        return kept.group

    def _new_group(
        self, request: Envelope, asked: TrainRequest, trees: dict[str, Tree]
    ) -> SiteGroup:
        """The model group of a step, of which this site is the only client here. Raises `Declined` for a step not agreed on."""
        # The request's method is trained only if it is that of the plan, on as many public samples as the plan takes.
        planned = planned_step(self.run_config, request.head.stage, asked.method, Stage, asked)
        shared = None
        if "shared" in trees:
            shared = received_samples(trees["shared"], like=self.population.x)
        found = 0 if shared is None else len(shared.y)
        expected = 0 if planned.shared is None else len(planned.shared.y)
        if found != expected:
            raise Declined("plan", f"{found} public samples to train on; expected {expected}")
        self._check_group(asked.group, planned)

        # Values come with the request only where the step goes on from a state that the server made.
        model = model_of_step(self.run_config, asked)
        if asked.derived and planned.start is not None:
            model = _initial_model(model, trees)
        method = Method.parse(asked.method)
        stage = Stage(
            name="site",
            method=method,
            rounds=1,
            groups={"own": (self.number,)},
            model=model,
            shared=shared,
        )
        settings = replace(
            self.run_config.settings,
            model=model,
            work=method.local_work(self.run_config.work),
            proxy=self.run_config.settings.proxy if self.federation.public else None,
        )
        source = self.population if shared is None else self.population.with_shared(shared)

        # Client states are on disk: after a restart the site goes on from the one that the request names.
        run_folder = self.folder.path / request.head.run
        folder = group_folder(run_folder, request.head.stage, asked.group)
        client_states = ClientStates(initial_client_state(method, settings), folder)
        group = ModelGroup(
            stage=stage,
            settings=settings,
            source=source,
            members=Members(clients=1, samples=float(source.sizes[self.number])),
            client_states=client_states,
            transform=self.run_config.options.chain,
        )
        group.executor = Loop(group.client_pool)
        client_states.keep_rounds_from(asked.round)
        client_states.use_versions(_accepted_rounds(self.number, asked.accepted))

        # What a request of this step has, by what the agreed method sends before its first round.
        first = group.broadcast([self.number]).to(self.number)
        declared = round_tensors(planned, settings, first)
        declared |= fixed_tensors(planned, settings, first.params, first.buffers)
        return SiteGroup(group, declared, asked.facts_of_step, trains=planned.trained)

    def _check_group(self, number: int, planned: Stage) -> None:
        """Raise `Declined` for a group that the step does not have: each takes memory, and a folder of client states."""
        groups = max(len(planned.groups or ("all",)), self.networks)
        # a plan that divides clients makes no more groups than there are sites
        if self.run_config.plan.divides:
            groups = max(groups, len(self.federation.sites))
        if number >= groups:
            raise Declined("plan", f"the model group {number}; expected one of {groups}, from 0 on")

    def _metric_sums(self, predict: Predict) -> dict[str, Any]:
        """Sums and counts of a model's predictions on the test and validation samples, rounded as the rules say."""
        chain = self.run_config.options.chain
        if chain is not None:
            predict = chain.fixed.before(predict)
        population = self.population
        metrics = self.run_config.metrics
        sums = {}
        for split in ("test", "val"):
            rows = self._rows(split)
            index = torch.from_numpy(rows)
            scores = score(
                population.task,
                predict,
                take_rows(population.x, index),
                population.y[index],
                client=np.full(len(rows), self.number),
                logits=bool(metrics),
            )
            split_sums = MetricSums.of(population.task, scores, metrics)
            sums[split] = split_sums.rounded(self.policy.digits).as_fields()
        return sums

    def _rows(self, split: str) -> Any:
        """The numbers of this site's samples in a split."""
        return getattr(self.population, split)[self.number]

    def _on_device(self, tensors: Tree) -> Tree:
        return tree.map(lambda t: t.to(self.population.y.device), tensors)

    def _fixed(self, request: Envelope, step: TrainRequest, sent_once: Tree) -> Tree:
        """The tensors that are sent once for the whole step, which are on disk if this request does not bring them."""
        fixed = sent_once
        if step.fixed and not sent_once:
            fixed = self.folder.fixed_tensors(request.head.run, request.head.stage)
        if step.fixed or fixed:
            _check_fixed(fixed, step.fixed)
        return fixed


def _check_fixed(fixed: Tree, digest: str) -> None:
    """Raise `Malformed` for other tensors than those with this digest."""
    if checksum(fixed) != digest:
        raise Malformed(
            "the fixed tensors of this step do not have the digest in the request; expected them to be sent again"
        )


def _code_of(error: Exception) -> str:
    """The code that tells the coordinator why a request was not carried out."""
    if isinstance(error, Declined):
        return error.code
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        return "disk"
    return "error"


def _is_update(tensors: Tree) -> bool:
    """Whether a reply has an update, in clear or masked."""
    return not {"size", "masked"}.isdisjoint(tensors)


def _accepted_rounds(client: int, accepted: int | None) -> dict[int, int]:
    return {} if accepted is None else {client: accepted}


def _with_prefix(trees: dict[str, Tree], prefix: str) -> dict[str, Tree]:
    """The trees whose names begin with a prefix, by the rest of the name."""
    return {n.removeprefix(prefix): t for n, t in trees.items() if n.startswith(prefix)}


def _received(values: Tree, received: Tree) -> Tree:
    """The site's own values, replaced by the received ones; names, shapes and types must match. Raises `UnalikeError`."""
    # for a name that the model does not have, no tensor has the expected shape
    expected = {name: values.get(name, t.new_empty(0, 0)) for name, t in received.items()}
    check_tree(received, expected)
    return values | received


def _initial_model(model: Model, trees: dict[str, Tree]) -> Model:
    """A model that the plan made, with the values at the start of the step: client states start from those not averaged."""
    params = _received(model.params, trees.get("fixed.params", {}))
    received_buffers = trees.get("buffers", {}) | trees.get("fixed.buffers", {})
    buffers = _received(model.buffers, received_buffers)
    return Model(model.module(params, buffers))


def _shared_model(group: ModelGroup, me: int, broadcast: Broadcast) -> Predict:
    return group.shared_model(me)


def _personal_model(group: ModelGroup, me: int, broadcast: Broadcast) -> Predict:
    evaluated = broadcast if group.method.evaluates_broadcast else None
    [(_, predict)] = group.personal_models([me], evaluated)
    return predict


PREDICTS: dict[str, Callable[[ModelGroup, int, Broadcast], Predict]] = {
    "clients": _shared_model,
    "personal": _personal_model,
}
"""Protocol -> the model that it evaluates before training."""

MASKING: dict[str, tuple[type[Any], Callable[..., Tree]]] = {
    "keys": (SetupRequest, SecureSums.keys),
    "shares": (SetupRequest, SecureSums.shares),
    "open": (SetupRequest, SecureSums.opened),
    "unmask": (UnmaskRequest, SecureSums.unmask),
}
"""Kinds of requests that are answered anew when they are repeated, with the same bytes; a rule of the site counts them apart."""

HANDLERS: dict[str, Callable[[SiteWorker, Envelope], Answer]] = {
    NOTICE: SiteWorker._hear_notice,
    "admit": SiteWorker._admit,
    "train": SiteWorker._train,
    "ask": SiteWorker._ask,
    "choose": SiteWorker._choose,
    **dict.fromkeys(MASKING, SiteWorker._mask),
}
"""Kind of a request -> its handler."""
