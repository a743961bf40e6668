"""A stage of a plan whose clients are sites: a round is an exchange of messages; the rest is as in simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.nests import join_nests
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, Tree
from unalike.core.views import Cohort
from unalike.federation.coordinator.exchange import Exchange, Make
from unalike.federation.coordinator.mailbox import Mailbox, Request
from unalike.federation.coordinator.norm_guard import NormGuard, Norms, norms
from unalike.federation.coordinator.round_request import RoundRequests, SiteReply, SplitSums
from unalike.federation.coordinator.update_store import UpdateStore
from unalike.federation.protocol.messages import ChooseRequest, StepRequest
from unalike.federation.protocol.packing import Facts
from unalike.methods.plan import Stage
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.scoring import Predict
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stage_runner import RoundResult, StageRunner
from unalike.training.aggregation import decode_updates
from unalike.training.validation import RefusedUpdate, expected_update


@dataclass
class Outcome:
    """What a round did, as a checkpoint holds it; its refusals are events already."""

    seconds: float
    trained: list[int]
    faults: dict[int, str]
    train_loss: float
    bytes_down: int
    bytes_up: int
    local: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def participants(self) -> int:
        return len(self.trained)

    @property
    def refused(self) -> dict[int, str]:
        return {}

    @property
    def tallies(self) -> dict[int, SplitSums]:
        """Of the models after local training."""
        return {k: {part: MetricSums.restored(t) for part, t in parts.items()} for k, parts in self.local.items()}


def check_stage(stage: Stage, run_config: RunConfig) -> None:
    """Raise `UnalikeError` for a stage that takes the clients' samples, or models of theirs that are gone, to one place."""
    if stage.pooled:
        raise UnalikeError(f"stage {stage.name!r} pools the clients' data, which stay where they are; simulate it")
    if any(c.pooled for c in stage.method.conditioners):
        raise UnalikeError(f"{stage.method!r} describes the data of all clients together; simulate it")
    if run_config.options.select == "best" and stage.method.is_personal(stage.model or run_config.model):
        raise UnalikeError(
            f"{stage.method!r} evaluates sites with models of their own, which they keep of the last rounds alone; with "
            "select = 'best' a method must have one shared model: choose select = 'last'"
        )


