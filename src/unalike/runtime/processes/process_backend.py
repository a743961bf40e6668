"""The leading process of a run in several processes: it commands the others, trains its own clients, and combines the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from unalike._utils.errors import UnalikeError
from unalike.client_devices.simulated_clock import Devices
from unalike.core.views import StageSettings
from unalike.data.population import Population
from unalike.engine.base import Executor, client_costs
from unalike.engine.multiprocess.distributed import Distributed, SharedClientStates
from unalike.engine.multiprocess.messages import (
    Announcement,
    BeginStage,
    EndQuery,
    EndStage,
    ScoreOwnModels,
    ScoreSamples,
    UseExecutor,
)
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.methods.plan import Answers, Stage, StageResults
from unalike.metrics.columns import TEST
from unalike.metrics.scoring import Predict, Scores, SharedModel
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.backend import Clock, machine_clock
from unalike.runtime.stages.evaluation import (
    ClientModels,
    Evaluator,
    MeasuredSplits,
    Rows,
    Splits,
    SplitScores,
    one_by_one,
    shown,
)
from unalike.runtime.stages.local_backend import LocalBackend, LocalStage
from unalike.runtime.stages.model_group import ModelGroup
from unalike.runtime.stages.stage_state import RoundResult
from unalike.training.client.client_states import ClientStateStore

MIN_SHARED_SAMPLES = 1000
"""Number of samples above which each process of a run scores a part of them."""


class ProcessBackend(LocalBackend):
    """Runs a plan in the processes of a worker pool; this one leads. The others follow the plan (`worker_process.Worker`)."""

    def __init__(
        self, run_config: RunConfig, worker_pool: WorkerPool, clock: Clock = machine_clock
    ):
        super().__init__(run_config, clock)
        self.worker_pool = worker_pool
        self._newest: ProcessStage | None = None

    def stage(self, stage: Stage, index: int, folder: Path | None) -> ProcessStage:
        folder = folder or self.worker_pool.folder
        self._newest = ProcessStage(
            self.run_config, stage, index, folder, self.clock, self.devices, self.worker_pool
        )
        begun = BeginStage(folder=None if folder is None else str(folder))
        self.worker_pool.send(begun.as_dict())
        return self._newest

    def end_step(self, outcome: Answers | StageResults) -> None:
        super().end_step(outcome)
        if isinstance(outcome, StageResults):
            states = {name: state._asdict() for name, state in outcome.items()}
            ended: Announcement = EndStage(states=states, rounds=outcome.rounds)
        else:
            ended = EndQuery(clients=list(outcome.clients), answers=outcome.tree)
        self.worker_pool.send(ended.as_dict())

    def collect_client_states(self) -> None:
        """Copy the states of all clients of the last stage to this process, before the worker processes exit."""
        for group in () if self._newest is None else self._newest.state.groups.values():
            if not group.client_states.empty:
                group.client_states.save(group.accepted)
                group.client_states.use_versions(group.accepted)


class ProcessStage(LocalStage):
    """Trains the clients of a stage in several processes (a `StageBackend`)."""

    def __init__(
        self,
        run_config: RunConfig,
        stage: Stage,
        index: int,
        folder: Path | None,
        clock: Clock,
        devices: Devices,
        worker_pool: WorkerPool,
    ):
        sampler = stage.method.sampler
        if sampler is not None and sampler.sets_work:
            raise UnalikeError(
                f"{sampler.name} says how many steps each client makes: found several processes, expected one: "
                "executor='batched' or 'loop'"
            )
        self.worker_pool = worker_pool
        super().__init__(run_config, stage, index, folder, clock, devices)

    def start(self) -> None:
        """Choose the executor in each process, and tell the others."""
        super().start()
        self.worker_pool.send(UseExecutor(executor=self.choice.executor).as_dict())

    @property
    def executor(self) -> str:
        """The number of processes, and the executor in each of them with the reason for its choice."""
        return f"distributed: {self.worker_pool.size} processes, in each of them {self.choice}"

    def own_models(self, clients: Sequence[int], splits: Splits) -> Iterator[SplitScores]:
        """Scores of the clients' own models, each scored in the process that keeps the client's state."""
        for group, ids, broadcast in self.by_group(clients):
            executor = group.executor
            assert isinstance(executor, Distributed)
            mine, others = executor.ask(
                ScoreOwnModels,
                broadcast,
                ids,
                group.accepted,
                splits=splits,
                state=group.state._asdict(),
            )
            models = group.personal_models(mine, broadcast, executor.inner)
            yield self.evaluator.scores(splits, one_by_one(models))
            for rank in others:
                yield received(self.worker_pool.answer(rank))

    def _evaluator(self) -> Evaluator:
        return ProcessEvaluator(self.run_config, self.worker_pool)

    def _client_states(
        self, folder: Path | None, stage: Stage, settings: StageSettings, source: Population
    ) -> ClientStateStore:
        return SharedClientStates(
            super()._client_states(folder, stage, settings, source),
            self.worker_pool,
            place={"stage": settings.stage, "group": settings.group},
            costs=client_costs(stage.method, settings.work, source.sizes),
        )

    def _executor(self, group: ModelGroup) -> Executor:
        return Distributed(
            group.client_pool, super()._executor(group), self.worker_pool, group.settings.group
        )

    def _clients_of_a_process(self, count: int) -> int:
        return -(-count // self.worker_pool.size)


class ProcessEvaluator(Evaluator):
    """Evaluates in all processes: each scores a part of the samples of a shared model, and its own clients' models."""

    def __init__(self, run_config: RunConfig, worker_pool: WorkerPool):
        super().__init__(run_config)
        self.worker_pool = worker_pool

    def measured(
        self, protocol: str, models: ClientModels, result: RoundResult | None
    ) -> MeasuredSplits:
        clients_shown = shown(models.state, result)
        if protocol != "personal" or not models.state.is_personal or not clients_shown:
            return super().measured(protocol, models, result)
        assert isinstance(models, ProcessStage)
        splits = self.splits_of(protocol)
        scores: SplitScores = {split: [] for split in splits}
        for part in models.own_models(clients_shown, splits):
            for split in splits:
                scores[split] += part[split]
        return self.measures(splits, scores, clients_shown)

    def scores_of(self, predict: Predict, split: str, clients: Sequence[int]) -> Scores:
        pool = self.worker_pool
        rows = self.splits[split].of(clients)
        if (
            len(clients) == 1
            # parts would divide the samples of a client
            or self.population.task.compares_samples
            or len(rows[0]) < MIN_SHARED_SAMPLES
            or not isinstance(predict, SharedModel)
        ):
            return self.score(predict, split, rows)
        # The others begin before this process does its own part, and are heard afterwards.
        others = range(1, pool.size)
        question = ScoreSamples(
            splits={TEST: split},
            clients=torch.tensor(clients),
            params=predict.params,
            buffers=predict.buffers,
        )
        pool.send(question.as_dict(), others)
        scores = [self.score(predict, split, part_of(rows, pool.rank, pool.size))]
        for rank in others:
            scores += received(pool.answer(rank))[TEST]
        return Scores.join(scores)


def received(message: Message) -> SplitScores:
    """The scores in a worker process's answer."""
    return {split: [Scores.of_tensors(tensors)] for split, tensors in message["scores"].items()}


def part_of(rows: Rows, rank: int, size: int) -> Rows:
    """The samples that the process `rank` of `size` scores."""
    indices, owner = rows
    at = slice(len(owner) * rank // size, len(owner) * (rank + 1) // size)
    return indices[at], owner[at]
