"""A worker process of a run: it follows the plan as the leader carries it out, and does its share of the work.

The messages are those of `engine/multiprocess/messages.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike.client_devices.simulated_clock import simulated_devices
from unalike.core.types import Broadcast
from unalike.core.views import ServerState
from unalike.engine.auto import Choice
from unalike.engine.base import ClientPool
from unalike.engine.multiprocess.distributed import (
    KEEPING,
    accepted_rounds,
    plain_sums,
    plain_updates,
    restored_weights,
    to_pool_device,
)
from unalike.engine.multiprocess.messages import (
    Announcement,
    BeginStage,
    ClientsQuestion,
    EndQuery,
    EndRun,
    EndStage,
    Feed,
    Finetune,
    GetClientState,
    KeepClientStates,
    Question,
    ScoreOwnModels,
    ScoreSamples,
    UseExecutor,
    read_message,
)
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.engine.threads import threads_for
from unalike.methods.plan import Answers, Stage, StageResults, next_step, steps_of
from unalike.metrics.scoring import Scores, SharedModel
from unalike.runtime.processes.process_backend import part_of
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.evaluation import SplitScores, one_by_one
from unalike.runtime.stages.local_backend import LocalStage
from unalike.runtime.stages.model_group import ModelGroup
from unalike.training.server.kept_updates import UpdateBuffer
from unalike.training.server.summed_updates import StreamingSum


def serve(run_config: RunConfig, worker_pool: WorkerPool) -> None:
    """Follow the leader until the run ends."""

    def make_worker() -> Worker:
        return Worker(run_config.here(worker_pool.place), worker_pool)

    with threads_for(run_config.model, alone=False):
        serve_leader(worker_pool, make_worker)


def serve_leader(worker_pool: WorkerPool, make: Callable[[], Worker]) -> None:
    """The event loop.

    Whatever fails, the process stays until the run ends, and the error is the answer to the next question: a process that exits
    while others connect makes them fail with an error of the transport.
    """
    worker = None
    failure = ""
    try:
        worker = make()
    except Exception as error:
        failure = _explained(error)
    while True:
        # Every process hears every message, also a question to others.
        received = worker_pool.receive()
        if received["do"] == EndRun.word:
            return
        is_asked = worker_pool.rank in received["asked"]
        try:
            if failure or worker is None:
                answer: Message = {"error": failure}
            else:
                message = read_message(received)
                if isinstance(message, Announcement):
                    worker.take_in(message)
                elif is_asked:
                    answer = worker.answer(message)
        except Exception as error:
            failure = _explained(error)
            answer = {"error": failure}
        if is_asked:
            worker_pool.reply(answer)


def _explained(error: Exception) -> str:
    return str(error) if isinstance(error, UnalikeError) else f"{type(error).__name__}: {error}"


class Worker:
    """The place of a worker process in the run's plan."""

    def __init__(self, run_config: RunConfig, worker_pool: WorkerPool):
        self.run_config = run_config
        self.rank = worker_pool.rank
        self.size = worker_pool.size
        self._devices = simulated_devices(
            run_config.options.device_model, len(run_config.population), run_config.options.seed
        )
        """Says which share of its steps a client makes; the leader keeps the time."""
        self._steps = steps_of(run_config.plan, run_config.plan_inputs)
        self._step = next(self._steps, None)
        self._index = 0
        self._stages: dict[int, LocalStage] = {}
        """Also those that are over: a checkpoint holds their client states."""

    # announcements

    def take_in(self, announcement: Announcement) -> None:
        """Follow the leader in the plan."""
        if isinstance(announcement, BeginStage):
            self._begin_stage(None if announcement.folder is None else Path(announcement.folder))
        elif isinstance(announcement, UseExecutor):
            choice = Choice(announcement.executor, "as the leader says")
            self._stages[self._index].build_executors(choice)
        elif isinstance(announcement, EndStage):
            states = {name: ServerState(**state) for name, state in announcement.states.items()}
            self._end_step(StageResults(states, announcement.rounds))
        elif isinstance(announcement, EndQuery):
            self._end_step(Answers(tuple(announcement.clients), announcement.answers))

    def _begin_stage(self, folder: Path | None) -> None:
        assert isinstance(self._step, Stage)
        self._stages[self._index] = LocalStage(
            self.run_config, self._step, self._index, folder, devices=self._devices
        )

    def _end_step(self, outcome: StageResults | Answers) -> None:
        self._step = next_step(self._steps, outcome)
        self._index += 1

    # questions

    def answer(self, question: Question) -> Message:
        """The answer to a question about a stage: the one that it names, or the newest."""
        if not self._stages:
            raise UnalikeError("no stage has begun")
        number = max(self._stages) if question.stage is None else question.stage
        return ANSWERS[type(question)](self, self._stages[number], question)

    def score(self, stage: LocalStage, question: ScoreSamples) -> Message:
        """The scores of a shared model on a part of the samples."""
        evaluator = stage.evaluator
        device = self.run_config.population.y.device
        params = {name: t.to(device) for name, t in question.params.items()}
        buffers = {name: t.to(device) for name, t in question.buffers.items()}
        clients = question.clients.tolist()
        # all of them are tested with one model, and so have one network
        predict = SharedModel(stage.state.network(clients[0]), params, buffers)
        scores = {}
        for name, split in question.splits.items():
            rows = part_of(evaluator.splits[split].of(clients), self.rank, self.size)
            scores[name] = [evaluator.score(predict, split, rows)]
        return _scores_message(scores)

    def score_own_models(self, stage: LocalStage, question: ScoreOwnModels) -> Message:
        """The scores of the own models of the clients whose states are here."""
        group = _group(stage, question.group)
        group.state = ServerState(**to_pool_device(question.state, group.client_pool))
        group.accepted = accepted_rounds(question.accepted)
        broadcast = None
        if question.broadcast is not None:
            broadcast = _broadcast(question, group.client_pool)
        models = group.personal_models(self._mine(question), broadcast)
        return _scores_message(stage.evaluator.scores(question.splits, one_by_one(models)))

    def feed(self, stage: LocalStage, question: Feed) -> Message:
        """The updates of this process's clients, or their sums."""
        group = _group(stage, question.group)
        ids = self._mine(question)
        accepted = accepted_rounds(question.accepted)
        broadcast = _broadcast(question, group.executor.client_pool)
        if question.weights is None:
            buffer = UpdateBuffer(ids)
            group.executor.feed(broadcast, ids, accepted, buffer)
            return plain_updates(buffer)
        weights = restored_weights(question.weights)
        total = StreamingSum(group.method, broadcast, weights, group.settings.buffers)
        group.executor.feed(broadcast, ids, accepted, total)
        return plain_sums(total.updates)

    def finetune(self, stage: LocalStage, question: Finetune) -> Message:
        """The fine-tuned model of a client."""
        group = _group(stage, question.group)
        broadcast = _broadcast(question, group.executor.client_pool)
        accepted = accepted_rounds(question.accepted)
        [(_, model)] = group.executor.finetune(broadcast, self._mine(question), accepted)
        return {"model": model}

    def client_state(self, stage: LocalStage, question: GetClientState) -> Message:
        states = _group(stage, question.group).client_states
        return {"client_state": states.get(question.client, question.accepted)}

    def keep(self, stage: LocalStage, question: KeepClientStates) -> Message:
        """Pin, save, prune or adopt client states."""
        states = _group(stage, question.group).client_states
        KEEPING[question.action](states, accepted_rounds(question.accepted))
        return {}

    def _mine(self, question: ClientsQuestion) -> Sequence[int]:
        """The clients of this process that a question is about."""
        return question.ids[self.rank - 1]


ANSWERS: Mapping[type[Question], Callable[[Worker, LocalStage, Any], Message]] = {
    ScoreSamples: Worker.score,
    ScoreOwnModels: Worker.score_own_models,
    Feed: Worker.feed,
    Finetune: Worker.finetune,
    GetClientState: Worker.client_state,
    KeepClientStates: Worker.keep,
}
"""Kind of question -> the method that answers it."""


def _group(stage: LocalStage, number: int) -> ModelGroup:
    return list(stage.state.groups.values())[number]


def _broadcast(question: ClientsQuestion, client_pool: ClientPool) -> Broadcast:
    assert question.broadcast is not None
    return Broadcast(**to_pool_device(question.broadcast, client_pool))


def _scores_message(scores: SplitScores) -> Message:
    return {"scores": {split: Scores.join(parts).tensors for split, parts in scores.items()}}
