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
from unalike.core.local import Setting
from unalike.core.stepping import autograd
from unalike.core.types import Order, Report, Tree
from unalike.core.work import Batches
from unalike.executors.base import Accepted, Answering, Site


@dataclass(frozen=True)
class Loop(Answering):
    """Runs `train` for each client with the ordinary autograd."""

    site: Site

    def feed(self, order: Order, ids: Sequence[int], accepted: Accepted, sink: Sink) -> None:
        lessons, sizes = self.site.lessons(ids, order.round), self.site.sizes_of(ids)
        dropouts = [seed.number(self.site.setting.seed, "dropout", order.round, client) for client in ids]
        for client, size, dropout, *lesson in zip(ids, sizes, dropouts, *lessons, strict=True):
            report = self._train(order, client, lesson, size, dropout, accepted.get(client))
            sink.add([client], each(lambda t: t.contiguous().unsqueeze(0), report))

    def tune(self, order: Order, ids: Sequence[int], accepted: Accepted) -> Iterator[tuple[int, Tree]]:
        lessons = self.site.tuning_lessons(ids, order.round)
        return (
            (client, self._tune(order, client, lesson, accepted.get(client)))
            for client, *lesson in zip(ids, *lessons, strict=True)
        )

    @cached_property
    def setting(self) -> Setting:
        """The setting with the model as one client at a time computes it best."""
        site = self.site
        return replace(site.setting, model=site.setting.model.channels_last(site.source.x[:2], site.some_context))

    def _train(
        self, order: Order, client: int, lesson: list[Batches], size: Tensor, dropout: int, accepted: int | None
    ) -> Report:
        site = self.site
        memory, context = site.memories.get(client, accepted), site.context(client)
        data = site.data(client, order.round, lesson, self.setting.model)
        with seed.isolated(dropout, site.source.x.device), torch.no_grad():
            report, kept = train(site.method, self.setting, order.to(client), memory, size, data, context, autograd)
        site.memories.put(client, order.round, kept, accepted)
        return report

    def _tune(self, order: Order, client: int, lesson: list[Batches], accepted: int | None) -> Tree:
        site = self.site
        memory, context = site.memories.get(client, accepted), site.context(client)
        data = site.data(client, order.round, lesson, self.setting.model)
        dropout = seed.number(site.setting.seed, "dropout of tuning", order.round, client)
        with seed.isolated(dropout, site.source.x.device), torch.no_grad():
            tuned = tune(site.method, self.setting, order.to(client), memory, data, context, autograd)
        return tree.map(Tensor.contiguous, tuned)
