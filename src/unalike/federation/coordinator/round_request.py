"""The requests of one exchange, made from a round plan that does not change, and the check of their replies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.codec import Facts, checksum
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, Tree
from unalike.data.population import Population
from unalike.federation.coordinator.exchange import Requests
from unalike.federation.coordinator.mailbox import Mailbox, Request
from unalike.federation.coordinator.update_store import UpdateStore
from unalike.federation.protocol.messages import StepRequest, TrainRequest
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.metrics import RunMetrics
from unalike.runtime.stages.stage_state import StageState
from unalike.training.server.norm_guard import NormGuard, Norms
from unalike.training.server.norm_guard import norms as norms_of
from unalike.training.server.updates import decode_update
from unalike.training.validation import RefusedUpdate, check_update, expected_steps, expected_update

SplitSums = dict[str, MetricSums]
"""Part of the samples ("test", "val") -> sums and counts of a model's predictions on them."""


class SiteReply(NamedTuple):
    """A site's checked reply.

    `tallies` are its evaluations by protocol, `client_update` its update if it trained (once that is on disk, its numbers
    alone), `sent` the bytes of the update.
    """

    tallies: dict[str, SplitSums]
    client_update: ClientUpdate | None
    norms: Norms
    sent: int


@dataclass(frozen=True)
class GroupPlan:
    """A group's part of a round plan.

    `number` is its place among the stage's groups, `samples` the training samples by client with public ones that the stage
    adds, `accepted` the round of each client's last accepted update. The tensors `fixed` stay the same in the whole stage and
    are sent once; `digest` is theirs.
    """

    number: int
    broadcast: Broadcast
    samples: np.ndarray
    accepted: Mapping[int, int]
    digest: str
    fixed: Tree


@dataclass(frozen=True)
class RoundPlan:
    """Everything that the requests of one exchange are made of.

    `groups` are those that have clients, `group_of` is of all clients that may be asked; sites evaluate the broadcast model
    under the protocols `evaluate`, and with `local` their model after training. `metrics` were chosen by name.
    """

    position: StepRequest
    groups: Mapping[str, GroupPlan]
    group_of: Mapping[int, str]
    evaluate: tuple[str, ...]
    local: bool
    metrics: RunMetrics

    def group(self, client: int) -> GroupPlan:
        return self.groups[self.group_of[client]]


def has_scores(population: Population, client: int) -> bool:
    """Whether a site has samples to evaluate on."""
    return bool(population.test.sizes[client] or population.val.sizes[client])


def round_plan(
    state: StageState,
    position: StepRequest,
    active: list[int],
    evaluate: tuple[str, ...],
    local: bool,
    metrics: RunMetrics,
) -> RoundPlan:
    """The plan of the next exchange; `active` are the sites that may be asked."""
    group_of = {k: name for k in active if (name := state.group_of(k)) is not None}
    groups = {}
    for number, (name, group) in enumerate(state.groups.items()):
        ids = [k for k, mine in group_of.items() if mine == name]
        if ids:
            fixed = _fixed(state, name)
            broadcast = group.broadcast(ids)
            groups[name] = GroupPlan(
                number=number,
                broadcast=broadcast,
                samples=group.source.sizes,
                accepted=dict(group.accepted),
                digest=checksum(fixed),
                fixed=fixed,
            )
    return RoundPlan(
        position=position,
        groups=groups,
        group_of=group_of,
        evaluate=evaluate,
        local=local,
        metrics=metrics,
    )


def placeholder_context(state: StageState) -> Context:
    """Static facts of a few placeholders: the facts of a client have the same shapes for every client."""
    method, population = state.method, state.population
    few = torch.zeros(8, dtype=torch.int64)
    has_facts = method.has_facts(state.settings.work)
    return (
        method.client_facts(Batch(population.x[few], population.y[few]), state.settings)
        if has_facts
        else {}
    )


def _fixed(state: StageState, name: str) -> Tree:
    """The tensors that stay the same in a stage: public samples; if it has a start of its own, all that is not shared."""
    stage, model, now, part_trees = state.stage, state.settings.model, state.groups[name].state, {}
    if stage.start is not None:
        part_trees["fixed.params"] = {
            n: w for n, w in now.params.items() if not stage.method.shares(n, model)
        }
        part_trees["fixed.buffers"] = {
            n: b for n, b in now.buffers.items() if not stage.method.shares(n, model)
        }
    if stage.shared is not None:
        part_trees["shared"] = {"x": stage.shared.x, "y": stage.shared.y}
    return tree.pack(part_trees)


