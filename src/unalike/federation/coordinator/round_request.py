"""The requests of one exchange, made from contents that do not change meanwhile, and the check of their replies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.codec import Facts, checksum
from unalike.core.inputs import first_rows, take_rows
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, Tree
from unalike.core.views import StageSettings
from unalike.data.client_data import SPLITS
from unalike.data.population import Population
from unalike.federation.coordinator.exchange import Requests
from unalike.federation.coordinator.mailbox import Mailbox, Request
from unalike.federation.coordinator.update_store import UpdateStore
from unalike.federation.protocol.messages import StepRequest, TrainRequest
from unalike.federation.protocol.request_tensors import fixed_tensors, round_tensors
from unalike.metrics.metric_sums import MetricSums
from unalike.metrics.metrics import RunMetrics
from unalike.runtime.stages.model_group import NOBODY_LATE
from unalike.runtime.stages.stage_state import StageState
from unalike.training.server.norm_guard import NormGuard, Norms, Opposes, opposes_nobody
from unalike.training.server.norm_guard import norms as norms_of
from unalike.training.server.updates import decode_update
from unalike.training.validation import RefusedUpdate, check_update, expected_steps, expected_update

SplitSums = dict[str, MetricSums]
"""Part of the samples ("test", "val") -> sums and counts of a model's predictions on them."""

ROUNDING = 1e-3
"""The share by which a norm may exceed its bound: sites clip in floating point."""


class SiteReply(NamedTuple):
    """A site's checked reply.

    `tallies` are its evaluations by protocol, `client_update` its update if it trained (once that is on disk, its numbers
    alone), `norms` those of its update, `update_bytes` its size.
    """

    tallies: dict[str, SplitSums]
    client_update: ClientUpdate | None
    norms: Norms = MappingProxyType({})
    update_bytes: int = 0


@dataclass(frozen=True)
class GroupContents:
    """The contents of the requests to a group's clients.

    `number` is its place among the stage's groups, `settings` have its model, `samples` the training samples by client with
    public ones that the stage adds, `accepted` the round of each client's last accepted update. The tensors `fixed` stay the
    same in the whole stage and are sent once; `digest` is theirs.
    """

    number: int
    settings: StageSettings
    broadcast: Broadcast
    samples: np.ndarray
    accepted: Mapping[int, int]
    digest: str
    fixed: Tree


@dataclass(frozen=True)
class RoundContents:
    """Everything that the requests of one exchange are made of.

    `groups` are those that have clients, `group_of` is of all clients that may be asked; sites evaluate the broadcast model
    under the protocols `evaluate`, and with `local` their model after training. `metrics` were chosen by name. `shares` are of
    the clients whose last update was scaled down: the share of its size with which it counted. `under_way` are the contents of
    the requests that clients under way were sent in an earlier round.
    """

    position: StepRequest
    groups: Mapping[str, GroupContents]
    group_of: Mapping[int, str]
    evaluate: tuple[str, ...]
    local: bool
    metrics: RunMetrics
    shares: Mapping[int, float]
    under_way: Mapping[int, GroupContents]

    def group(self, client: int) -> GroupContents:
        return self.under_way.get(client) or self.groups[self.group_of[client]]


def has_samples(population: Population, client: int) -> bool:
    """Whether a site has samples in the run."""
    return any(getattr(population, split).sizes[client] for split in SPLITS)


def round_contents(
    state: StageState,
    *,
    position: StepRequest,
    active: list[int],
    evaluate: tuple[str, ...],
    local: bool,
    metrics: RunMetrics,
    shares: Mapping[int, float],
) -> RoundContents:
    """The contents of the next exchange; `active` are the clients that may be asked."""
    # Who is in no group, or has not chosen one, is asked for nothing.
    group_of = {}
    for client in active:
        name = state.group_of(client)
        if name is not None:
            group_of[client] = name

    # Messages of parts are made for the clients that may get them, once for all requests of the exchange.
    groups = {}
    under_way = {}
    for number, (name, group) in enumerate(state.groups.items()):
        clients = [client for client, own_group in group_of.items() if own_group == name]
        if not clients:
            continue
        server_state = group.state
        fixed = fixed_tensors(
            state.stage, group.settings, server_state.params, server_state.buffers
        )
        groups[name] = GroupContents(
            number=number,
            settings=group.settings,
            broadcast=group.broadcast(clients),
            samples=group.source.sizes,
            accepted=dict(group.accepted),
            digest=checksum(fixed),
            fixed=fixed,
        )
        # A request that is repeated is the same to the byte: all else that it says of a client changes with its update alone.
        for asked in state.devices.under_way:
            sent = group.broadcast([asked.client], group.versions[asked.round])
            under_way[asked.client] = replace(groups[name], broadcast=sent)
    return RoundContents(
        position=position,
        groups=groups,
        group_of=group_of,
        evaluate=evaluate,
        local=local,
        metrics=metrics,
        shares=dict(shares),
        under_way=under_way,
    )


