"""The backend of a network: clients are sites, and a round is an exchange of messages with them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median_low

import torch

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.codec import Facts
from unalike.core.nests import join_nests
from unalike.core.types import Tree
from unalike.federation.coordinator.exchange import Exchange, SameRequest
from unalike.federation.coordinator.federated_evaluation import FederatedEvaluator
from unalike.federation.coordinator.mailbox import Mailbox, Place, Request
from unalike.federation.coordinator.round_request import (
    RoundRequests,
    SiteReply,
    SplitSums,
    has_scores,
    placeholder_context,
    round_plan,
)
from unalike.federation.coordinator.secure_aggregation import MaskedRequests, SecureAggregation
from unalike.federation.coordinator.update_store import UpdateStore
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.messages import ChooseRequest, QueryRequest, StepRequest
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults, method_of
from unalike.metrics.metric_sums import MOST, MetricSums, unpooled
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.backend import Replies, RoundUpdates
from unalike.runtime.stages.stage_state import RoundResult, StageState, wire_bytes
from unalike.training.client.client_states import ClientStates
from unalike.training.server.kept_updates import KeptUpdates
from unalike.training.server.norm_guard import NormGuard, Norms, outlier, why_implausible
from unalike.training.server.summed_updates import SummedUpdates
from unalike.training.server.update_checks import find_oversized
from unalike.training.server.updates import Updates
from unalike.training.validation import RefusedUpdate, check_answer
from unalike.training.wire import unasked

PENDING = ("seconds", "trained", "faults", "train_loss", "bytes_down", "bytes_up", "local")
"""The fields of a round's result that a checkpoint holds while the round has no row in the history."""

HIDDEN = (
    "secure aggregation hides the norms of updates: there is no norm guard, and no round is made again without one site; the model "
    "is checked after each round"
)

EVALUATED = "epsilon is about training: it does not cover what evaluations tell the coordinator of each site's test samples"


class DiscardedRound(UnalikeError):
    """The models of a round cannot be used: `why`. The round at `place` is to be made again without `site`."""

    def __init__(self, place: Place, site: str, why: str):
        super().__init__(why)
        self.place, self.site = place, site


def check_stage(stage: Stage, run_config: RunConfig) -> None:
    """Raise `UnalikeError` for a stage that takes the clients' samples, or models of theirs that are gone, to one place."""
    if stage.pooled:
        raise UnalikeError(
            f"stage {stage.name!r} pools the clients' data, which stay where they are; simulate it"
        )
    if any(c.pooled for c in stage.method.conditioners):
        raise UnalikeError(
            f"{stage.method!r} describes the data of all clients together; simulate it"
        )
    if run_config.options.select == "best" and stage.method.is_personal(
        stage.model or run_config.model
    ):
        raise UnalikeError(
            f"{stage.method!r} evaluates sites with models of their own, which they keep of the last rounds alone; with "
            "select = 'best' a method must have one shared model: choose select = 'last'"
        )


class NetworkBackend:
    """Runs a plan at the sites of a federation.

    `arrived` is the folder of the updates of the current round; `left_out` are the sites that take no part in a round, by its
    place, because it was discarded with them.
    """

    def __init__(
        self,
        run_config: RunConfig,
        mailbox: Mailbox,
        arrived: Path,
        left_out: Mapping[Place, set[str]],
    ):
        self.run_config, self.mailbox, self.arrived, self.left_out = (
            run_config,
            mailbox,
            arrived,
            left_out,
        )
        self._steps: list[NetworkStage | None] = []

    @property
    def notes(self) -> list[str]:
        names = unpooled(self.run_config.population.task, self.run_config.metrics)
        found = [HIDDEN] if self.mailbox.federation.secure_aggregation else []
        found += [] if method_of(self.run_config.plan).privacy is None else [EVALUATED]
        if names:
            found.append(
                f"{' and '.join(names)} of all sites together cannot be computed from sums and counts and stay empty: each site's "
                "own are in the table of clients, and the first metric that can be pooled decides"
            )
        return found

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
        state, sizes = step.state, run_config.population.sizes
        values = model.params | model.buffers if state is None else state.params | state.buffers
        query_request = QueryRequest(**asdict(self.position(index, step)), query=repr(step.query))
        request: Request = (
            "ask",
            query_request.facts,
            tree.pack({"model": values} if step.query.needs_model else {}),
        )
        like = unasked(step, model)
        enrolled = mailbox.federation.sites[: len(sizes)]
        sites = {s.name: k for k, s in enumerate(enrolled) if sizes[k] and not s.revoked}

        def read(site: str, facts: Facts, tensors: Tree) -> Tree:
            if facts:
                raise RefusedUpdate(f"facts {str(facts)[:80]!a} with an answer; expected none")
            check_answer(tensors, like, int(sizes[sites[site]]))
            return tensors

        mailbox.number = self.rounds_done
        answers = (
            Exchange(mailbox, (index + 1, 0), SameRequest(request, read), list(sites), set(sites))
            .run()
            .values
        )
        clients = {sites[name]: answers[name] for name in sites if name in answers}
        return Answers(tuple(clients), tree.stack(list(clients.values())))

    def position(self, index: int, step: Stage | QueryStep) -> StepRequest:
        """The position in the plan, as sites are told; a client query that a checkpoint holds was not asked again."""
        self._steps += [None] * (index - len(self._steps))
        outcomes = tuple(
            () if done is None else tuple(done.state.groups) for done in self._steps[:index]
        )
        population, rounds = self.run_config.population, self.run_config.options.rounds
        terms = self.mailbox.federation.terms
        return StepRequest(
            terms, rounds, int(population.sizes.sum()), outcomes, step.model is not None
        )


