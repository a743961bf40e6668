"""The backend of a network: clients are sites, and a round is an exchange of messages with them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median_low

import torch

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike.client_devices.simulated_clock import COUNTED_LATER, LATE, REFUSED, TRAINED, Turn
from unalike.core import tree
from unalike.core.codec import Facts
from unalike.core.nests import join_nests, map_tensors
from unalike.core.types import Tree
from unalike.federation.coordinator.deciding_score import unknown_of_all
from unalike.federation.coordinator.exchange import Exchange, SameRequest
from unalike.federation.coordinator.federated_evaluation import FederatedEvaluator
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.coordinator.round_request import (
    RoundContents,
    RoundRequests,
    SiteReply,
    SplitSums,
    has_samples,
    placeholder_context,
    round_contents,
    scaled_norms,
)
from unalike.federation.coordinator.secure_aggregation import (
    MaskedRequests,
    MaskedSum,
    SecureAggregation,
)
from unalike.federation.coordinator.sites_under_way import (
    MAX_AGE_ROUNDS,
    SitesUnderWay,
    check_late_updates,
)
from unalike.federation.coordinator.update_directions import OpposingSites, UpdateDirections
from unalike.federation.coordinator.update_store import UpdateStore
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import ChooseRequest, QueryRequest, StepRequest
from unalike.federation.protocol.request_tensors import round_tensors
from unalike.federation.secure_aggregation.setup import model_digest
from unalike.federation.secure_aggregation.sum_ledger import SumLedger
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults, method_of
from unalike.metrics.metric_sums import LARGEST_LOSS_SUM, MetricSums
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.backend import Clock, Replies, RoundUpdates, machine_clock
from unalike.runtime.stages.stage_state import RoundResult, StageState, wire_bytes
from unalike.training.client.client_states import ClientStates
from unalike.training.server.kept_updates import KeptUpdates
from unalike.training.server.norm_guard import (
    LEAST_SITES,
    NormGuard,
    Norms,
    Objects,
    message_of,
    objects,
    outlier,
    why_implausible,
)
from unalike.training.server.summed_updates import SummedUpdates
from unalike.training.server.update_checks import find_oversized
from unalike.training.server.updates import Updates, decode_update
from unalike.training.validation import RefusedUpdate, check_answer
from unalike.training.wire import unasked

PENDING_FIELDS = (
    "seconds",
    "trained",
    "faults",
    "chosen",
    "train_loss",
    "bytes_down",
    "bytes_up",
    "local",
    "client_seconds",
    "turns",
)
"""The fields of a round's result that a checkpoint holds while the round has no row in the history."""

NOTE_ON_HIDDEN_NORMS = (
    "secure aggregation hides the norms of updates: there is no norm guard, and no round is made again without one site; the model "
    "is checked after each round"
)

NOTE_ON_HIDDEN_SCORES = (
    "secure aggregation hides scores of models that a site's own training samples made, personal ones and those with batch norm of "
    "their own: each site keeps its model, and `unalike evaluate` scores it there"
)


class DiscardedRound(UnalikeError):
    """The models of a round cannot be used: `why`. The round at `place` is to be made again without `site`."""

    def __init__(self, place: Place, site: str, why: str):
        super().__init__(why)
        self.place = place
        self.site = site


def check_stage(stage: Stage, run_config: RunConfig) -> None:
    """Raise `UnalikeError` for a stage that takes the clients' samples, or models of theirs that are gone, to one place."""
    if stage.pooled:
        raise UnalikeError(
            f"stage {stage.name!r} pools the clients' data, which stay where they are; simulate it ({Limit.FEDERATION})"
        )
    if any(c.pooled for c in stage.method.conditioners):
        raise UnalikeError(
            f"{stage.method!r} describes the data of all clients together; simulate it ({Limit.FEDERATION})"
        )
    if run_config.options.select == "best" and stage.method.is_personal(
        stage.model or run_config.model
    ):
        raise UnalikeError(
            f"{stage.method!r} evaluates sites with models of their own, which they keep of the last rounds alone; with "
            "select = 'best' a method must have one shared model: choose select = 'last'"
        )


class NewSites(UnalikeError):
    """Sites have asked to join the run. It is to go on with them, from where it is: nothing of the next round was sent."""


