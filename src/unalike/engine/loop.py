"""The executor `loop`, the reference: one client after another, without padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.inputs import first_rows
from unalike.core.nests import map_tensors
from unalike.core.types import Broadcast, Tree
from unalike.core.views import StageSettings
from unalike.engine.base import AcceptedRounds, Executor
from unalike.engine.training_kind import TrainingKind
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import finetune, train
from unalike.training.server.updates import UpdateSink

MIN_OPERATIONS_PER_WEIGHT = 300
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
        tasks = self._tasks(pool.round_training, broadcast, ids, accepted)
        # the generators are borrowed once, since saving and restoring them for each client would take time
        with seeds.borrowed_generators(pool.source.y.device) as start, torch.no_grad():
            for client, dropout_seed, task in tasks:
                start(dropout_seed)
                update, client_state = train(task, self.graphs.trainers)
                pool.client_states.put(client, broadcast.round, client_state, accepted.get(client))
                sink.add([client], map_tensors(lambda t: t.unsqueeze(0), update))

    def finetune(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> Iterator[tuple[int, Tree]]:
        tasks = self._tasks(self.client_pool.finetuning, broadcast, ids, accepted)
        for client, dropout_seed, task in tasks:
            # the caller may draw numbers between two clients, so each one has the generators for itself
            with seeds.isolated(dropout_seed, self.client_pool.source.y.device), torch.no_grad():
                model = finetune(task, self.finetuning_graphs.trainers)
            yield client, tree.map(Tensor.contiguous, model)

    def _tasks(
        self,
        kind: TrainingKind,
        broadcast: Broadcast,
        ids: Sequence[int],
        accepted: AcceptedRounds,
    ) -> Iterator[tuple[int, int, ClientTask]]:
        """Each client with the seed of its dropout and its task."""
        pool, round = self.client_pool, broadcast.round
        schedules = pool.schedules(ids, round, kind)
        dropout_seeds = [seeds.number(pool.settings.seed, kind.dropout, round, k) for k in ids]
        for client, size, dropout_seed, *batches in zip(
            ids, pool.sizes_of(ids), dropout_seeds, *schedules, strict=True
        ):
            task = pool.task(
                client, size, broadcast, batches, accepted.get(client), self.settings, kind
            )
            yield client, dropout_seed, task

    @cached_property
    def settings(self) -> StageSettings:
        """The stage's settings with the model in the memory format that is fastest for one client."""
        pool = self.client_pool
        model = pool.settings.model.channels_last(first_rows(pool.source.x, 2), pool.some_context)
        if model is pool.settings.model:
            return pool.settings
        # there are convolutions; their weights have four dimensions
        weights = sum(w.numel() for w in model.params.values() if w.dim() == 4)
        if pool.operations < MIN_OPERATIONS_PER_WEIGHT * weights:
            return pool.settings
        return replace(pool.settings, model=model)