class RemoteStage(StageRunner):
    """All groups of a stage, the clients of which are sites.

    One exchange of messages both evaluates a state at the sites and trains it: whoever comes first, the evaluation of a round or
    the round after it, begins the exchange, and the other finds it done. `hold` is called between the aggregation and the next
    exchange: nothing is published that would be lost with this process. Reports wait on disk, in the folder `arrived`, until
    the round closes; then they are added up in the order of the sites, so that the bits are those of a simulation whoever came
    first.
    """

    def __init__(
        self,
        stage: Stage,
        run_config: RunConfig,
        mailbox: Mailbox,
        index: int,
        step: StepRequest,
        offset: int,
        hold: Callable[[RemoteStage], None],
        arrived: Path,
    ):
        check_stage(stage, run_config)
        self.mailbox, self.federation, self.index = mailbox, mailbox.federation, index
        self.step, self._offset, self._hold = step, offset, hold
        self.looks_at_local = "local" in run_config.options.protocols
        self._exchange: Exchange[SiteReply] | None = None
        self._ahead: Outcome | None = None
        self._norm_guard = NormGuard(self.federation.guard)
        self._update_store = UpdateStore(arrived)
        self.holds: dict[int, str] = {}
        """Client -> the digest of what it has for the whole stage, by its own answer."""
        settings, share = replace(run_config.settings, stage=index), run_config.options.participation
        super().__init__(stage, settings, run_config.population, executor="loop", participation=share)
        active = np.array([not site.revoked for site in self.federation.sites])
        self.active = np.flatnonzero(active).tolist()
        self.eligible = [k for k in self.eligible if active[k]]
        if not len(self.eligible):
            raise UnalikeError(
                "every site with training samples was revoked, so that rounds would train nobody; enrol one again with `unalike "
                "federation renew DIR --site NAME`"
            )
        self.number = {site.name: k for k, site in enumerate(self.federation.sites)}

    # what differs from a simulation ---------------------------------------------------------------------------------

    @property
    def why(self) -> str:
        return f"remote: {len(self.eligible)} sites with training samples"

    @property
    def cohort_size(self) -> int:
        return self.federation.asked(len(self.eligible))

    @property
    def over(self) -> bool:
        return self._ahead is None and super().over

    def group_of(self, client: int) -> str | None:
        return super().group_of(client) if self.stage.chooses is None else self._choices.get(client)

    def round(self) -> Outcome:  # type: ignore[override]
        """Run the next round: aggregate what the sites trained; or what a round did that was held before its row was written."""
        if self._ahead is None and self.stage.trained:
            self._ahead = self._advanced()
            self._exchange, self._choices = None, {}
            self._hold(self)
        elif self._ahead is None:
            self.done += 1
            self._exchange = None
        done, self._ahead = self._ahead, None
        return done or Outcome(0.0, [], {}, float("nan"), 0, 0)

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        tensors, facts = super().state_dict()
        ahead = None if self._ahead is None else asdict(self._ahead)
        return tensors, [
            facts[0] | {"ahead": ahead, "norms": self._norm_guard.seen, "holds": list(self.holds.items())},
            *facts[1:],
        ]

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        super().load_state_dict(tensors, facts)
        ahead, self._exchange = facts[0].get("ahead"), None
        self._norm_guard.seen = facts[0].get("norms", {})
        self.holds = dict(facts[0].get("holds", []))
        self._ahead = None
        if ahead is not None:
            by_number = {what: {int(k): v for k, v in ahead[what].items()} for what in ("faults", "local")}
            self._ahead = Outcome(**(ahead | by_number))

    def personal(self, client: int) -> Tree:
        self._away()

    def shared_model(self, client: int) -> Predict:
        self._away()

    def local_model(self, done: RoundResult, client: int) -> Predict:
        self._away()

    def _away(self) -> NoReturn:
        raise UnalikeError("a client's own model is on its site; ask there")

    def _some_context(self) -> Context:
        """From a few placeholders: facts of a client have the same shapes whoever it is."""
        method, people = self.method, self.population
        few = torch.zeros(8, dtype=torch.int64)
        return method.facts(Batch(people.x[few], people.y[few]), self.settings) if method.has_facts else {}

    # evaluation -----------------------------------------------------------------------------------------------------

    def examined(self, protocols: Sequence[str], done: Outcome | None) -> dict[str, dict[int, SplitSums] | None]:
        """Protocol -> client -> its tallies of the present state; None where there is no such model."""
        wanted = {"clients": self.has_shared_model, "personal": self.is_personal}
        asked = [p for p, has in wanted.items() if has and p in self._looked_at(protocols)]
        values = self._exchanged(asked).values
        found: dict[str, dict[int, SplitSums] | None] = {
            p: {self.number[s]: r.tallies[p] for s, r in values.items() if p in r.tallies} if p in asked else None
            for p in ("clients", "personal")
        }
        return found | {"local": done.tallies if done is not None and done.trained else None}

    def has_scores(self, client: int) -> bool:
        """Whether a site has samples to evaluate on."""
        return bool(self.population.test.sizes[client] or self.population.val.sizes[client])

    def _looked_at(self, protocols: Sequence[str]) -> set[str]:
        return {*protocols} | ({"clients"} if "server" in protocols else set())

    # the exchange ---------------------------------------------------------------------------------------------------

    def _exchanged(self, evaluate: Sequence[str] = ()) -> Exchange[SiteReply]:
        if self._exchange is None:
            self.mailbox.number = self._offset + self.done + (not super().over)
            drawn = set() if super().over or not self.stage.trained else set(self.draw(self.done))
            looked = [k for k in self.active if self.has_scores(k)] if evaluate else []
            self._exchange = self._asked(drawn, {*drawn, *looked}, tuple(evaluate))
        return self._exchange

    def size_of(self, name: str) -> int:
        """Clients of a group that can take part at all."""
        return self._population(name)

    def broadcast(self, name: str) -> Broadcast:
        """The order of the next round in a group, with what is addressed to each of its sites."""
        ids = [k for k in self.active if self.group_of(k) == name]
        return self.groups[name].broadcast(ids, self.size_of(name))

    def expected(self, broadcast: Broadcast) -> ClientUpdate:
        """What a report on this order must look like."""
        someone, people = next(iter(broadcast.own), 0), self.population
        sample = Batch(people.x[:1], people.y[:1])
        return expected_update(self.method, self.settings, broadcast.to(someone), self._some_context(), sample)

    def _asked(self, drawn: set[int], everybody: set[int], evaluate: tuple[str, ...]) -> Exchange[SiteReply]:
        started = time.monotonic()
        quorum = self.federation.enough(len(drawn)) if drawn else 0
        if self.stage.chooses is not None:
            self._choices = self._chosen(everybody, drawn, quorum)
            drawn, everybody = drawn & self._choices.keys(), everybody & self._choices.keys()
        everybody = {k for k in everybody if self.group_of(k) is not None}
        rounds = RoundRequests(self, drawn, evaluate)
        sites = {k: self.federation.sites[k].name for k in everybody}
        exchange: Exchange[SiteReply] = Exchange(
            self.mailbox,
            (self.index + 1, self.done),
            {name: partial(rounds.request, k) for k, name in sorted(sites.items())},
            rounds.read,
            {sites[k] for k in drawn if k in sites},
            quorum,
            rounds.more,
            self._sifted,
            self._kept,
            self._forgetful,
        )
        self.mailbox.event(
            "asked", round=self.mailbox.number, train=sorted(exchange.counts), quorum=quorum, evaluate=list(evaluate)
        )
        exchange.run()
        self.holds = {k: rounds.fixed(k) for k, name in sites.items() if name in exchange.values} | {
            k: digest for k, digest in self.holds.items() if k not in sites
        }
        self._seconds = time.monotonic() - started
        return exchange

    def _chosen(self, everybody: set[int], drawn: set[int], quorum: int) -> dict[int, str]:
        """The group that each client chooses now."""
        names, states = list(self.groups), list(self.states.values())
        tensors = {f"{i}/{n}": t for i, state in enumerate(states) for n, t in (state.params | state.buffers).items()}
        asked = ChooseRequest(**asdict(self.step), query=repr(self.stage.chooses), groups=len(names))
        sites = [self.federation.sites[k].name for k in sorted(everybody)]

        def read(site: str, facts: Facts, tensors: Tree) -> str:
            choice = facts.get("choice")
            if tensors or type(choice) is not int or not 0 <= choice < len(names):
                raise RefusedUpdate(f"choice {str(choice)[:40]!a}; expected a number from 0 to {len(names) - 1}")
            return names[choice]

        request: Request = ("choose", asked.facts, tensors)
        counts = {self.federation.sites[k].name for k in drawn}
        makes: dict[str, Make] = dict.fromkeys(sites, lambda: request)
        found = Exchange(self.mailbox, (self.index + 1, self.done), makes, read, counts, quorum).run()
        return {self.number[site]: name for site, name in found.values.items()}

    def _forgetful(self, site: str) -> None:
        """Who was unable may have lost what came once: it comes again."""
        self.holds.pop(self.number[site], None)

    def _kept(self, site: str, reply: SiteReply) -> SiteReply:
        """A sound report goes to disk; its numbers stay."""
        if reply.client_update is None:
            return reply
        found, client_update = self._norms(site, reply.client_update), reply.client_update
        numbers = self._update_store.put(self.number[site], client_update)
        return reply._replace(client_update=numbers, norms=found, sent=tree.nbytes(client_update.update))

    def _norms(self, site: str, client_update: ClientUpdate) -> Norms:
        if self._norm_guard.multiple is None:
            return {}
        one = tree.map(lambda t: t[None], client_update.update)
        group = self.groups[self.group_of(self.number[site]) or ""]
        return norms(client_update, tree.row(decode_updates(self.method, one, group.state.params), 0))

    def _sifted(self, replies: Mapping[str, SiteReply]) -> dict[str, str]:
        return self._norm_guard.faults({site: reply.norms for site, reply in replies.items() if reply.norms})

    def _advanced(self) -> Outcome:
        """The next states, from the reports of this round."""
        exchange, started = self._exchanged(), time.monotonic()
        replies = {self.number[s]: r for s, r in exchange.values.items() if r.client_update is not None}
        found = {s: r.norms for s, r in exchange.values.items() if r.norms}
        self._norm_guard.accept(found)
        if found:
            self.mailbox.event(
                "norms", round=self.mailbox.number, norms={site: of.get("update") for site, of in found.items()}
            )
        before, cohorts = self.states, {}
        for name in self.groups:
            ids = tuple(sorted(k for k in replies if self.group_of(k) == name))
            if ids:
                cohorts[name] = self._accepted(
                    name, ids, join_nests([replies[k].client_update for k in ids], torch.stack)
                )
            else:
                self.groups[name].wait()
        self._update_store.clear()
        self.done += 1
        seconds = self._seconds + time.monotonic() - started
        down = len(exchange.counts) * self._bytes["down"]
        up = sum(self._bytes["up"] + replies[k].sent for c in cohorts.values() for k in c.ids)
        done = RoundResult(before, cohorts, {}, seconds, down, up)
        faults = {self.number[s]: why for s, why in exchange.faults.items() if s in exchange.counts}
        local = {
            self.number[s]: {part: t.plain() for part, t in r.tallies["local"].items()}
            for s, r in exchange.values.items()
            if "local" in r.tallies
        }
        return Outcome(seconds, sorted(done.trained), faults, done.train_loss, down, up, local)

    def _accepted(self, name: str, ids: tuple[int, ...], numbers: ClientUpdate) -> Cohort:
        """Advance a group by the reports of its clients, which a linear method reads one by one."""
        left = Cohort(ids, numbers, self._population(name), folded=True)
        if self.method.linear:
            self.groups[name].accept(left, self._update_store.row)
        else:
            self.groups[name].accept(replace(left, stacked=self._update_store.stacked(ids), folded=False))
        return left