class NetworkBackend:
    """Runs a plan at the sites of a federation.

    `arrived` is the folder of the updates of the current round; `left_out` are the sites that take no part in a round, by its
    place, because it was discarded with them. `unmasked` has the sums of all runs with secure aggregation. `samples` are the
    training samples that the run began with: requests name them, and stay the same to the byte when a site joins. `began` is the
    time of its beginning, in seconds since 1970.
    """

    def __init__(
        self,
        run_config: RunConfig,
        mailbox: Mailbox,
        arrived: Path,
        left_out: Mapping[Place, set[str]],
        unmasked: SumLedger,
        samples: int,
        began: float,
        clock: Clock = machine_clock,
    ):
        self.run_config = run_config
        self.clock = clock
        self.mailbox = mailbox
        self.arrived = arrived
        self.unmasked = unmasked
        self.samples = samples
        self.monotonic_start = time.monotonic() - max(0.0, time.time() - began)
        """The time at which the run began by the monotonic clock, which nobody sets back while this process runs."""
        self.left_out = left_out
        self._steps: list[NetworkStage | None] = []
        """The steps of the plan so far; None for a client query."""

    @property
    def notes(self) -> list[str]:
        notes = []
        if self.mailbox.federation.secure_aggregation:
            notes.append(NOTE_ON_HIDDEN_NORMS)
            if self._has_hidden_scores:
                notes.append(NOTE_ON_HIDDEN_SCORES)
        notes += method_of(self.run_config.plan).federation_notes
        names = unknown_of_all(self.run_config, self.mailbox.federation)
        if names:
            notes.append(
                f"{' and '.join(names)} of all sites together cannot be computed from sums and counts and stay empty: each "
                "site's own are in the table of clients, and the first metric that can be pooled decides; with --across clients "
                "the mean of the sites' own does"
            )
        return notes

    @property
    def _has_hidden_scores(self) -> bool:
        """Whether a stage has models whose scores stay at the sites."""
        federation = self.mailbox.federation
        for step in self.run_config.outline:
            if not isinstance(step, Stage):
                continue
            model = step.model or self.run_config.model
            is_one_model = not step.why_no_single_model(model, federation.buffers, groups=1)
            if step.method.is_personal(model) or not is_one_model:
                return True
        return False

    def stage(self, stage: Stage, index: int, folder: Path | None) -> NetworkStage:
        network_stage = NetworkStage(self, stage, index)
        self._steps.append(network_stage)
        return network_stage

    def end_step(self, outcome: Answers | StageResults) -> None:
        """Sites learn of the next step with its first request."""

    @property
    def rounds_done(self) -> int:
        """Rounds of the stages so far."""
        return sum(stage.state.done for stage in self._steps if stage is not None)

    def query(self, step: QueryStep, index: int) -> Answers:
        run_config, mailbox = self.run_config, self.mailbox
        model = step.model or run_config.model

        # The question, with the model that it is about if it is about one.
        query_request = QueryRequest(**asdict(self.position(index, step)), query=repr(step.query))
        tensors: Tree = {}
        if step.query.needs_model:
            holder = model if step.state is None else step.state
            tensors = tree.pack({"model": holder.params | holder.buffers})
        request = Request("ask", query_request.facts, tensors)

        # Sites with training samples answer it, as many as the run began with.
        sizes = run_config.population.sizes
        client_of = {}
        for client, site in enumerate(mailbox.federation.sites[: len(sizes)]):
            if sizes[client] and not site.revoked:
                client_of[site.name] = client

        expected = unasked(step, model, run_config.settings.task)

        def read_answer(site: str, facts: Facts, tensors: Tree) -> Tree:
            if facts:
                raise RefusedUpdate(f"facts {str(facts)[:80]!a} with an answer; expected none")
            samples = int(sizes[client_of[site]])
            check_answer(tensors, like=expected, samples=samples)
            why = step.query.why_impossible(tensors, samples)
            if why:
                raise RefusedUpdate(f"its answer to {step.query!r}: {why}")
            return tensors

        mailbox.number = self.rounds_done
        exchange = Exchange(
            mailbox=mailbox,
            place=(index + 1, 0),
            requests=SameRequest(request, read_answer, self._outlying_answers),
            sites=list(client_of),
            counted=set(client_of),
        ).run()

        # In the order of the sites, not in that of arrival.
        answers = {}
        for name, client in client_of.items():
            if name in exchange.values:
                answers[client] = exchange.values[name]
        return Answers(tuple(answers), tree.stack(list(answers.values())))

    def _outlying_answers(self, answers: Mapping[str, Tree]) -> Mapping[str, str]:
        """The sites whose answer is far larger than those of the others: no later round would be discarded for it."""
        norms = {}
        for site, answer in answers.items():
            amounts = [t.double().norm() for t in answer.values() if t.is_floating_point()]
            if amounts:
                norms[site] = {"answer": float(torch.stack(amounts).norm())}
        faults = {}
        if len(norms) >= LEAST_SITES:
            guard = NormGuard(self.mailbox.federation.guard)
            for site, usual in guard.scaled_norms(norms).items():
                size = f"{norms[site]['answer']:.4g}; usual is {usual['answer']:.4g}"
                faults[site] = f"the norm of its answer is {size}"
        return faults

    def position(self, index: int, step: Stage | QueryStep) -> StepRequest:
        """The position in the plan, as sites are told; a client query that a checkpoint holds was not asked again."""
        self._steps += [None] * (index - len(self._steps))
        outcomes: list[tuple[str, ...]] = []
        for earlier in self._steps[:index]:
            outcomes.append(() if earlier is None else tuple(earlier.state.groups))
        return StepRequest(
            terms=self.mailbox.federation.terms,
            rounds=self.run_config.options.rounds,
            samples=self.samples,
            outcomes=tuple(outcomes),
            derived=step.model is not None,
        )