def params_norm(state: StageState) -> float:
    """The norm of the parameters of a stage's model, of several the largest."""
    return max(float(tree.norm(server_state.params)) for server_state in state.states.values())


def scaled_norms(
    guard: NormGuard,
    state: StageState,
    client_of: Mapping[str, int],
    norms: Mapping[str, Norms],
    replies: Mapping[str, SiteReply],
    opposes: Opposes = opposes_nobody,
    started_from: Mapping[int, int] = NOBODY_LATE,
) -> dict[str, dict[str, float]]:
    """Site -> object -> the norm that the guard scales it down to, for those of the `norms` that are too large.

    `started_from` as in `Updates`.
    """
    steps = {}
    rounds = {}
    for site in norms:
        client_update = replies[site].client_update
        assert client_update is not None, "norms are those of an update"
        steps[site] = float(client_update.steps)
        if state.method.sums_are_exact:
            # sums over k times as many samples are k times as large, and the squares of sums k^2 times
            steps[site] = float(state.population.sizes[client_of[site]]) ** 2
        client = client_of[site]
        group = state.group(client)
        trained = started_from.get(client, group.state.round)
        rounds[site] = trained - group.accepted.get(client, -1)
    return guard.scaled_norms(
        norms, steps, rounds=rounds, params_norm=params_norm(state), opposes=opposes
    )


def placeholder_context(state: StageState) -> Context:
    """Static facts of a few placeholders: the facts of a client have the same shapes for every client."""
    method = state.method
    if not method.has_facts(state.settings.work):
        return {}
    population = state.population
    few = torch.zeros(8, dtype=torch.int64)
    placeholders = Batch(take_rows(population.x, few), population.y[few])
    return method.client_facts(placeholders, state.settings)


def placeholder_sample(state: StageState) -> Batch:
    """One placeholder: a sample of a client has its shapes."""
    return Batch(first_rows(state.population.x, 1), state.population.y[:1])


