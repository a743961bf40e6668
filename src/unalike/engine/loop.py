"""The executor `loop`, the reference: one client after another, without padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.nests import map_tensors
from unalike.core.types import Broadcast, Tree
from unalike.core.views import StageSettings
from unalike.engine.base import AcceptedRounds, Executor
from unalike.training.client.client_update import train, tune
from unalike.training.server.updates import UpdateSink

REUSE = 300
"""Operations of a batch per weight of a convolution from which on channels-last activations pay: below it, kernels rearrange
weights for longer than they compute (a ResNet-18 with images of 32 x 32 takes 1.2 times as long in batches of 10)."""


@dataclass(frozen=True)
class Loop(Executor):
    """Trains each client by itself with ordinary autograd."""

    def feed(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink
    ) -> None:
        pool = self.client_pool
        broadcast = broadcast._replace(params=self.settings.model.layout.of_tree(broadcast.params))
        schedules, sizes = pool.schedules(ids, broadcast.round), pool.sizes_of(ids)
        dropouts = [
            seeds.number(pool.settings.seed, "dropout", broadcast.round, client) for client in ids
        ]
        with seeds.borrowed(pool.source.x.device) as start, torch.no_grad():
            for client, size, dropout, *batches in zip(
                ids, sizes, dropouts, *schedules, strict=True
            ):
                task = pool.task(
                    client, size, broadcast, batches, accepted.get(client), self.settings
                )
                start(dropout)
                update, kept = train(task, self.graphs.trainers)
                pool.client_states.put(client, broadcast.round, kept, accepted.get(client))
                sink.add([client], map_tensors(lambda t: t.unsqueeze(0), update))

    def tune(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> Iterator[tuple[int, Tree]]:
        pool, schedules = self.client_pool, self.client_pool.tuning_schedules(ids, broadcast.round)
        for client, size, *batches in zip(ids, pool.sizes_of(ids), *schedules, strict=True):
            task = pool.task(client, size, broadcast, batches, accepted.get(client), self.settings)
            dropout = seeds.number(pool.settings.seed, "dropout of tuning", broadcast.round, client)
            with seeds.isolated(dropout, pool.source.x.device), torch.no_grad():
                tuned = tune(task, self.tuning_graphs.trainers)
            yield client, tree.map(Tensor.contiguous, tuned)

    @cached_property
    def settings(self) -> StageSettings:
        """The stage's settings with the model in the memory format that is fastest for one client."""
        pool, model = self.client_pool, self.client_pool.settings.model
        laid = model.channels_last(pool.source.x[:2], pool.some_context)
        weights = sum(w.numel() for w in model.params.values() if w.dim() == 4)
        pays = laid is not model and pool.operations >= REUSE * weights
        return replace(pool.settings, model=laid) if pays else pool.settings
