"""The reference: one client after another, tensors in memory, no padding."""

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
    """Runs `train` for each client with the ordinary autograd."""

    client_pool: ClientPool

    def feed(self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink) -> None:
        client_pool, broadcast = (
            self.client_pool,
            broadcast._replace(params=self.settings.model.laid_out(broadcast.params)),
        )
        schedules, sizes = client_pool.schedules(ids, broadcast.round), client_pool.sizes_of(ids)
        dropouts = [seeds.number(client_pool.settings.seed, "dropout", broadcast.round, client) for client in ids]
        with seeds.borrowed(client_pool.source.x.device) as start, torch.no_grad():
            for client, size, dropout, *lesson in zip(ids, sizes, dropouts, *schedules, strict=True):
                client_state, data, context = self._given(client, broadcast.round, lesson, accepted)
                start(dropout)
                report, kept = train(
                    client_pool.method,
                    self.settings,
                    broadcast.to(client),
                    client_state,
                    size,
                    data,
                    context,
                    autograd_gradient,
                )
                client_pool.client_states.put(client, broadcast.round, kept, accepted.get(client))
                sink.add([client], map_tensors(lambda t: t.unsqueeze(0), report))

    def tune(self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds) -> Iterator[tuple[int, Tree]]:
        schedules = self.client_pool.tuning_schedules(ids, broadcast.round)
        return (
            (client, self._tune(broadcast, client, lesson, accepted))
            for client, *lesson in zip(ids, *schedules, strict=True)
        )

    @cached_property
    def settings(self) -> StageSettings:
        """The setting with the model as one client at a time computes it best."""
        client_pool = self.client_pool
        return replace(
            client_pool.settings,
            model=client_pool.settings.model.channels_last(client_pool.source.x[:2], client_pool.some_context),
        )

    def _given(
        self, client: int, round: int, lesson: list[Batches], accepted: AcceptedRounds
    ) -> tuple[PartTrees, ClientBatches, Context]:
        """What a client trains with: its memory, its batches and its static facts."""
        client_pool = self.client_pool
        client_state, context = client_pool.client_states.get(client, accepted.get(client)), client_pool.context(client)
        return client_state, client_pool.data(client, round, lesson, self.settings.model), context

    def _tune(self, broadcast: Broadcast, client: int, lesson: list[Batches], accepted: AcceptedRounds) -> Tree:
        client_pool = self.client_pool
        client_state, data, context = self._given(client, broadcast.round, lesson, accepted)
        dropout = seeds.number(client_pool.settings.seed, "dropout of tuning", broadcast.round, client)
        with seeds.isolated(dropout, client_pool.source.x.device), torch.no_grad():
            tuned = tune(
                client_pool.method, self.settings, broadcast.to(client), client_state, data, context, autograd_gradient
            )
        return tree.map(Tensor.contiguous, tuned)