@dataclass(kw_only=True, eq=False)
class RoundRequests(Requests[SiteReply]):
    """Makes the requests of a round from its contents, checks the replies, and stores the updates.

    The clients `cohort` are asked to train; they grow in number when others are asked in addition. The population of `state` are
    placeholders of the sites' samples, with their true numbers. `digests` (client -> digest of the fixed tensors that it has)
    shrink when a site may have lost them. `check_losses` looks at the losses that the sites report of the model, if they are
    `losses_needed` or more.
    """

    contents: RoundContents
    cohort: set[int]
    state: StageState
    mailbox: Mailbox
    digests: dict[int, str]
    update_store: UpdateStore
    norm_guard: NormGuard
    check_losses: Callable[[Mapping[str, float]], None]
    losses_needed: int
    _losses: dict[str, float] = field(default_factory=dict, init=False)
    """Site -> mean loss of the model that it was sent on its samples; infinite where it is not finite."""
    _expected: dict[str, ClientUpdate] = field(default_factory=dict, init=False)
    """Group -> a client update with the names, shapes and types that its requests ask for."""

    def request(self, site: str) -> Request:
        client = self.mailbox.client_of[site]
        group = self.contents.group(client)
        broadcast = group.broadcast.to(client)
        trains = client in self.cohort
        train_request = TrainRequest(
            **asdict(self.contents.position),
            method=repr(self.state.method),
            group=group.number,
            round=broadcast.round,
            accepted=group.accepted.get(client),
            share=self.contents.shares.get(client, 1.0),
            lr=broadcast.lr,
            train=trains,
            evaluate=self.contents.evaluate,
            local=self.contents.local and trains,
            fixed=group.digest,
        )
        tensors = round_tensors(self.state.stage, group.settings, broadcast)
        # What stays the same in a stage goes to a site only once, named by its digest from then on.
        if self.digests.get(client) != group.digest:
            tensors = tensors | group.fixed
        return Request("train", train_request.facts, tensors)

    def read(self, site: str, facts: Facts, tensors: Tree) -> SiteReply:
        client = self.mailbox.client_of[site]
        trains = client in self.cohort

        # 1. The evaluations, of exactly the models that the site was asked to evaluate and whose scores it tells.
        is_one_model = self.state.predicts_the_same_for_all
        names = []
        for name in self.contents.evaluate:
            if self.mailbox.federation.tells_scores(name, is_one_model):
                names.append(name)
        if self.contents.local and trains:
            names.append("local")
        tallies = facts.get("tallies")
        if set(facts) != {"tallies"} or not isinstance(tallies, dict) or set(tallies) != set(names):
            raise RefusedUpdate(
                f"tallies {str(tallies)[:80]!a}; expected those of {', '.join(names) or 'nothing'}"
            )
        sums = {name: self._split_sums(tallies[name], client) for name in names}
        if self.contents.evaluate and self.contents.evaluate[0] in sums:
            found = sums[self.contents.evaluate[0]]
            # a site without samples has no loss
            if found["test"].n or found["val"].n:
                self._losses[site] = _mean_loss(found)

        # 2. The update, from a site that was asked to train and from no other.
        if trains:
            return SiteReply(sums, self._checked_update(site, tensors))
        if tensors:
            raise RefusedUpdate("an update of a site that was not asked to train")
        return SiteReply(sums, None)

    def store(self, site: str, value: SiteReply) -> SiteReply:
        """Write an update to disk; its numbers stay."""
        update = value.client_update
        if update is None:
            return value
        return value._replace(
            norms=self._norms(site, update),
            client_update=self.update_store.put(self.mailbox.client_of[site], update),
            update_bytes=tree.nbytes(update.update),
        )

    def check(self) -> None:
        # a few early answers say nothing of the model
        if len(self._losses) >= self.losses_needed:
            self.check_losses(self._losses)

    def outliers(self, values: Mapping[str, SiteReply]) -> Mapping[str, str]:
        # First those that no update may exceed: they must not count for what is usual.
        faults = {}
        norms = {}
        for site, reply in values.items():
            if reply.client_update is None:
                continue
            why = self._out_of_bounds(site, reply.norms)
            if why:
                faults[site] = why
            else:
                norms[site] = reply.norms
        # Then those that have trained nothing. Updates that are too large are scaled down when the round is complete.
        faults |= self.norm_guard.faults(norms)
        method = self.state.method
        if not method.refuses_large_updates:
            return faults

        # the update beside exact sums counts for nothing
        if method.sums_are_exact:
            for site, of_site in norms.items():
                norms[site] = {what: norm for what, norm in of_site.items() if what != "update"}
        too_large = scaled_norms(self.norm_guard, self.state, self.mailbox.client_of, norms, values)
        for site, scaled in too_large.items():
            what, usual = next(iter(scaled.items()))
            why = f"the norm of its {what} is {norms[site][what]:.4g} where {usual:.4g} is usual"
            faults.setdefault(site, why)
        return faults

    def substitutes(self, attempt: int, lacking: int) -> Sequence[str]:
        """Sites that train instead, drawn from those that can be reached."""
        state = self.state
        if not self.cohort or state.stage.chooses is not None:
            return ()
        sites = self.mailbox.federation.sites
        reachable = set(self.mailbox.transport.sites())
        others = [
            client
            for client in state.eligible
            if client not in self.cohort
            and sites[client].name in reachable
            and state.group_of(client) is not None
        ]
        rng = seeds.generator(state.settings.seed, "cohort again", state.done, attempt)
        added = rng.permutation(np.array(others, np.int64))[:lacking].tolist()
        self.cohort |= set(added)
        return [sites[client].name for client in added]

    def handle_unable(self, site: str) -> None:
        """A site that was unable may have lost the fixed tensors: it gets them again."""
        self.digests.pop(self.mailbox.client_of[site], None)

    def _norms(self, site: str, client_update: ClientUpdate) -> Norms:
        """The norms of an update as it counts: decoded, as the server will add it up."""
        server_state = self.state.group(self.mailbox.client_of[site]).state
        decoded = decode_update(self.state.method, client_update.update, server_state)
        return norms_of(client_update, decoded)

    def _out_of_bounds(self, site: str, norms: Norms) -> str:
        """The reason why an update is refused whatever the others are; empty if it is not."""
        if not all(map(isfinite, norms.values())):
            return "its update is not finite once it is decoded, though all that was sent is"

        # Where a part has clients clip their own updates, a larger one was not clipped there.
        server_state = self.state.group(self.mailbox.client_of[site]).state
        norm = norms.get("update", 0.0)
        for part in self.state.method.parts:
            bound = part.largest_update(server_state.part_states.get(part.name, {}))
            if norm > bound * (1 + ROUNDING):
                return (
                    f"the norm of its update is {norm:.4g}; expected at most {bound:.4g}, "
                    f"to which {part.name} bounds it there"
                )
        return ""

    def _checked_update(self, site: str, tensors: Tree) -> ClientUpdate:
        """The update in a site's tensors. Where the site was sent a model that is not finite, the refusal says so."""
        try:
            return self._update_in(self.mailbox.client_of[site], tensors)
        except RefusedUpdate as error:
            if self._losses.get(site) != inf:
                raise
            since = f"the model is not finite since round {self.mailbox.number - 1}"
            raise RefusedUpdate(f"{since}, and training gives: {error}") from None

    def _update_in(self, client: int, tensors: Tree) -> ClientUpdate:
        """The client update in these tensors, if it is one that the request asked for."""
        group = self.contents.group(client)
        settings = group.settings
        samples = int(group.samples[client])
        method = self.state.method
        client_update = check_update(
            tensors,
            like=self._expected_update(client),
            settings=settings,
            samples=samples,
            steps=expected_steps(method, settings, samples),
        )
        loss = float(client_update.loss)
        is_of_task = method.reports_task_loss(settings.work)
        if loss < 0 and is_of_task and not settings.task.loss_may_be_negative:
            raise RefusedUpdate(f"training loss {loss:.4g}; expected 0 or more")
        for part in method.parts:
            why = part.why_impossible(client_update.messages.get(part.name, {}), samples)
            if why:
                raise RefusedUpdate(f"its message of {part.name}: {why}")
        return client_update

    def _expected_update(self, client: int) -> ClientUpdate:
        """A client update as the request to this client asks for it."""
        name = self.contents.group_of[client]
        if name not in self._expected:
            state = self.state
            group = self.contents.groups[name]
            # Shapes are those of every client in the group, so that any one's part messages will do.
            someone = next(iter(group.broadcast.own), 0)
            self._expected[name] = expected_update(
                method=state.method,
                settings=group.settings,
                broadcast=group.broadcast.to(someone),
                context=placeholder_context(state),
                sample=placeholder_sample(state),
            )
        return self._expected[name]

    def _split_sums(self, tallies: Any, client: int) -> SplitSums:
        """A site's evaluation of one model, over as many samples as it was admitted with."""
        if not isinstance(tallies, dict) or set(tallies) != {"test", "val"}:
            raise RefusedUpdate("tallies of other samples than those of test and val")
        population = self.state.population
        sizes = {
            "test": int(population.test.sizes[client]),
            "val": int(population.val.sizes[client]),
        }
        classes = max(2, len(population.classes or ()))
        sums = {}
        for part, samples in sizes.items():
            sums[part] = MetricSums.read(
                tallies[part],
                task=population.task,
                samples=samples,
                classes=classes,
                chosen=self.contents.metrics,
            )
        return sums


def _mean_loss(sums: SplitSums) -> float:
    """The mean loss on the test samples, or without any on the validation samples; infinite where it is not finite."""
    evaluation = sums["test"] if sums["test"].n else sums["val"]
    return inf if evaluation.loss is None else evaluation.loss / evaluation.n
