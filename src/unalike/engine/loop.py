"""The executor `loop`, the reference: one client after another, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.types import Broadcast, Context, PartTrees, Tree
from unalike.core.views import ClientBatches, StageSettings
from unalike.core.work import Batches
from unalike.engine.base import AcceptedRounds, BaseExecutor, ClientPool
from unalike.training.aggregation import UpdateSink
from unalike.training.client_update import train, tune
from unalike.training.local_step import autograd_gradient


@dataclass(frozen=True)
class Loop(BaseExecutor):
    """Trains each client by itself with ordinary autograd."""

    client_pool: ClientPool

    def feed(self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink) -> None:
        pool, method = self.client_pool, self.client_pool.method
        broadcast = broadcast._replace(params=self.settings.model.laid_out(broadcast.params))
        schedules, sizes = pool.schedules(ids, broadcast.round), pool.sizes_of(ids)
        dropouts = [seeds.number(pool.settings.seed, "dropout", broadcast.round, client) for client in ids]
        with seeds.borrowed(pool.source.x.device) as start, torch.no_grad():
            for client, size, dropout, *batches in zip(ids, sizes, dropouts, *schedules, strict=True):
                state, data, context = self._given(client, broadcast.round, batches, accepted)
                start(dropout)
                own = broadcast.to(client)
                update, kept = train(method, self.settings, own, state, size, data, context, autograd_gradient)
                pool.client_states.put(client, broadcast.round, kept, accepted.get(client))
                sink.add([client], map_tensors(lambda t: t.unsqueeze(0), update))

    def tune(self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds) -> Iterator[tuple[int, Tree]]:
        schedules = self.client_pool.tuning_schedules(ids, broadcast.round)
        return (
            (client, self._tune(broadcast, client, batches, accepted))
            for client, *batches in zip(ids, *schedules, strict=True)
        )

    @cached_property
    def settings(self) -> StageSettings:
        """The stage's settings with the model in the memory format that is fastest for one client."""
        pool = self.client_pool
        return replace(pool.settings, model=pool.settings.model.channels_last(pool.source.x[:2], pool.some_context))

    def _given(
        self, client: int, round: int, batches: list[Batches], accepted: AcceptedRounds
    ) -> tuple[PartTrees, ClientBatches, Context]:
        """The client's state, its batches and its static facts."""
        pool = self.client_pool
        state, context = pool.client_states.get(client, accepted.get(client)), pool.context(client)
        return state, pool.data(client, round, batches, self.settings.model), context

    def _tune(self, broadcast: Broadcast, client: int, batches: list[Batches], accepted: AcceptedRounds) -> Tree:
        pool = self.client_pool
        state, data, context = self._given(client, broadcast.round, batches, accepted)
        dropout = seeds.number(pool.settings.seed, "dropout of tuning", broadcast.round, client)
        with seeds.isolated(dropout, pool.source.x.device), torch.no_grad():
            own = broadcast.to(client)
            tuned = tune(pool.method, self.settings, own, state, data, context, autograd_gradient)
        return tree.map(Tensor.contiguous, tuned)