class NetworkStage:
    """Trains the clients of a stage at their sites (a `StageBackend`).

    Updates wait on disk until the round is complete, and are added up in the order of the sites: so the bits are those of a
    simulation, whichever site answers first.

    Where the method awaits only some updates, a round is over with these; the other sites are under way, with the model that they
    were sent, and their updates count in the round in which they come.

    The models of a round are checked before they are committed: values that are not finite, or losses at the sites that are
    implausible, have the round discarded, and made again without the site whose norms stand out.
    """

    trains_ahead = True

    def __init__(self, backend: NetworkBackend, stage: Stage, index: int):
        self.run_config = backend.run_config
        self.mailbox = backend.mailbox
        self.clock = backend.clock
        run_config, mailbox = self.run_config, self.mailbox
        check_stage(stage, run_config)
        check_late_updates(stage, run_config, mailbox.federation)
        self._position = backend.position(index, stage)
        self._rounds_before = backend.rounds_done
        self._left_out = backend.left_out
        self._monotonic_start = backend.monotonic_start

        # Sites that were enrolled after the run began are not in it, and revoked ones are out of it.
        enrolled = mailbox.federation.sites[: len(run_config.population)]
        self.active = [client for client, site in enumerate(enrolled) if not site.revoked]
        self._awaited = mailbox.federation.updates_awaited(stage.method)
        """The updates with which a round ends."""
        self._sites = SitesUnderWay(mailbox.federation.cohort_size(len(self.active)), self._awaited)
        self.state = StageState(
            run_config,
            stage,
            index,
            # the sites keep them
            make_states=lambda *_: ClientStates({}),
            keeps_updates=self._keeps_updates,
            devices=self._sites,
        )
        self.evaluator = FederatedEvaluator(run_config, mailbox.federation, self._report_loss)

        changes = [message_of(part.name) for part in stage.method.parts if part.sends_changes]
        self._norm_guard = NormGuard(mailbox.federation.guard, changes)
        self._opposing_sites = OpposingSites()
        self._compared: list[str] = []
        """The objects whose directions are compared in every round."""
        if mailbox.federation.guard and any(p.updates_point_alike for p in stage.method.parts):
            self._compared = ["update", *changes]
        self._norms: dict[str, Norms] = {}
        """The norms of the round that the models come from."""
        self._shares: dict[int, float] = {}
        """Client whose last update was scaled down -> the share of its size with which it counted."""
        self._best_loss = inf
        self._diverged = 0
        """The last round whose model was implausible, with no site that stands out."""

        self._update_store = UpdateStore(backend.arrived)
        context = placeholder_context(self.state)
        self._bytes: dict[str, dict[str, int]] = {}
        """Group -> bytes that a site of it receives and sends in a round, but for its update."""
        for name, group in self.state.groups.items():
            self._bytes[name] = wire_bytes(stage, group.settings, context, group.members.clients)
        self._masking_bytes = Counter[str]()
        self._summed: SummedUpdates | None = None
        self._secure: SecureAggregation | None = None
        if mailbox.federation.secure_aggregation:
            self._secure = SecureAggregation(
                mailbox=mailbox,
                state=self.state,
                file=backend.arrived.with_name("secure_sum.json"),
                unmasked=backend.unmasked,
                wire_bytes=self._masking_bytes,
            )
            for of_group in self._bytes.values():
                of_group["up"] = 0
        self._digests: dict[int, str] = {}
        """Client -> digest of the tensors of the whole stage that it has, by its own answer."""

        self._draw_from_active()

    def _draw_from_active(self) -> None:
        """Draw cohorts from the active sites with training samples. Raises `UnalikeError` if they are too few for a round."""
        eligible = sorted(set(self.state.eligible) & set(self.active))
        if not eligible:
            raise UnalikeError(
                "every site with training samples was revoked, so that rounds would train nobody; enrol one again with `unalike "
                "federation renew DIR --site NAME`"
            )
        federation = self.mailbox.federation
        least = self._answers_needed(federation, 1)
        self.state.eligible = eligible
        self.state.cohort_size = max(least, federation.cohort_size(len(eligible)))
        if least > len(eligible):
            raise UnalikeError(
                f"found {len(eligible)} sites with training samples; expected {least} in each round, among which noise is shared "
                "out: enrol as many again, or begin a federation of those that are left"
            )

        # A rule of its own may ask fewer, also nobody where those that it names were revoked.
        rule = self._secure or federation
        needed = self._answers_needed(rule, 1)
        asked = self.state.draw(self.state.done)
        if len(asked) < needed:
            raise UnalikeError(
                f"{self.state.sampler.name} asks {len(asked)} of the {len(eligible)} sites with training samples; expected "
                f"{needed} or more in each round: begin a federation with another method, or with other names in it"
            )

    # a round --------------------------------------------------------------------------------------------------------

    def exchange(self, *, train: Sequence[int] = (), evaluate: bool = False) -> Replies:
        """One message to each site: it evaluates the current models, and the clients `train` train them."""
        started = self.clock()
        protocols = self._protocols() if evaluate else ()
        # without an evaluation, nobody asked means that the server waits for clients under way
        trains = bool(train) or not evaluate
        exchange = self._run_exchange(set(train), protocols, trains)
        updates = None
        if trains:
            updates = self._updates(exchange, seconds=self.clock() - started)
        if not evaluate:
            return Replies(updates=updates)
        sums = self._site_sums(exchange, protocols)
        return Replies(metrics=self.evaluator.pooled_tables(self.state, sums), updates=updates)

    def _protocols(self) -> tuple[str, ...]:
        """The protocols under which sites evaluate the current models."""
        names = self.evaluator.names(self.state)
        protocols = []
        # The server's own test set shows the same model as the clients', so that its tables need theirs, too.
        if self.state.has_shared_model and ("clients" in names or "server" in names):
            protocols.append("clients")
        # Sites keep the personal models that they evaluate, also where they do not tell the scores.
        if self.state.is_personal:
            protocols.append("personal")
        return tuple(protocols)

    def _tells_scores(self, protocol: str) -> bool:
        """Whether sites tell the scores of a protocol's models."""
        is_one_model = self.state.predicts_the_same_for_all
        return self.mailbox.federation.tells_scores(protocol, is_one_model)

    def _site_sums(
        self, exchange: Exchange[SiteReply], protocols: tuple[str, ...]
    ) -> dict[str, dict[int, SplitSums] | None]:
        """Protocol -> client -> the sums of its evaluation; None where there is no such model, or its scores stay at the sites."""
        sums: dict[str, dict[int, SplitSums] | None]
        sums = {"clients": None, "personal": None, "local": None}
        for protocol in protocols:
            if not self._tells_scores(protocol):
                continue
            by_client = {}
            for site, reply in exchange.values.items():
                if protocol in reply.tallies:
                    by_client[self.mailbox.client_of[site]] = reply.tallies[protocol]
            sums[protocol] = by_client

        # Models after local training were evaluated where they were made, in the exchange before this one.
        pending = self.state.pending
        if pending is not None and pending.trained:
            by_client = {}
            for client, local in pending.local.items():
                by_client[client] = {
                    part: MetricSums.from_fields(plain) for part, plain in local.items()
                }
            sums["local"] = by_client
        return sums

    def _updates(self, exchange: Exchange[SiteReply], seconds: float) -> RoundUpdates:
        """The updates that an exchange brought, and what it cost to get them."""
        client_of = self.mailbox.client_of
        replies = {client_of[site]: reply for site, reply in exchange.values.items()}

        # In the order of the clients, whichever site answered first: so the bits are those of a simulation.
        trained = sorted(
            client for client, reply in replies.items() if reply.client_update is not None
        )
        started_from = self._arrive(trained)
        norms = {site: reply.norms for site, reply in exchange.values.items() if reply.norms}
        counted = self._scale_down(norms, exchange.values, started_from)
        groups = {}
        for name, clients in self.state.by_group(trained).items():
            if clients:
                groups[name] = self._group_updates(clients, replies, counted, started_from)

        # A model went to every site that was asked to train, also to one that did not answer.
        asked = sorted(client_of[site] for site in exchange.counted - exchange.under_way.keys())
        bytes_down = self._bytes_of("down", asked)
        bytes_down += self._masking_bytes.pop("down", 0)
        bytes_up = self._bytes_of("up", trained)
        bytes_up += sum(replies[client].update_bytes for client in trained)
        bytes_up += self._masking_bytes.pop("up", 0)

        # A site that was asked to evaluate alone is no fault of the round.
        faults = {}
        for site, why in exchange.faults.items():
            if site in exchange.counted:
                faults[client_of[site]] = why
        if self._secure is not None:
            for site, why in self._secure.unusable.items():
                faults[client_of[site]] = f"refused: {why}"

        # Plain numbers: they may wait in a checkpoint until the next exchange.
        local = {}
        for client, reply in replies.items():
            if "local" in reply.tallies:
                split_sums = reply.tallies["local"]
                local[client] = {part: sums.as_fields() for part, sums in split_sums.items()}

        norms = {site: reply.norms for site, reply in exchange.values.items() if reply.norms}
        return RoundUpdates(
            groups=groups,
            seconds=seconds,
            bytes_down=bytes_down,
            bytes_up=bytes_up,
            faults=faults,
            local=local,
            client_seconds={client_of[site]: s for site, s in exchange.seconds.items()},
            turns=self._turns(exchange, started_from, replies),
            complete=partial(self._complete, groups, norms),
        )

    def _turns(
        self,
        exchange: Exchange[SiteReply],
        started_from: Mapping[int, int],
        replies: Mapping[int, SiteReply],
    ) -> list[Turn]:
        """The rows of the timeline of the sites that were asked to train; none of those that are still under way.

        `started_from` as in `Updates`.
        """
        mailbox, start = self.mailbox, self._monotonic_start
        turns = []
        for site in sorted(exchange.counted, key=mailbox.client_of.__getitem__):
            client = mailbox.client_of[site]
            age = self.state.round - started_from.get(client, self.state.round)
            if site in exchange.absent:
                begun = mailbox.asked_at(site)
                ended = time.monotonic()
                fate = LATE
            elif site in exchange.values or site in exchange.faults:
                ended = mailbox.answered_at[site]
                begun = ended - mailbox.reply_seconds[site]
                counted = COUNTED_LATER if age else TRAINED
                fate = counted if site in exchange.values else REFUSED
            else:
                continue
            # one that was offline all the time was not asked
            if begun is not None:
                turn = Turn(
                    client=client, begun=begun - start, ended=ended - start, age=age, fate=fate
                )
                bytes_up = 0
                if turn.counts:
                    bytes_up = self._bytes_of("up", [client]) + replies[client].update_bytes
                bytes_down = self._bytes_of("down", [client])
                turns.append(turn._replace(bytes_down=bytes_down, bytes_up=bytes_up))
        return turns

    def _arrive(self, trained: Sequence[int]) -> dict[int, int]:
        """The updates of these clients have come. Returns the round of each client whose update is late."""
        if not self.state.updates_may_be_late:
            return {}
        rounds = self._sites.arrive(trained, self.state.round)
        names = self.mailbox.federation.sites
        ages = {names[client].name: self.state.round - begun for client, begun in rounds.items()}
        self.mailbox.event("arrived", round=self.mailbox.number, ages=ages)
        return self.state.keep_versions(rounds)

    def _bytes_of(self, direction: str, clients: list[int]) -> int:
        """The bytes of a round to or from these clients, but for their updates."""
        by_group = self.state.by_group(clients)
        return sum(len(ids) * self._bytes[name][direction] for name, ids in by_group.items())

    def _scale_down(
        self,
        norms: Mapping[str, Norms],
        replies: Mapping[str, SiteReply],
        started_from: Mapping[int, int],
    ) -> dict[str, Norms]:
        """Scale down the updates that are much larger than the others. Returns the norms of all updates as they count.

        The site hears of it with its next request.
        """
        if self.state.method.refuses_large_updates:
            return dict(norms)
        client_of = self.mailbox.client_of
        counted = dict(norms)
        for site in norms:
            self._shares.pop(client_of[site], None)
        directions = self._directions(norms)
        too_large = scaled_norms(
            self._norm_guard,
            self.state,
            client_of,
            norms,
            replies,
            directions.opposes,
            started_from,
        )
        for site, scaled in too_large.items():
            factors = {what: norm / norms[site][what] for what, norm in scaled.items()}
            self._update_store.scale(client_of[site], factors)
            self._shares[client_of[site]] = min(factors.values())
            counted[site] = {**norms[site], **scaled}
            for what, norm in scaled.items():
                why = (
                    f"the norm of its {what} is {norms[site][what]:.4g}; it counts with {norm:.4g}"
                )
                self.mailbox.report("scaled down", site, why)
        return self._without_opposing(counted)

    def _without_opposing(self, norms: Mapping[str, Norms]) -> dict[str, Norms]:
        """Scale what a site sends against the others, in the mean over the rounds, to 0. Returns the norms of what still counts.

        `norms` are those of the updates on disk, some of which were scaled down.
        """
        self._opposing_sites.add(self._directions(norms).cosines(self._compared))
        counted = dict(norms)
        for site in norms:
            client = self.mailbox.client_of[site]
            for what in self._compared:
                cosine = self._opposing_sites.mean_cosine(what, site)
                if not cosine:
                    continue
                self._update_store.scale(client, {what: 0.0})
                self._shares[client] = 0.0
                # A norm of 0 would count for what is usual.
                counted[site] = {name: n for name, n in counted[site].items() if name != what}
                why = f"its {what} points against the others, with a mean cosine of {cosine:.2f}"
                self.mailbox.report("scaled down", site, f"{why}; it counts with 0")
        return counted

    def _directions(self, norms: Mapping[str, Norms]) -> UpdateDirections:
        """The directions of the updates that have these norms, which are on disk."""
        client_of = self.mailbox.client_of

        def read(site: str) -> Objects:
            client = client_of[site]
            client_update = map_tensors(lambda t: t[0], self._update_store.row(client))
            server_state = self.state.group(client).state
            decoded = decode_update(self.state.method, client_update.update, server_state)
            return objects(client_update, decoded)

        # In the order of the clients, whichever site answered first: so the bits do not depend on it.
        clients = sorted(client_of[site] for site in norms)
        sites = self.mailbox.federation.sites
        groups = []
        for ids in self.state.by_group(clients).values():
            groups.append([sites[client].name for client in ids])
        return UpdateDirections(groups, norms, read)

    def _group_updates(
        self,
        ids: Sequence[int],
        replies: Mapping[int, SiteReply],
        counted: Mapping[str, Norms],
        started_from: Mapping[int, int],
    ) -> Updates:
        """The updates of a group, which are on disk; a linear method reads them one by one unless they are recorded."""
        if self._summed is not None:
            return self._summed
        norms = {}
        for client in ids:
            site_norms = counted.get(self.mailbox.federation.sites[client].name, {})
            if "update" in site_norms:
                norms[client] = site_norms["update"]
        is_read_at_once = not self.state.method.needs_sums_only or self._keeps_updates
        if is_read_at_once:
            kept = KeptUpdates.in_memory(ids, self._update_store.stacked(ids))
        else:
            numbers = join_nests([replies[k].client_update for k in ids], torch.stack)
            kept = KeptUpdates(ids=tuple(ids), numbers=numbers, rows=self._update_store)
        return replace(kept, oversized=find_oversized(norms), started_from=started_from)

    def _complete(self, groups: Mapping[str, Updates], norms: dict[str, Norms]) -> None:
        """The round of these updates, by group, is complete: its norms count for later rounds, its updates are deleted.

        `norms` are those of the updates as they were sent: scaled to that of a single tiny one, they would stay as small for ever.
        """
        # Sites have the client states, and are told which of these is their current one.
        for name, updates in groups.items():
            group = self.state.groups[name]
            group.accept(updates, group.state.round - 1)

        # A model that cannot be used must not be committed.
        if not self._models_are_finite():
            self._discard(norms, self.state.done, "the model is not finite")

        self._norm_guard.accept(norms)
        self._norms = norms
        if norms:
            update_norms = {site: site_norms.get("update") for site, site_norms in norms.items()}
            self.mailbox.event("norms", round=self.mailbox.number, norms=update_norms)
        self._update_store.clear()

    def _models_are_finite(self) -> bool:
        for server_state in self.state.states.values():
            values = tree.pack(server_state.part_states)
            values = values | server_state.params | server_state.buffers
            if not all(bool(value.isfinite().all()) for value in values.values()):
                return False
        return True

    def _report_loss(self, client: int, why: str) -> None:
        """Tell of a site whose loss does not count as it was sent."""
        self.mailbox.report("outlying loss", self.mailbox.federation.sites[client].name, why)

    def _check_losses(self, losses: Mapping[str, float]) -> None:
        """Discard the round that the models come from if the losses that sites report of them are implausible."""
        if not losses:
            return
        # before the first round there is no round to discard
        if self.state.pending is not None:
            why = why_implausible(losses.values(), self._best_loss)
            if why:
                self._discard(self._norms, self.state.done - 1, why)
                return
        self._best_loss = min(median_low(losses.values()), self._best_loss)

    def _discard(self, norms: Mapping[str, Norms], done: int, why: str) -> None:
        """Raise `DiscardedRound` for the round after `done` rounds if a site stands out, else report that none does."""
        number = self._rounds_before + done + 1
        # sites send one update for a round of a private method, so that it cannot be made again: it stays, and its epsilon, too
        found = None
        if not self.state.method.releases_once:
            found = outlier(norms)
        if found is None:
            if number > self._diverged:
                self.mailbox.event("diverged model", round=number, why=why)
            self._diverged = number
            return
        site, times = found
        self.mailbox.event("discarded", round=number, client=site, times=round(times, 1), why=why)
        place = (self.state.settings.stage + 1, done)
        raise DiscardedRound(place=place, site=site, why=why)

    @property
    def _keeps_updates(self) -> bool:
        """Whether each client's update is recorded."""
        return self.run_config.recording is not None and self.run_config.recording.needs_updates

    # the exchange ---------------------------------------------------------------------------------------------------

    def _run_exchange(
        self, cohort: set[int], protocols: tuple[str, ...], trains: bool
    ) -> Exchange[SiteReply]:
        """Ask the clients of the cohort to train, and all to evaluate under these protocols.

        `trains`: updates count that come now, also those of sites under way.
        """
        state, mailbox = self.state, self.mailbox
        federation = mailbox.federation
        mailbox.number = self._rounds_before + state.done + (not state.last_done)

        # Who has asked to join takes part from this round on, of which no request has left yet.
        if mailbox.newcomers:
            raise NewSites(f"to join the run: {', '.join(mailbox.newcomers)}")

        # Where a round is made again, the site that spoiled it takes no part.
        left_out = self._left_out.get(state.place, ())
        cohort = {client for client in cohort if federation.sites[client].name not in left_out}
        under_way = self._places_under_way(left_out)

        # One message asks a site for both, training and evaluation; many sites only evaluate. One without test samples is
        # asked, too: it keeps the model that it is sent, and its own. A site without any has not been admitted to the run.
        evaluated = {k for k in self.active if protocols and has_samples(state.population, k)}
        evaluated -= self._sites.rounds.keys()

        # Clients that choose their group do so before they are asked to train; who has not chosen does not train.
        if state.stage.chooses is not None:
            state.choices = self._ask_choices(cohort | evaluated, cohort)
            cohort = cohort & state.choices.keys()
        contents = round_contents(
            state,
            position=self._position,
            active=self.active,
            evaluate=protocols,
            local="local" in self.run_config.options.protocols,
            metrics=self.run_config.metrics,
            shares=self._shares,
        )

        # Keys come before masks: a sum is over sites that have keys with each other, and no others train.
        masked_sum: MaskedSum | None = None
        model = ""
        if self._secure is not None and cohort:
            model = self._model_digest(contents)
            masked_sum, summed_sites = self._secure.begin_sum(cohort, model, protocols)
            cohort = {mailbox.client_of[site] for site in summed_sites}
            contents = replace(contents, evaluate=masked_sum.evaluate)
        everybody = cohort | evaluated
        sites: dict[int, str] = {}
        for client in sorted(everybody):
            if state.group_of(client) is not None:
                sites[client] = federation.sites[client].name

        masked_cohort = masked_sum.cohort if masked_sum is not None else ()
        # A round counts updates of sites under way as it does those of its cohort, and ends with as many as the method awaits.
        awaited = inf
        if trains and state.updates_may_be_late:
            awaited = self._awaited
            cohort = cohort | self._sites.rounds.keys()
            sites |= {mailbox.client_of[site]: site for site in under_way}
        # a model is judged by as many sites as a quorum of those with test or validation samples
        tested = [client for client in sites if self._has_tests(client)]
        losses_needed = min(federation.answers_needed(len(tested)), awaited) if tested else 0
        requests = self._requests(contents, cohort, masked_sum, model, int(losses_needed))
        answers_needed = None
        if cohort:
            rule = self._secure if self._secure is not None and masked_cohort else federation
            answers_needed = partial(self._answers_needed, rule)
        exchange = Exchange(
            mailbox=mailbox,
            place=state.place,
            requests=requests,
            sites=list(sites.values()),
            counted={sites[client] for client in cohort if client in sites},
            answers_needed=answers_needed,
            awaited=awaited,
            under_way=under_way,
        )
        mailbox.event(
            "asked",
            round=mailbox.number,
            train=sorted(exchange.counted - under_way.keys()),
            quorum=exchange.quorum,
            evaluate=list(protocols),
        )
        exchange.run()

        # A sum is unmasked at once, as long as its sites are there to give their shares.
        if isinstance(requests, MaskedRequests) and masked_cohort:
            trained = [site for site in masked_cohort if site in exchange.counted]
            self._summed = requests.updates([site for site in trained if site in exchange.values])

        # Whoever has not answered by the end of the round is under way, unless it was given up.
        if trains and state.updates_may_be_late:
            self._sites.ask(requests.cohort, state.round)
            self._sites.drop([mailbox.client_of[site] for site in exchange.faults])
        self._digests = self._digests_after(exchange, sites, requests)
        return exchange

    def _places_under_way(self, left_out: Collection[str]) -> dict[str, Place]:
        """Site under way -> the place of its request. Those whose update can no longer count are under way no more."""
        state = self.state
        sites = self.mailbox.federation.sites
        for client in self._sites.too_old(state.round):
            why = (
                f"its update is of a model more than {MAX_AGE_ROUNDS} rounds old, which is dropped"
            )
            self.mailbox.report("absent", sites[client].name, why)
            self._sites.drop([client])
        self._sites.drop([self.mailbox.client_of[site] for site in left_out])
        # There is no round left in which an update could count: all sites evaluate the last model.
        if state.last_done:
            self._sites.drop([*self._sites.rounds])

        stage, done = state.place
        places = {}
        for client, round in self._sites.rounds.items():
            places[sites[client].name] = (stage, done - (state.round - round))
        return places

    def _digests_after(
        self, exchange: Exchange[SiteReply], sites: Mapping[int, str], requests: RoundRequests
    ) -> dict[int, str]:
        """Client -> the digest of the fixed tensors that its site has, after an exchange with these sites."""
        # Who has answered has the tensors of the whole stage; who was asked and has not may lack them.
        digests = {}
        for client, site in sites.items():
            if site in exchange.values:
                digests[client] = requests.contents.group(client).digest
        # who was not asked has what it had
        for client, digest in self._digests.items():
            if client not in sites or client in self._sites.rounds:
                digests.setdefault(client, digest)
        return digests

    def _model_digest(self, contents: RoundContents) -> str:
        """The digest of the model that the sites of a sum are sent, which all of them share."""
        [group] = contents.groups.values()
        return model_digest(
            self.state.place,
            round_tensors(self.state.stage, group.settings, group.broadcast),
            group.digest,
        )

    def _requests(
        self,
        contents: RoundContents,
        cohort: set[int],
        masked_sum: MaskedSum | None,
        model: str,
        losses_needed: int,
    ) -> RoundRequests:
        """The requests of an exchange: for updates in clear, or with secure aggregation for masked ones."""
        make_requests: Callable[..., RoundRequests] = RoundRequests
        if self._secure is not None:
            make_requests = partial(
                MaskedRequests,
                secure=self._secure,
                masked_cohort=masked_sum.cohort if masked_sum is not None else (),
                model=model,
                history=masked_sum.history if masked_sum is not None else "",
            )
        return make_requests(
            contents=contents,
            cohort=cohort,
            state=self.state,
            mailbox=self.mailbox,
            digests=self._digests,
            update_store=self._update_store,
            norm_guard=self._norm_guard,
            check_losses=self._check_losses,
            losses_needed=losses_needed,
        )

    def _has_tests(self, client: int) -> bool:
        """Whether a site has samples on which it evaluates models."""
        population = self.state.population
        return bool(population.test.sizes[client] or population.val.sizes[client])

    def _answers_needed(self, rule: Federation | SecureAggregation, asked: int) -> int:
        """The answers that make a round of so many sites, of no more than it awaits: never fewer than the method needs."""
        method = self.state.method
        if self._awaited < asked:
            asked = int(self._awaited)
        return max(rule.answers_needed(asked), method.least_cohort(self.state.settings))

    def _ask_choices(self, everybody: set[int], cohort: set[int]) -> dict[int, str]:
        """The group that each client chooses now."""
        state = self.state
        sites = self.mailbox.federation.sites
        groups = list(state.groups)
        part_trees = {}
        for number, server_state in enumerate(state.states.values()):
            part_trees[str(number)] = server_state.params | server_state.buffers
        choose_request = ChooseRequest(
            **asdict(self._position), query=repr(state.stage.chooses), groups=len(groups)
        )
        request = Request("choose", choose_request.facts, tree.pack(part_trees))

        def read_choice(site: str, facts: Facts, tensors: Tree) -> str:
            choice = facts.get("choice")
            if tensors or type(choice) is not int or not 0 <= choice < len(groups):
                raise RefusedUpdate(
                    f"choice {str(choice)[:40]!a}; expected a number from 0 to {len(groups) - 1}"
                )
            return groups[choice]

        exchange = Exchange(
            mailbox=self.mailbox,
            place=state.place,
            requests=SameRequest(request, read_choice),
            sites=[sites[client].name for client in sorted(everybody)],
            counted={sites[client].name for client in cohort},
        ).run()
        return {self.mailbox.client_of[site]: name for site, name in exchange.values.items()}

    # executor and checkpoints ------------------------------------------------------------------------------------

    @property
    def executor(self) -> str:
        """The sites train."""
        return f"remote: {len(self.state.eligible)} sites with training samples"

    def start(self) -> None:
        """Sites learn of a stage with its first request."""

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        tensors, facts = self.state.state_dict()
        pending = self.state.pending
        ahead = None
        if pending is not None:
            ahead = {name: getattr(pending, name) for name in PENDING_FIELDS}
        own_facts = {
            "ahead": ahead,
            "norms": {what: dict(of_sites) for what, of_sites in self._norm_guard.seen.items()},
            "cosines": dict(self._opposing_sites.cosines),
            "latest": {"norms": self._norms, "best_loss": min(self._best_loss, LARGEST_LOSS_SUM)},
            "shares": list(self._shares.items()),
            "holds": list(self._digests.items()),
        }
        return tensors, [facts[0] | own_facts, *facts[1:]]

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Restore the state that `state_dict` returned. Raises `UnalikeError` if the tensors are not those of this stage."""
        self.state.load_state_dict(tensors, facts)
        # sites may have been revoked since, so that rounds wait for all that are left
        remaining = self.active if self.state.updates_may_be_late else ()
        self._sites.drop(self._sites.rounds.keys() - set(remaining))
        self._norm_guard.seen = facts[0].get("norms", {})
        self._opposing_sites.cosines = facts[0]["cosines"]
        latest = facts[0].get("latest", {"norms": {}, "best_loss": inf})
        self._norms = latest["norms"]
        self._best_loss = latest["best_loss"]
        self._shares = dict(facts[0].get("shares", []))
        self._digests = dict(facts[0].get("holds", []))
        ahead = facts[0].get("ahead")
        if ahead is not None:
            # JSON has turned the clients' numbers into texts
            by_client = {}
            for name in ("faults", "chosen", "local", "client_seconds"):
                by_client[name] = {int(client): value for client, value in ahead[name].items()}
            turns = [Turn(*turn) for turn in ahead["turns"]]
            self.state.pending = RoundResult(**(ahead | by_client | {"turns": turns}))
