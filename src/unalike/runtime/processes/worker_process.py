"""A worker process of a run: it follows the plan as the leader carries it out, and does its share of the work.

Messages are dictionaries; "do" says what to do. Some announce what every process must know, the others are questions to some of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
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
from unalike.engine.multiprocess.worker_pool import Message, WorkerPool
from unalike.engine.threads import threads_for
from unalike.methods.plan import Answers, Stage, StageResults, next_step, steps_of
from unalike.metrics.scoring import Scores, SharedModel
from unalike.runtime.processes.process_backend import OWN, SHARED, part_of
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
        message = worker_pool.hear()
        if message["do"] == "end":
            return
        is_asked = worker_pool.rank in message["asked"]
        try:
            if failure or worker is None:
                answer: Message = {"error": failure}
            elif message["do"] in ANNOUNCEMENTS:
                ANNOUNCEMENTS[message["do"]](worker, message)
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
        self._steps = steps_of(run_config.plan, run_config.plan_inputs)
        self._step = next(self._steps, None)
        self._index = 0
        self._stages: dict[int, LocalStage] = {}
        """Also those that are over: a checkpoint holds their client states."""

    # announcements

    def begin_stage(self, message: Message) -> None:
        folder = None if message["folder"] is None else Path(message["folder"])
        assert isinstance(self._step, Stage)
        self._stages[self._index] = LocalStage(self.run_config, self._step, self._index, folder)

    def take_executor(self, message: Message) -> None:
        self._stages[self._index].build_executors(Choice(message["executor"], "as the leader says"))

    def end_step(self, message: Message) -> None:
        self._step = next_step(self._steps, _outcome(message))
        self._index += 1

    # questions

    def answer(self, message: Message) -> Message:
        """The answer to a question about a stage: the one that the message names, or the newest."""
        if not self._stages:
            raise UnalikeError("no stage has begun")
        stage = self._stages[message.get("stage", max(self._stages))]
        return QUESTIONS[message["do"]](self, stage, message)

    def score(self, stage: LocalStage, message: Message) -> Message:
        """The scores of a shared model on a part of the samples."""
        evaluator = stage.evaluator
        device = self.run_config.population.x.device
        params = {name: t.to(device) for name, t in message["params"].items()}
        buffers = {name: t.to(device) for name, t in message["buffers"].items()}
        predict = SharedModel(stage.state.settings.model, params, buffers)
        clients = message["clients"].tolist()
        scores = {}
        for name, split in message["splits"].items():
            rows = part_of(evaluator.splits[split].of(clients), self.rank, self.size)
            scores[name] = [evaluator.score(predict, split, rows)]
        return _scores_message(scores)

    def score_own(self, stage: LocalStage, message: Message) -> Message:
        """The scores of the own models of the clients whose states are here."""
        group = _group(stage, message)
        group.state = ServerState(**to_pool_device(message["state"], group.client_pool))
        group.accepted = accepted_rounds(message)
        broadcast = message["broadcast"] and _broadcast(message, group.client_pool)
        models = group.personal_models(self._mine(message), broadcast)
        return _scores_message(stage.evaluator.scores(message["splits"], one_by_one(models)))

    def feed(self, stage: LocalStage, message: Message) -> Message:
        """The updates of this process's clients, or their sums."""
        group = _group(stage, message)
        ids = self._mine(message)
        accepted = accepted_rounds(message)
        broadcast = _broadcast(message, group.executor.client_pool)
        if message["weights"] is None:
            buffer = UpdateBuffer(ids)
            group.executor.feed(broadcast, ids, accepted, buffer)
            return plain_updates(buffer)
        weights = restored_weights(message["weights"])
        total = StreamingSum(group.method, broadcast, weights, group.settings.buffers)
        group.executor.feed(broadcast, ids, accepted, total)
        return plain_sums(total.updates)

    def tune(self, stage: LocalStage, message: Message) -> Message:
        """The fine-tuned model of a client."""
        group = _group(stage, message)
        broadcast = _broadcast(message, group.executor.client_pool)
        [(_, tuned)] = group.executor.tune(broadcast, self._mine(message), accepted_rounds(message))
        return {"tuned": tuned}

    def client_state(self, stage: LocalStage, message: Message) -> Message:
        return {
            "client_state": _group(stage, message).client_states.get(
                message["client"], message["accepted"]
            )
        }

    def keep(self, stage: LocalStage, message: Message) -> Message:
        """Pin, save, prune or adopt client states."""
        KEEPING[message["what"]](_group(stage, message).client_states, accepted_rounds(message))
        return {}

    def _mine(self, message: Message) -> list[int]:
        """The clients of this process that a message is about."""
        return message["ids"][self.rank - 1]


ANNOUNCEMENTS: Mapping[str, Callable[[Worker, Message], None]] = {
    "stage": Worker.begin_stage,
    "executor": Worker.take_executor,
    "next": Worker.end_step,
}
"""Messages that every worker process takes in."""
QUESTIONS: Mapping[str, Callable[[Worker, LocalStage, Message], Message]] = {
    SHARED: Worker.score,
    OWN: Worker.score_own,
    "feed": Worker.feed,
    "tune": Worker.tune,
    "client_state": Worker.client_state,
    "keep": Worker.keep,
}
"""Messages that some worker processes are asked, about a stage."""


def _group(stage: LocalStage, message: Message) -> ModelGroup:
    return list(stage.state.groups.values())[message["group"]]


def _broadcast(message: Message, client_pool: ClientPool) -> Broadcast:
    return Broadcast(**to_pool_device(message["broadcast"], client_pool))


def _scores_message(scores: SplitScores) -> Message:
    return {"scores": {split: Scores.join(parts).tensors for split, parts in scores.items()}}


def _outcome(message: Message) -> StageResults | Answers:
    if "states" in message:
        states: dict[str, Any] = message["states"]
        return StageResults(
            {name: ServerState(**state) for name, state in states.items()}, message["rounds"]
        )
    clients, tree = message["answers"]
    return Answers(tuple(clients), tree)
