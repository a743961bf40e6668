"""The reference: one client after another, tensors in memory, no padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from unalike.core import seed, tree
from unalike.core.client import train, tune
from unalike.core.gather import Sink, each
from unalike.core.local import Data, Setting
from unalike.core.stepping import autograd
from unalike.core.types import Context, Drawers, Order, Tree
from unalike.core.work import Batches
from unalike.executors.base import Accepted, Answering, Site


@dataclass(frozen=True)
class Loop(Answering):
    """Runs `train` for each client with the ordinary autograd."""

    site: Site

    def feed(self, order: Order, ids: Sequence[int], accepted: Accepted, sink: Sink) -> None:
        site, order = self.site, order._replace(params=self.setting.model.laid_out(order.params))
        lessons, sizes = site.lessons(ids, order.round), site.sizes_of(ids)
        dropouts = [seed.number(site.setting.seed, "dropout", order.round, client) for client in ids]
        with seed.borrowed(site.source.x.device) as start, torch.no_grad():
            for client, size, dropout, *lesson in zip(ids, sizes, dropouts, *lessons, strict=True):
                memory, data, context = self._given(client, order.round, lesson, accepted)
                start(dropout)
                report, kept = train(site.method, self.setting, order.to(client), memory, size, data, context, autograd)
                site.memories.put(client, order.round, kept, accepted.get(client))
                sink.add([client], each(lambda t: t.unsqueeze(0), report))

    def tune(self, order: Order, ids: Sequence[int], accepted: Accepted) -> Iterator[tuple[int, Tree]]:
        lessons = self.site.tuning_lessons(ids, order.round)
        return (
            (client, self._tune(order, client, lesson, accepted)) for client, *lesson in zip(ids, *lessons, strict=True)
        )

    @cached_property
    def setting(self) -> Setting:
        """The setting with the model as one client at a time computes it best."""
        site = self.site
        return replace(site.setting, model=site.setting.model.channels_last(site.source.x[:2], site.some_context))

    def _given(
        self, client: int, round: int, lesson: list[Batches], accepted: Accepted
    ) -> tuple[Drawers, Data, Context]:
        """What a client trains with: its memory, its batches and its static facts."""
        site = self.site
        memory, context = site.memories.get(client, accepted.get(client)), site.context(client)
        return memory, site.data(client, round, lesson, self.setting.model), context

    def _tune(self, order: Order, client: int, lesson: list[Batches], accepted: Accepted) -> Tree:
        site = self.site
        memory, data, context = self._given(client, order.round, lesson, accepted)
        dropout = seed.number(site.setting.seed, "dropout of tuning", order.round, client)
        with seed.isolated(dropout, site.source.x.device), torch.no_grad():
            tuned = tune(site.method, self.setting, order.to(client), memory, data, context, autograd)
        return tree.map(Tensor.contiguous, tuned)
