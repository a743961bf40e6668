"""The interface of executors, and the client pool that each of them trains: batches, states and static facts of the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from unalike._utils import seeds
from unalike._utils.profiler_regions import profiled_function
from unalike.client_devices.simulated_clock import ClientNumbers, ShareOfWork
from unalike.core import tree
from unalike.core.inputs import Inputs, first_rows, take_rows
from unalike.core.model import Model
from unalike.core.nests import join_nests
from unalike.core.types import Batch, Broadcast, ClientUpdate, Context, PartTrees, Tree
from unalike.core.views import ClientBatches, Cohort, Members, StageSettings
from unalike.core.work import Batches, Work
from unalike.data.transforms import TransformChain
from unalike.engine.batch_schedule import BatchSchedule, Indices, LazyBatches, distinct, is_flat
from unalike.engine.step_graphs import StepGraphs
from unalike.engine.training_kind import TrainingKind
from unalike.methods.method import Method
from unalike.methods.roles import Conditioner
from unalike.training.client.client_states import ClientStateStore
from unalike.training.client.client_task import ClientTask
from unalike.training.client.client_update import without_solver_state
from unalike.training.server.kept_updates import UpdateBuffer
from unalike.training.server.updates import UpdateSink
from unalike.training.validation import expected_steps

AcceptedRounds = dict[int, int]
"""Client -> the round of its last accepted update."""


STEP_COST = 4
"""Cost of a step beside its batch, in samples: about 14 for softmax regression, 4 for the 2NN, none for convolutions."""


def client_costs(method: Method, work: Work, sizes: np.ndarray) -> np.ndarray:
    """The cost of a round of clients with these numbers of samples, in samples.

    It is reckoned and not measured: measurements change from run to run, and with them the process that trains a client and the
    last bits of sums.
    """

    return trained_samples(method, work, sizes, step_cost=STEP_COST)


def trained_samples(
    method: Method, work: Work, sizes: np.ndarray, step_cost: int = 0
) -> np.ndarray:
    """The samples in all steps of a round of clients with these numbers of samples; each step counts `step_cost` more."""
    works = [phase.work(work) for phase in method.phases]

    def samples_of_steps(samples: int) -> int:
        total = 0
        for work in works:
            rows = min(work.batch_size or samples, samples)
            total += work.steps_for(samples) * (rows + step_cost)
        return total

    distinct_sizes, which = distinct(sizes)
    return np.array([samples_of_steps(n) for n in distinct_sizes], np.int64)[which]


class SampleSource(Protocol):
    """Clients' data as index arrays into common tensors: a `Population`, or a few clients of one in `padding_checks`."""

    @property
    def x(self) -> Inputs: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def train(self) -> Indices: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class ClientPool:
    """The simulated clients as an executor sees them.

    `source` has the clients' samples, `client_states` what the method's parts keep of each client; `transform` changes training
    batches. `share_of_work` says which share of its steps a client makes in a round; None: all clients make all.
    """

    method: Method
    settings: StageSettings
    source: SampleSource
    client_states: ClientStateStore
    transform: TransformChain | None = None
    share_of_work: ShareOfWork | None = None
    _facts: dict[int, Context] = field(default_factory=dict)
    _common: PartTrees = field(default_factory=dict)
    _expected: dict[tuple[int, float], tuple[int, float]] = field(default_factory=dict)

    @property
    def sizes(self) -> np.ndarray:
        """The number of training samples of every client; not kept, since there may be a million clients."""
        rows = self.source.train
        return np.diff(rows.offsets) if is_flat(rows) else self.counts(range(len(self.source)))

    @property
    def typical(self) -> int:
        """The mean number of samples of clients that have any; at least 1."""
        sizes = self.sizes
        return max(1, int(sizes.sum()) // max(1, int(np.count_nonzero(sizes))))

    @property
    def typical_batch(self) -> tuple[Inputs, Tensor]:
        """As many samples and labels as a batch of a client of mean size has."""
        rows = min(len(self.source.y), self.settings.work.batch_size or self.typical, self.typical)
        return first_rows(self.source.x, rows), self.source.y[:rows]

    @cached_property
    def operations(self) -> int:
        """Floating-point operations of matrix products in the forward pass of a batch of a client of mean size."""
        model = self.settings.model
        x, y = self.typical_batch
        with (
            seeds.isolated(0, y.device),
            torch.no_grad(),
            FlopCounterMode(display=False) as counter,
        ):
            model(model.params, x, buffers=model.buffers, context=self.some_context, training=True)
        return int(counter.get_total_flops())

    def counts(self, ids: ClientNumbers) -> np.ndarray:
        """The number of training samples of these clients."""
        rows, clients = self.source.train, np.asarray(ids, np.int64)
        if is_flat(rows):
            return rows.offsets[clients + 1] - rows.offsets[clients]
        return np.array([len(rows[k]) for k in clients.tolist()], np.int64)

    @property
    def some_context(self) -> Context:
        """The static facts of one client (with samples, if any has some): all clients' facts have the same shapes."""
        return self.context(int((self.sizes > 0).argmax()))

    @cached_property
    def round_training(self) -> TrainingKind:
        """The training of a round."""
        return TrainingKind.round_of(self.method)

    @cached_property
    def finetuning(self) -> TrainingKind:
        """The fine-tuning before an evaluation. Raises `UnalikeError` for a method without one."""
        return TrainingKind.finetuning_of(self.method)

    @profiled_function("data")
    def schedules(
        self, ids: Sequence[int], round: int, kind: TrainingKind | None = None
    ) -> list[BatchSchedule]:
        """The clients' batches in each phase of a kind of training, by default that of a round."""
        kind = self.round_training if kind is None else kind
        shares = self.shares(ids, round) if kind.sends else None
        schedules = []
        for phase, purpose in zip(kind.method.phases, kind.batches, strict=True):
            work = phase.work(self.settings.work)
            schedule = self._draw(ids, round, kind.method, work, purpose)
            schedules.append(schedule if shares is None else schedule.shortened(shares))
        return schedules

    def shares(self, ids: Sequence[int], round: int) -> np.ndarray | None:
        """The share of its steps that each of the clients makes in a round; None: all of them."""
        return None if self.share_of_work is None else self.share_of_work(ids, round)

    def _draw(
        self, ids: Sequence[int], round: int, method: Method, work: Work, purpose: str
    ) -> BatchSchedule:
        """The clients' batches in one phase."""
        seed = self.settings.seed
        part = method.local_gradient
        if part is None or not part.draws_own_batches:
            return BatchSchedule.drawn(work, self.source.train, ids, seed, purpose, round)
        batches = []
        for client in ids:
            rng = seeds.generator(seed, purpose, round, client)
            batches.append(part.draw_batches(work, self.source.train[client], rng, self.settings))
        return BatchSchedule.of(batches)

    def steps(self, samples: int) -> int:
        """Steps in a round of a client with this many samples."""
        return sum(
            phase.work(self.settings.work).steps_for(samples) for phase in self.method.phases
        )

    @profiled_function("data")
    def data(self, client: int, round: int, phases: list[Batches], model: Model) -> ClientBatches:
        """A client's batches in these phases, transformed, and all of its samples once if a part needs them.

        They are fetched in the memory format that `model` reads best.
        """
        parts = list(phases)
        if self.method.needs_data:
            parts += self.whole([client], round)
        changes = self._changes(client, round, parts)
        sequences = [
            LazyBatches(self.source.x, self.source.y, rows, model.layout.rows, change)
            for rows, change in zip(parts, changes, strict=True)
        ]
        whole = sequences[len(phases)] if self.method.needs_data else ()
        return ClientBatches(sequences[: len(phases)], whole)

    def _changes(
        self, client: int, round: int, parts: list[Batches]
    ) -> Sequence[Callable[[Tensor, int], Tensor] | None]:
        """The transform with the random numbers of each part's batches: functions of the samples and the batch's place."""
        transform = self.transform
        if transform is None:
            return [None] * len(parts)

        def change(numbers: list[Tensor], x: Tensor, place: int) -> Tensor:
            return transform(x, numbers[place].to(x.device))

        return [partial(change, numbers) for numbers in self.numbers(client, round, parts)]

    def numbers(self, client: int, round: int, parts: list[Batches]) -> list[list[Tensor]]:
        """The transform's random numbers for the batches of each part, [b, draws] each; [] without a transform."""
        if self.transform is None:
            return []
        sizes = [size for part in parts for size in part.sizes]
        numbers = self.transform.numbers(self.settings.seed, round, client, sum(sizes))
        # one draw for the client's samples in the order of training, cut into batches
        by_batch = iter(numbers.split(sizes))
        return [list(islice(by_batch, len(part))) for part in parts]

    def task(
        self,
        client: int,
        size: Tensor,
        broadcast: Broadcast,
        batches: list[Batches],
        accepted: int | None,
        settings: StageSettings,
        kind: TrainingKind | None = None,
    ) -> ClientTask:
        """A client's task with these batches; `accepted` is the round of its last accepted update.

        It is of the training of a round, or of another `kind`.
        """
        kind = self.round_training if kind is None else kind
        client_state = self.client_states.get(client, accepted)
        return ClientTask(
            method=kind.method,
            settings=settings,
            broadcast=broadcast.to(client),
            client_state=client_state if kind.sends else without_solver_state(client_state),
            data=self.data(client, broadcast.round, batches, settings.model),
            context=self.context(client),
            size=size,
        )

    def sizes_of(self, ids: Sequence[int]) -> Tensor:
        """The numbers of training samples of these clients, [K] floats."""
        return self._numbers(self.counts(ids))

    def _numbers(self, values: np.ndarray) -> Tensor:
        """Numbers as client updates hold them."""
        # the type first: some devices have no float64
        return torch.from_numpy(values).to(self._dtype).to(self.source.y.device)

    @cached_property
    def _dtype(self) -> torch.dtype:
        """The dtype of numbers in client updates."""
        return torch.promote_types(tree.dtype(self.settings.model.params), torch.float32)

    def expected(
        self,
        ids: Sequence[int],
        members: Members,
        samples: Sequence[int] | None = None,
        shares: np.ndarray | None = None,
    ) -> Cohort:
        """The numbers in these clients' updates, as far as they are known before training.

        `samples` in place of their own; `shares` of their steps that they make, all unless given.
        """
        sizes = self.counts(ids) if samples is None else np.array(samples)
        if shares is None:
            distinct_sizes, which = distinct(sizes)
            by_size = [self._expected_numbers(n, 1.0) for n in distinct_sizes]
            steps, weights = np.array(by_size)[which].T
        else:
            by_client = zip(sizes.tolist(), shares.tolist(), strict=True)
            steps, weights = np.array([self._expected_numbers(n, s) for n, s in by_client]).T
        size = self._numbers(sizes)
        shared: PartTrees = {}
        if any(part.shares for part in self.method.parts):
            facts_of_clients = [self.method.shared_facts(self.context(client)) for client in ids]
            shared = join_nests(facts_of_clients, torch.stack)
        client_update = ClientUpdate(
            update={},
            buffers={},
            messages={},
            size=size,
            steps=self._numbers(steps),
            weight=self._numbers(weights),
            loss=torch.zeros_like(size),
            shared=shared,
        )
        return Cohort(tuple(ids), client_update, members, folded=True)

    def _expected_numbers(self, samples: int, share: float) -> tuple[int, float]:
        """The steps of a client with this many samples and their accumulated weight, bit for bit as in its update."""
        if (samples, share) not in self._expected:
            steps = expected_steps(self.method, self.settings, samples, share)
            weight = self.settings.work.solver.weight(torch.tensor(steps, dtype=self._dtype))
            self._expected[samples, share] = steps, float(weight)
        return self._expected[samples, share]

    def whole(self, ids: Sequence[int], round: int) -> BatchSchedule:
        """All of the clients' samples once, in batches and random order; empty unless a part needs them."""
        if not self.method.needs_data:
            return BatchSchedule.nothing(len(ids))
        return BatchSchedule.drawn(
            self._once, self.source.train, ids, self.settings.seed, "whole", round
        )

    @cached_property
    def _once(self) -> Work:
        """The work of one pass over the samples."""
        return replace(self.settings.work, epochs=1, steps=None)

    def context(self, client: int) -> Context:
        """The client's static facts, computed once."""
        if not self.method.has_facts(self.settings.work):
            return {}
        if client not in self._facts:
            facts = self.method.client_facts(
                self._samples(self.source.train[client]), self.settings
            )
            pooled = {p.name: self._pooled(p) for p in self.method.conditioners if p.pooled}
            self._facts[client] = {**facts, **pooled}
        return self._facts[client]

    def _pooled(self, conditioner: Conditioner) -> Tree:
        """The facts of a conditioner that are the same for every client, computed once."""
        if conditioner.name not in self._common:
            rows_by_client = [self.source.train[k] for k in range(len(self.source))]
            rows = np.unique(np.concatenate(rows_by_client))
            self._common.update(conditioner.facts(self._samples(rows), self.settings))
        return self._common[conditioner.name]

    def _samples(self, rows: np.ndarray) -> Batch:
        index = torch.from_numpy(rows).to(self.source.y.device)
        return Batch(take_rows(self.source.x, index), self.source.y[index])


@dataclass(frozen=True)
class Executor:
    """Trains the clients of a round. It owns the client states; everything that it calls is pure.

    `stacked`: functions of one client are applied to several at once.
    """

    stacked: ClassVar[bool] = False
    client_pool: ClientPool

    @cached_property
    def settings(self) -> StageSettings:
        """The stage's settings in the form that is fastest for this executor."""
        return self.client_pool.settings

    @cached_property
    def graphs(self) -> StepGraphs:
        """The recorded steps of a round's training."""
        return StepGraphs.of(self.client_pool.method, self.settings, self.stacked)

    @cached_property
    def finetuning_graphs(self) -> StepGraphs:
        """The recorded steps of fine-tuning."""
        return StepGraphs.of(self.client_pool.finetuning.method, self.settings, self.stacked)

    def feed(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds, sink: UpdateSink
    ) -> None:
        """Train the clients `ids` and pass each update to the sink when it is there.

        `accepted` is the round of each client's last accepted update; its state of that round is the current one.
        """
        raise NotImplementedError

    def finetune(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> Iterator[tuple[int, Tree]]:
        """Fine-tune the clients and yield each with its parameters and buffers; nothing is sent, and states stay as they are."""
        raise NotImplementedError

    def run(
        self, broadcast: Broadcast, ids: Sequence[int], accepted: AcceptedRounds
    ) -> ClientUpdate:
        """Train the clients `ids` and return all updates, every tensor [K, ...] in the order of `ids`."""
        client_updates = UpdateBuffer(ids)
        self.feed(broadcast, ids, accepted, client_updates)
        assert client_updates.arrived == list(ids)
        return client_updates.stacked(ids)
