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

    site: ClientPool

    def feed(self, order: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink) -> None:
        site, order = self.site, order._replace(params=self.setting.model.laid_out(order.params))
        lessons, sizes = site.lessons(ids, order.round), site.sizes_of(ids)
        dropouts = [seeds.number(site.setting.seed, "dropout", order.round, client) for client in ids]
        with seeds.borrowed(site.source.x.device) as start, torch.no_grad():
            for client, size, dropout, *lesson in zip(ids, sizes, dropouts, *lessons, strict=True):
                memory, data, context = self._given(client, order.round, lesson, accepted)
                start(dropout)
                report, kept = train(
                    site.method, self.setting, order.to(client), memory, size, data, context, autograd_gradient
                )
                site.memories.put(client, order.round, kept, accepted.get(client))
                sink.add([client], map_tensors(lambda t: t.unsqueeze(0), report))

    def tune(self, order: Broadcast, ids: Sequence[int], accepted: AcceptedRounds) -> Iterator[tuple[int, Tree]]:
        lessons = self.site.tuning_lessons(ids, order.round)
        return (
            (client, self._tune(order, client, lesson, accepted)) for client, *lesson in zip(ids, *lessons, strict=True)
        )

    @cached_property
    def setting(self) -> StageSettings:
        """The setting with the model as one client at a time computes it best."""
        site = self.site
        return replace(site.setting, model=site.setting.model.channels_last(site.source.x[:2], site.some_context))

    def _given(
        self, client: int, round: int, lesson: list[Batches], accepted: AcceptedRounds
    ) -> tuple[PartTrees, ClientBatches, Context]:
        """What a client trains with: its memory, its batches and its static facts."""
        site = self.site
        memory, context = site.memories.get(client, accepted.get(client)), site.context(client)
        return memory, site.data(client, round, lesson, self.setting.model), context

    def _tune(self, order: Broadcast, client: int, lesson: list[Batches], accepted: AcceptedRounds) -> Tree:
        site = self.site
        memory, data, context = self._given(client, order.round, lesson, accepted)
        dropout = seeds.number(site.setting.seed, "dropout of tuning", order.round, client)
        with seeds.isolated(dropout, site.source.x.device), torch.no_grad():
            tuned = tune(site.method, self.setting, order.to(client), memory, data, context, autograd_gradient)
        return tree.map(Tensor.contiguous, tuned)