class NetworkStage:
    """Trains the clients of a stage at their sites (a `StageBackend`).

    Updates wait on disk until the round is complete, and are added up in the order of the sites: so the bits are those of a
    simulation, whichever site answers first.

    The models of a round are checked before they are committed: values that are not finite, or losses at the sites that are
    implausible, have the round discarded, and made again without the site whose norms stand out.
    """

    trains_ahead = True

    def __init__(self, backend: NetworkBackend, stage: Stage, index: int):
        run_config, mailbox = self.run_config, self.mailbox = backend.run_config, backend.mailbox
        check_stage(stage, run_config)
        self._position, self._rounds_before = backend.position(index, stage), backend.rounds_done
        self.state = StageState(
            run_config,
            stage,
            index,
            make_states=lambda *_: ClientStates({}),  # sites keep them
            keeps_updates=self._keeps_updates,
        )
        self.evaluator = FederatedEvaluator(run_config)
        self._bytes = wire_bytes(stage, self.state.settings, placeholder_context(self.state))
        self._norm_guard, self._left_out = NormGuard(mailbox.federation.guard), backend.left_out
        self._norms: dict[str, Norms] = {}
        """The norms of the round that the models come from."""
        self._best_loss = inf
        self._diverged = 0
        """The last round whose model was implausible, with no site that stands out."""
        self._update_store = UpdateStore(backend.arrived)
        self._masking = Counter[str]()
        self._summed: SummedUpdates | None = None
        self._secure: SecureAggregation | None = None
        if mailbox.federation.secure_aggregation:
            self._secure = SecureAggregation(
                mailbox, self.state, backend.arrived.with_name("secure_sum.json"), self._masking
            )
            self._bytes["up"] = 0
        self._digests: dict[int, str] = {}
        """Client -> digest of the tensors of the whole stage that it has, by its own answer."""
        enrolled = mailbox.federation.sites[
            : len(run_config.population)
        ]  # later ones are not in this run
        self.active = [k for k, site in enumerate(enrolled) if not site.revoked]
        eligible = sorted({*self.state.eligible} & {*self.active})
        if not eligible:
            raise UnalikeError(
                "every site with training samples was revoked, so that rounds would train nobody; enrol one again with `unalike "
                "federation renew DIR --site NAME`"
            )
        least = self._enough(mailbox.federation, 1)
        self.state.eligible, self.state.cohort_size = (
            eligible,
            max(least, mailbox.federation.asked(len(eligible))),
        )
        if least > len(eligible):
            raise UnalikeError(
                f"found {len(eligible)} sites with training samples; expected {least} in each round, among which noise is shared "
                "out: enrol as many again, or begin a federation of those that are left"
            )

    # a round --------------------------------------------------------------------------------------------------------

    def exchange(self, *, train: Sequence[int] = (), evaluate: bool = False) -> Replies:
        """One message to each site: it evaluates the current models, and the clients `train` train them."""
        started, asked = time.monotonic(), self._protocols() if evaluate else ()
        exchange = self._ask(set(train), asked)
        updates = self._updates(exchange, time.monotonic() - started) if train else None
        if not evaluate:
            return Replies(updates=updates)
        sums: dict[str, dict[int, SplitSums] | None] = dict.fromkeys(
            ("clients", "personal", "local")
        )
        for name in asked:
            sums[name] = {
                self.mailbox.client_of[s]: r.tallies[name]
                for s, r in exchange.values.items()
                if name in r.tallies
            }
        if self.state.pending is not None and self.state.pending.trained:
            local = self.state.pending.local
            sums["local"] = {
                k: {p: MetricSums.restored(s) for p, s in of.items()} for k, of in local.items()
            }
        return Replies(self.evaluator.pooled_tables(self.state, sums), updates)

    def _protocols(self) -> tuple[str, ...]:
        """The protocols under which sites evaluate the current models."""
        names = self.evaluator.names(self.state)
        has = {"clients": self.state.has_shared_model, "personal": self.state.is_personal}
        return tuple(
            p
            for p, there in has.items()
            if there and (p in names or (p == "clients" and "server" in names))
        )

    def _updates(self, exchange: Exchange[SiteReply], seconds: float) -> RoundUpdates:
        replies = {self.mailbox.client_of[site]: reply for site, reply in exchange.values.items()}
        trained = sorted(k for k, reply in replies.items() if reply.client_update is not None)
        groups = {
            name: self._group_updates(ids, replies)
            for name, ids in self.state.by_group(trained).items()
            if ids
        }

        # Setups and unmasking of secure aggregation have cost bytes beside those of requests and replies.
        bytes_down = len(exchange.counted) * self._bytes["down"] + self._masking.pop("down", 0)
        bytes_up = self._masking.pop("up", 0)
        for client in trained:
            bytes_up += self._bytes["up"] + replies[client].sent

        local = {}
        for client, reply in replies.items():
            if "local" in reply.tallies:
                tallies = reply.tallies["local"]
                local[client] = {split: sums.plain() for split, sums in tallies.items()}
        return RoundUpdates(
            groups=groups,
            seconds=seconds,
            bytes_down=bytes_down,
            bytes_up=bytes_up,
            faults={
                self.mailbox.client_of[site]: why
                for site, why in exchange.faults.items()
                if site in exchange.counted
            },
            local=local,
            complete=partial(
                self._complete,
                {name: updates.ids for name, updates in groups.items()},
                {site: reply.norms for site, reply in exchange.values.items() if reply.norms},
            ),
        )

    def _group_updates(self, ids: Sequence[int], replies: Mapping[int, SiteReply]) -> Updates:
        """The updates of a group, which are on disk; a linear method reads them one by one unless they are recorded."""
        if self._summed is not None:
            return self._summed
        norms = {}
        for client in ids:
            if "update" in replies[client].norms:
                norms[client] = replies[client].norms["update"]
        is_read_at_once = not self.state.method.needs_sums_only or self._keeps_updates
        if is_read_at_once:
            kept = KeptUpdates.in_memory(ids, self._update_store.stacked(ids))
        else:
            numbers = join_nests([replies[k].client_update for k in ids], torch.stack)
            kept = KeptUpdates(ids=tuple(ids), numbers=numbers, rows=self._update_store)
        return replace(kept, oversized=find_oversized(norms))

    def _complete(self, ids: Mapping[str, Sequence[int]], norms: dict[str, Norms]) -> None:
        """The round of the clients `ids`, by group, is complete: its norms count for later rounds, its updates are deleted."""
        # Sites have the client states, and are told which of these is their current one.
        for name, clients in ids.items():
            group = self.state.groups[name]
            group.accepted.update(dict.fromkeys(clients, group.state.round - 1))

        for state in self.state.states.values():
            values = tree.pack(state.part_states) | state.params | state.buffers
            if not all(bool(t.isfinite().all()) for t in values.values()):
                self._discard(norms, self.state.done, "the model is not finite")
                break
        self._norm_guard.accept(norms)
        self._norms = norms
        if norms:
            self.mailbox.event(
                "norms",
                round=self.mailbox.number,
                norms={site: of.get("update") for site, of in norms.items()},
            )
        self._update_store.clear()

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
        found = outlier(norms)
        if found is None:
            if number > self._diverged:
                self.mailbox.event("diverged model", round=number, why=why)
            self._diverged = number
            return
        site, times = found
        self.mailbox.event("discarded", round=number, client=site, times=round(times, 1), why=why)
        raise DiscardedRound((self.state.settings.stage + 1, done), site, why)

    @property
    def _keeps_updates(self) -> bool:
        """Whether each client's update is recorded."""
        return self.run_config.recording is not None and self.run_config.recording.needs_updates

    # the exchange ---------------------------------------------------------------------------------------------------

    def _ask(self, drawn: set[int], evaluate: tuple[str, ...]) -> Exchange[SiteReply]:
        """Ask the clients `drawn` to train, and all with test samples to `evaluate`."""
        state, federation, run_config = self.state, self.mailbox.federation, self.run_config
        drawn = {
            k
            for k in drawn
            if federation.sites[k].name not in self._left_out.get(self.state.place, ())
        }
        self.mailbox.number = self._rounds_before + state.done + (not state.last_done)
        cohort = self._secure.cohort(drawn) if self._secure and drawn else ()
        drawn = {self.mailbox.client_of[site] for site in cohort} or drawn
        everybody = {
            *drawn,
            *(k for k in self.active if evaluate and has_scores(state.population, k)),
        }
        if state.stage.chooses is not None:
            state.choices = self._ask_choices(everybody, drawn)
            drawn = drawn & state.choices.keys()
        names = {
            k: federation.sites[k].name for k in sorted(everybody) if state.group_of(k) is not None
        }
        local = "local" in run_config.options.protocols
        plan = round_plan(state, self._position, self.active, evaluate, local, run_config.metrics)
        stores = self._digests, self._update_store, self._norm_guard, self._check_losses
        given = plan, drawn, state, self.mailbox, *stores
        requests = (
            RoundRequests(*given)
            if self._secure is None
            else MaskedRequests(self._secure, cohort, *given)
        )
        exchange = Exchange(
            mailbox=self.mailbox,
            place=self.state.place,
            requests=requests,
            sites=list(names.values()),
            counted={names[k] for k in drawn if k in names},
            enough=partial(self._enough, self._secure if self._secure and cohort else federation)
            if drawn
            else None,
        )
        asked = {
            "train": sorted(exchange.counted),
            "quorum": exchange.quorum,
            "evaluate": list(evaluate),
        }
        self.mailbox.event("asked", round=self.mailbox.number, **asked)
        exchange.run()
        if isinstance(requests, MaskedRequests) and cohort:
            self._summed = requests.updates([site for site in cohort if site in exchange.values])
        answered = {k: plan.group(k).digest for k, name in names.items() if name in exchange.values}
        self._digests = answered | {
            k: digest for k, digest in self._digests.items() if k not in names
        }
        return exchange

    def _enough(self, rule: Federation | SecureAggregation, asked: int) -> int:
        """The answers that make a round of so many sites; the shares of noise in them make up that of the sum."""
        privacy = self.state.method.privacy
        return max(
            rule.enough(asked), 1 if privacy is None else privacy.least_cohort(self.state.settings)
        )

    def _ask_choices(self, everybody: set[int], drawn: set[int]) -> dict[int, str]:
        """The group that each client chooses now."""
        state, sites = self.state, self.mailbox.federation.sites
        groups = list(state.groups)
        tensors = {
            f"{i}/{n}": t
            for i, of in enumerate(state.states.values())
            for n, t in (of.params | of.buffers).items()
        }
        question = ChooseRequest(
            **asdict(self._position), query=repr(state.stage.chooses), groups=len(groups)
        )

        def read(site: str, facts: Facts, tensors: Tree) -> str:
            choice = facts.get("choice")
            if tensors or type(choice) is not int or not 0 <= choice < len(groups):
                raise RefusedUpdate(
                    f"choice {str(choice)[:40]!a}; expected a number from 0 to {len(groups) - 1}"
                )
            return groups[choice]

        requests = SameRequest(("choose", question.facts, tensors), read)
        asked, counted = [sites[k].name for k in sorted(everybody)], {sites[k].name for k in drawn}
        exchange = Exchange(self.mailbox, self.state.place, requests, asked, counted)
        return {self.mailbox.client_of[site]: name for site, name in exchange.run().values.items()}

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
        own = {
            "ahead": None
            if pending is None
            else {name: getattr(pending, name) for name in PENDING},
            "norms": dict(self._norm_guard.seen),
            "latest": {"norms": self._norms, "best_loss": min(self._best_loss, MOST)},
            "holds": list(self._digests.items()),
        }
        return tensors, [facts[0] | own, *facts[1:]]

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Restore the state that `state_dict` returned. Raises `UnalikeError` if the tensors are not those of this stage."""
        self.state.load_state_dict(tensors, facts)
        self._norm_guard.seen = facts[0].get("norms", {})
        latest = facts[0].get("latest", {"norms": {}, "best_loss": inf})
        self._norms, self._best_loss = latest["norms"], latest["best_loss"]
        self._digests = dict(facts[0].get("holds", []))
        ahead = facts[0].get("ahead")
        if ahead is not None:
            by_client = {
                what: {int(k): v for k, v in ahead[what].items()} for what in ("faults", "local")
            }
            self.state.pending = RoundResult(**(ahead | by_client))