class RoundRequests(Requests[SiteReply]):
    """Makes the requests of a round plan, checks the replies, and stores the updates.

    `drawn` are asked to train, and grow when others are asked in addition. The population of `state` are placeholders of the
    sites' samples, with their true numbers. `digests` (client -> digest of the fixed tensors that it has) shrink when a site
    may have lost them.
    """

    def __init__(
        self,
        plan: RoundPlan,
        drawn: set[int],
        state: StageState,
        mailbox: Mailbox,
        digests: dict[int, str],
        update_store: UpdateStore,
        norm_guard: NormGuard,
        check_losses: Callable[[Mapping[str, float]], None],
    ):
        self.plan, self.drawn, self._state, self._mailbox, self._digests = (
            plan,
            drawn,
            state,
            mailbox,
            digests,
        )
        self._update_store, self._norm_guard, self._check_losses = (
            update_store,
            norm_guard,
            check_losses,
        )
        self._losses: dict[str, float] = {}
        """Site -> mean loss of the model that it was sent on its samples; infinite where it is not finite."""
        self._clients = mailbox.client_of
        self._expected: dict[str, ClientUpdate] = {}

    def request(self, site: str) -> Request:
        client, plan = self._clients[site], self.plan
        group = plan.group(client)
        broadcast = group.broadcast.to(client)
        train_request = TrainRequest(
            **asdict(plan.position),
            method=repr(self._state.method),
            group=group.number,
            round=broadcast.round,
            accepted=group.accepted.get(client),
            lr=broadcast.lr,
            train=client in self.drawn,
            evaluate=plan.evaluate if has_scores(self._state.population, client) else (),
            local=plan.local and client in self.drawn,
            fixed=group.digest,
        )
        has = self._digests.get(client) == group.digest
        return "train", train_request.facts, self._sent(broadcast) | ({} if has else group.fixed)

    def read(self, site: str, facts: Facts, tensors: Tree) -> SiteReply:
        plan, client = self.plan, self._clients[site]
        trains = client in self.drawn
        names = [
            *(plan.evaluate if has_scores(self._state.population, client) else ()),
            *(["local"] if plan.local and trains else []),
        ]
        tallies = facts.get("tallies")
        if set(facts) != {"tallies"} or not isinstance(tallies, dict) or set(tallies) != set(names):
            raise RefusedUpdate(
                f"tallies {str(tallies)[:80]!a}; expected those of {', '.join(names) or 'nothing'}"
            )
        sums = {name: self._tallies(tallies[name], client) for name in names}
        if plan.evaluate and plan.evaluate[0] in sums:
            self._losses[site] = _mean_loss(sums[plan.evaluate[0]])
        client_update = None
        if trains:
            try:
                client_update = self._checked(client, tensors)
            except RefusedUpdate as error:
                if self._losses.get(site) != float("inf"):
                    raise
                since = f"the model is not finite since round {self._mailbox.number - 1}"
                raise RefusedUpdate(f"{since}, and training gives: {error}") from None
        elif tensors:
            raise RefusedUpdate("an update of a site that was not asked to train")
        return SiteReply(sums, client_update, {}, 0)

    def store(self, site: str, value: SiteReply) -> SiteReply:
        """Write an update to disk; its numbers stay."""
        update = value.client_update
        if update is None:
            return value
        norms = self._norms(site, update)
        numbers = self._update_store.put(self._clients[site], update)
        return value._replace(client_update=numbers, norms=norms, sent=tree.nbytes(update.update))

    def outliers(self, values: Mapping[str, SiteReply]) -> Mapping[str, str]:
        steps = {
            site: float(update.steps)
            for site, reply in values.items()
            if (update := reply.client_update) is not None
        }
        faults = {
            site: why for site in steps if (why := self._out_of_bounds(site, values[site].norms))
        }
        sound = {site: values[site].norms for site in steps if site not in faults}
        return faults | self._norm_guard.faults(sound, {site: steps[site] for site in sound})

    def check(self) -> None:
        self._check_losses(self._losses)

    def substitutes(self, attempt: int, lacking: int) -> Sequence[str]:
        """Sites that train instead, drawn from those that can be reached."""
        state, sites = self._state, self._mailbox.federation.sites
        if not self.drawn or state.stage.chooses is not None:
            return ()
        reachable = set(self._mailbox.transport.sites())
        others = [k for k in state.eligible if k not in self.drawn and sites[k].name in reachable]
        others = [k for k in others if state.group_of(k) is not None]
        rng = seeds.generator(state.settings.seed, "cohort again", state.done, attempt)
        added = rng.permutation(np.array(others, np.int64))[:lacking].tolist()
        self.drawn |= set(added)
        return [sites[k].name for k in added]

    def note_unable(self, site: str) -> None:
        """A site that was unable may have lost the fixed tensors: it gets them again."""
        self._digests.pop(self._clients[site], None)

    def _norms(self, site: str, client_update: ClientUpdate) -> Norms:
        now = self._state.group(self._clients[site]).state
        return norms_of(client_update, decode_update(self._state.method, client_update.update, now))

    def _out_of_bounds(self, site: str, norms: Norms) -> str:
        """The reason why an update is refused whatever the others are; empty if it is not."""
        if not all(map(isfinite, norms.values())):
            return "its update is not finite once it is decoded, though all that was sent is"
        privacy, state = self._state.method.privacy, self._state.group(self._clients[site]).state
        if privacy is None:
            return ""
        most, found = (
            privacy.largest_update(state.part_states.get(privacy.name, {})),
            norms.get("update", 0.0),
        )
        text = f"the norm of its update is {found:.4g}; expected at most {most:.4g}, to which {privacy.name} bounds it there"
        return text if found > most * (1 + 1e-3) else ""  # rounding

    def _checked(self, client: int, tensors: Tree) -> ClientUpdate:
        """The client update in these tensors, if it is one that the request asked for."""
        state, samples = self._state, int(self.plan.group(client).samples[client])
        steps = expected_steps(state.method, state.settings, samples)
        return check_update(tensors, self._expected_update(client), state.settings, samples, steps)

    def _expected_update(self, client: int) -> ClientUpdate:
        """A client update as the request to this client asks for it."""
        state, name, group = self._state, self.plan.group_of[client], self.plan.group(client)
        if name not in self._expected:
            someone = next(iter(group.broadcast.own), 0)
            sample = Batch(state.population.x[:1], state.population.y[:1])
            self._expected[name] = expected_update(
                state.method,
                state.settings,
                group.broadcast.to(someone),
                placeholder_context(state),
                sample,
            )
        return self._expected[name]

    def _sent(self, broadcast: Broadcast) -> Tree:
        """The tensors that a site is sent in every round: the shared ones, and messages."""
        method, settings = self._state.method, self._state.settings
        model, own_buffers = (
            settings.model,
            settings.buffers == "local" and self._state.stage.start is None,
        )
        params = tree.only(broadcast.params, method.shared_names(broadcast.params, model))
        buffers = (
            {}
            if own_buffers
            else tree.only(broadcast.buffers, method.shared_names(broadcast.buffers, model))
        )
        messages = {f"messages.{part}": t for part, t in broadcast.messages.items()}
        return tree.pack({"params": params, "buffers": buffers} | messages)

    def _tallies(self, found: Any, client: int) -> SplitSums:
        if not isinstance(found, dict) or set(found) != {"test", "val"}:
            raise RefusedUpdate("tallies of other samples than those of test and val")
        population = self._state.population
        classes = max(2, len(population.classes or ()))
        sizes = {
            "test": int(population.test.sizes[client]),
            "val": int(population.val.sizes[client]),
        }
        own = self.plan.metrics
        return {
            part: MetricSums.read(found[part], population.task, n, classes, own)
            for part, n in sizes.items()
        }


def _mean_loss(sums: SplitSums) -> float:
    """The mean loss on the test samples, or without any on the validation samples; infinite where it is not finite."""
    found = sums["test"] if sums["test"].n else sums["val"]
    return float("inf") if found.loss is None else found.loss / found.n
