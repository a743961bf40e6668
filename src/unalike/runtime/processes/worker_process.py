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
    as_plain,
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
from unalike.training.server.aggregation import StreamingSum, SumWeights, UpdateBuffer


def serve(run_config: RunConfig, worker_pool: WorkerPool) -> None:
    """Follow the leader until the run ends."""
    with threads_for(run_config.model, alone=False):
        follow(worker_pool, lambda: Worker(run_config.here(worker_pool.place), worker_pool))


def follow(worker_pool: WorkerPool, make: Callable[[], Worker]) -> None:
    """The event loop.

    Whatever fails, the process stays until the run ends, and the error is the answer to the next question: a process that exits
    while others connect makes them fail with an error of the transport.
    """
    worker, failure = None, ""
    try:
        worker = make()
    except Exception as error:
        failure = _explained(error)
    while (message := worker_pool.receive())["do"] != "end":
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
        self.run_config, self.rank, self.size = run_config, worker_pool.rank, worker_pool.size
        self._steps = steps_of(run_config.plan, run_config.plan_inputs)
        self._step, self._index = next(self._steps, None), 0
        self._stages: dict[
            int, LocalStage
        ] = {}  # also those that are over: a checkpoint holds their client states

    # announcements

    def begin_stage(self, message: Message) -> None:
        folder = None if message["folder"] is None else Path(message["folder"])
        assert isinstance(self._step, Stage)
        self._stages[self._index] = LocalStage(self.run_config, self._step, self._index, folder)

    def take_executor(self, message: Message) -> None:
        self._stages[self._index].build_executors(Choice(message["executor"], "as the leader says"))

    def end_step(self, message: Message) -> None:
        self._step, self._index = next_step(self._steps, _outcome(message)), self._index + 1

    # questions

    def answer(self, message: Message) -> Message:
        """The answer to a question about a stage: the one that the message names, or the newest."""
        if not self._stages:
            raise UnalikeError("no stage has begun")
        stage = self._stages[message.get("stage", max(self._stages))]
        return QUESTIONS[message["do"]](self, stage, message)

    def score(self, stage: LocalStage, message: Message) -> Message:
        """The scores of a shared model on a part of the samples."""
        evaluator, x = stage.evaluator, self.run_config.population.x
        params, buffers = (
            {n: t.to(x.device) for n, t in message[v].items()} for v in ("params", "buffers")
        )
        predict, clients = (
            SharedModel(stage.state.settings.model, params, buffers),
            message["clients"].tolist(),
        )
        rows = {
            i: part_of(evaluator.splits[s].of(clients), self.rank, self.size)
            for i, s in message["splits"].items()
        }
        return _sent(
            {i: [evaluator.score(predict, s, rows[i])] for i, s in message["splits"].items()}
        )

    def score_own(self, stage: LocalStage, message: Message) -> Message:
        """The scores of the own models of the clients whose states are here."""
        group = _group(stage, message)
        group.state = ServerState(**to_pool_device(message["state"], group.client_pool))
        group.accepted = accepted_rounds(message)
        broadcast = message["broadcast"] and _broadcast(message, group.client_pool)
        models = group.personal_models(self._mine(message), broadcast)
        return _sent(stage.evaluator.scores(message["splits"], one_by_one(models)))

    def feed(self, stage: LocalStage, message: Message) -> Message:
        """The updates of this process's clients, or their sums."""
        group, ids, accepted = _group(stage, message), self._mine(message), accepted_rounds(message)
        broadcast = _broadcast(message, group.executor.client_pool)
        if message["shares"] is None:
            stack = UpdateBuffer(ids)
            group.executor.feed(broadcast, ids, accepted, stack)
            return {"taken": as_plain(stack.taken)}
        clients, *factors = message["shares"]
        shares = SumWeights(tuple(clients), *factors)
        total = StreamingSum(group.method, broadcast, shares, group.settings.buffers)
        group.executor.feed(broadcast, ids, accepted, total)
        sums = total.sums
        return {"sums": vars(sums) | {"taken": as_plain(sums.taken)}}

    def finetune(self, stage: LocalStage, message: Message) -> Message:
        """The fine-tuned model of a client."""
        group = _group(stage, message)
        broadcast = _broadcast(message, group.executor.client_pool)
        [(_, model)] = group.executor.finetune(
            broadcast, self._mine(message), accepted_rounds(message)
        )
        return {"model": model}

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
    "finetune": Worker.finetune,
    "client_state": Worker.client_state,
    "keep": Worker.keep,
}
"""Messages that some worker processes are asked, about a stage."""


def _group(stage: LocalStage, message: Message) -> ModelGroup:
    return list(stage.state.groups.values())[message["group"]]


def _broadcast(message: Message, client_pool: ClientPool) -> Broadcast:
    return Broadcast(**to_pool_device(message["broadcast"], client_pool))


def _sent(scores: SplitScores) -> Message:
    return {"scores": {split: Scores.join(parts).tensors for split, parts in scores.items()}}


def _outcome(message: Message) -> StageResults | Answers:
    if "states" in message:
        states: dict[str, Any] = message["states"]
        return StageResults(
            {name: ServerState(**state) for name, state in states.items()}, message["rounds"]
        )
    clients, tree = message["answers"]
    return Answers(tuple(clients), tree)
