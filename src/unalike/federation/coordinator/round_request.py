"""The orders of one exchange, and what their answers must look like."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.types import Broadcast, ClientUpdate, Tree
from unalike.core.views import ServerState
from unalike.federation.coordinator.exchange import Make
from unalike.federation.coordinator.mailbox import Request
from unalike.federation.coordinator.norm_guard import Norms
from unalike.federation.protocol.messages import TrainRequest
from unalike.federation.protocol.packing import Facts, checksum
from unalike.metrics.metric_sums import MetricSums
from unalike.training.validation import RefusedUpdate, check_update, expected_steps

if TYPE_CHECKING:
    from unalike.federation.coordinator.remote_stage import RemoteStage

SplitSums = dict[str, MetricSums]
"""Part of the samples ("test", "val") -> what a model made of them."""


class SiteReply(NamedTuple):
    """What a site answered to an order: what its evaluations came to by protocol, and its report if it trained.

    Once the report is on disk, its numbers are left, its norms, and the bytes of its update.
    """

    tallies: dict[str, SplitSums]
    client_update: ClientUpdate | None
    norms: Norms
    sent: int


class RoundRequests:
    """The orders of one exchange, and what their answers must look like."""

    def __init__(self, remote: RemoteStage, drawn: set[int], evaluate: tuple[str, ...]):
        self.remote, self.drawn, self.evaluate = remote, drawn, evaluate
        self.local = remote.looks_at_local
        self._orders: dict[str, Broadcast] = {}
        self._like: dict[str, ClientUpdate] = {}
        self._fixed: dict[str, tuple[str, Tree]] = {}

    def request(self, client: int) -> Request:
        remote = self.remote
        name = remote.group_of(client) or ""
        group, broadcast = remote.groups[name], self._order(name).to(client)
        digest, fixed = self._still(name, group.state)
        asked = TrainRequest(
            **asdict(remote.step),
            method=repr(remote.method),
            group=list(remote.groups).index(name),
            round=broadcast.round,
            accepted=group.accepted.get(client),
            population=remote.size_of(name),
            lr=broadcast.lr,
            train=client in self.drawn,
            evaluate=self.evaluate if remote.has_scores(client) else (),
            local=self.local and client in self.drawn,
            fixed=digest,
        )
        has = remote.holds.get(client) == digest
        return "train", asked.facts, self._sent(broadcast) | ({} if has else fixed)

    def fixed(self, client: int) -> str:
        """The digest of what a site that answered has from now on."""
        name = self.remote.group_of(client) or ""
        return self._still(name, self.remote.groups[name].state)[0]

    def read(self, site: str, facts: Facts, tensors: Tree) -> SiteReply:
        """The answer of a site. Raises `UnalikeError` for one that its order did not ask for."""
        remote = self.remote
        client = remote.number[site]
        trains = client in self.drawn
        names = [*(self.evaluate if remote.has_scores(client) else ()), *(["local"] if self.local and trains else [])]
        tallies = facts.get("tallies")
        if set(facts) != {"tallies"} or not isinstance(tallies, dict) or set(tallies) != set(names):
            raise RefusedUpdate(f"tallies {str(tallies)[:80]!a}; expected those of {', '.join(names) or 'nothing'}")
        client_update = None
        if trains:
            name = remote.group_of(client) or ""
            samples = int(remote.groups[name].source.sizes[client])
            steps = expected_steps(remote.method, remote.settings, samples)
            client_update = check_update(tensors, self._expected(name), remote.settings, samples, steps)
        elif tensors:
            raise RefusedUpdate("a report of a site that was not asked to train")
        return SiteReply({name: self._tallies(tallies[name], client) for name in names}, client_update, {}, 0)

    def more(self, attempt: int, lacking: int) -> dict[str, Make]:
        """Other sites to train, of those that can be reached."""
        remote = self.remote
        if not self.drawn or remote.stage.chooses is not None:
            return {}
        reachable = set(remote.mailbox.transport.sites())
        sites = remote.federation.sites
        others = [k for k in remote.eligible if k not in self.drawn and sites[k].name in reachable]
        others = [k for k in others if remote.group_of(k) is not None]
        rng = seeds.generator(remote.settings.seed, "cohort again", remote.done, attempt)
        added = rng.permutation(np.array(others, np.int64))[:lacking].tolist()
        self.drawn |= set(added)
        return {sites[k].name: partial(self.request, k) for k in added}

    def _order(self, name: str) -> Broadcast:
        if name not in self._orders:
            self._orders[name] = self.remote.broadcast(name)
        return self._orders[name]

    def _expected(self, name: str) -> ClientUpdate:
        if name not in self._like:
            self._like[name] = self.remote.expected(self._order(name))
        return self._like[name]

    def _sent(self, broadcast: Broadcast) -> Tree:
        """What a site must be told in every round: what is shared, and letters."""
        method, model, whole = self.remote.method, self.remote.settings.model, self.remote.stage.start is not None
        local_buffers = self.remote.settings.buffers == "local" and not whole
        params = tree.only(broadcast.params, method.sent(broadcast.params, model))
        buffers = {} if local_buffers else tree.only(broadcast.buffers, method.sent(broadcast.buffers, model))
        return tree.pack(
            {"params": params, "buffers": buffers} | {f"messages.{p}": t for p, t in broadcast.messages.items()}
        )

    def _still(self, name: str, state: ServerState) -> tuple[str, Tree]:
        """What stays the same in a stage, and its digest: public samples; where it starts elsewhere than the run, all the rest."""
        if name not in self._fixed:
            method, model, stage, part_trees = self.remote.method, self.remote.settings.model, self.remote.stage, {}
            if stage.start is not None:
                part_trees["fixed.params"] = {n: w for n, w in state.params.items() if not method.shares(n, model)}
                part_trees["fixed.buffers"] = {n: b for n, b in state.buffers.items() if not method.shares(n, model)}
            if stage.shared is not None:
                part_trees["shared"] = {"x": stage.shared.x, "y": stage.shared.y}
            fixed = tree.pack(part_trees)
            self._fixed[name] = checksum(fixed), fixed
        return self._fixed[name]

    def _tallies(self, found: Any, client: int) -> SplitSums:
        if not isinstance(found, dict) or set(found) != {"test", "val"}:
            raise RefusedUpdate("tallies of other samples than those of test and val")
        people = self.remote.population
        classes = max(2, len(people.classes or ()))
        sizes = {"test": int(people.test.sizes[client]), "val": int(people.val.sizes[client])}
        return {part: MetricSums.read(found[part], people.task, size, classes) for part, size in sizes.items()}
