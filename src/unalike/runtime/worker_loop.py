"""Runs of several processes: the worker pool of a run, and the event loop of its worker processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike._utils.spec import Call
from unalike._utils.system.machine import cores
from unalike.engine.auto import Choice, work_seconds
from unalike.engine.base import ClientPool
from unalike.engine.batched import Batched
from unalike.engine.multiprocess.worker_pool import (
    Message,
    WorkerPool,
    all_on_this_machine,
    join_pool,
    launched_by_torchrun,
    pool_was_used,
    start_pool,
)
from unalike.engine.threads import threads_for
from unalike.methods.plan import Answers, Stage, StageResults, next_step, steps_of
from unalike.runtime.evaluation import SCORING, Evaluator
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stage_runner import StageRunner
from unalike.runtime.worker_handlers import GROUP_HANDLERS, group_of, states_in
from unalike.training.client_states import ClientStates
from unalike.training.client_update import initial_client_state


@contextmanager
def worker_pool_for(run_config: RunConfig) -> Iterator[WorkerPool | None]:
    """The processes of a run, None where it has one; they leave when the run ends."""
    worker_pool = join_pool(run_config.device, _nccl(run_config)) or _started(run_config)
    if worker_pool is None:
        yield None
        return
    try:
        yield worker_pool
    finally:
        worker_pool.close()


def follow_leader(run_configs: Sequence[RunConfig]) -> None:
    """Before runs are carried out: a worker process of `torchrun` does its share of each of them, and exits.

    It does not return, so these are all the runs of the process. Raises `UnalikeError` when there are more.
    """
    if not launched_by_torchrun():
        return
    if pool_was_used():
        raise UnalikeError(
            "one torchrun makes one run or one comparison, and this would be another: its other processes have left; "
            "start torchrun once for each, or put what belongs together into one ua.compare([...])"
        )
    if os.environ["RANK"] == "0":
        return
    for run_config in run_configs:
        worker_pool = join_pool(run_config.device, _nccl(run_config))
        assert worker_pool is not None
        try:
            serve(run_config, worker_pool)
        except RuntimeError as error:
            raise UnalikeError(f"the process that leads is gone: {str(error).splitlines()[0][:160]}") from None
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an ordinary exit can abort: the threads of gloo may still wait for the leader


def require_folder(run_config: RunConfig, out: str | Path | None) -> None:
    """Raise `UnalikeError` where clients' states would be lost with the machines that keep them."""
    if out is not None or not launched_by_torchrun() or all_on_this_machine():
        return
    for stage in run_config.outline:
        if isinstance(stage, Stage) and initial_client_state(
            stage.method, replace(run_config.settings, model=stage.model or run_config.model)
        ):
            raise UnalikeError(
                f"clients of {stage.method!r} keep a state, and no folder is known that all machines see; give one by out="
            )


def serve(run_config: RunConfig, worker_pool: WorkerPool) -> None:
    """A worker process: follow the plan as the leading process carries it out, and do this process's share of it."""
    with threads_for(run_config.model, alone=False):
        _follow(worker_pool, lambda: Worker(run_config.here(worker_pool.place), worker_pool))


class Worker:
    """The place of a worker process in the run's plan."""

    def __init__(self, run_config: RunConfig, worker_pool: WorkerPool):
        self.run_config, self.worker_pool, self.evaluator = run_config, worker_pool, Evaluator(run_config)
        self._steps = steps_of(run_config.plan, run_config.plan_inputs)
        self._step, self._index = next(self._steps, None), 0
        self._stages: dict[int, StageRunner] = {}  # also those that are over: a checkpoint holds their client states

    def begin_stage(self, message: Message) -> None:
        folder = None if message["folder"] is None else Path(message["folder"])
        assert isinstance(self._step, Stage)
        self._stages[self._index] = StageRunner(self.run_config, self._step, self._index, folder, self.worker_pool)

    def take_executor(self, message: Message) -> None:
        self._stages[self._index].choice = Choice(message["executor"], "as the leader says")

    def end_step(self, message: Message) -> None:
        self._step, self._index = next_step(self._steps, _outcome(message)), self._index + 1

    def answer(self, message: Message) -> Message:
        """The answer to a question about a stage: the one that the message names, or the newest."""
        if not self._stages:
            raise UnalikeError("no stage has begun")
        runner = self._stages[message.get("stage", max(self._stages))]
        if message["do"] in SCORING:
            return self.evaluator.answer(self.worker_pool, runner, message)
        return GROUP_HANDLERS[message["do"]](self.worker_pool, group_of(runner, message), message)


ANNOUNCEMENTS: dict[str, Callable[[Worker, Message], None]] = {
    "stage": Worker.begin_stage,
    "executor": Worker.take_executor,
    "next": Worker.end_step,
}
"""Messages that every worker process takes in; all others are questions to some of them."""


def _follow(worker_pool: WorkerPool, make: Callable[[], Worker]) -> None:
    """The worker process's event loop.

    Whatever fails, the process stays until the run ends, and the error is the answer to the next question: a process that exits
    while others connect makes them fail with an error of the transport.
    """
    worker, failed = None, ""
    try:
        worker = make()
    except Exception as error:
        failed = _explained(error)
    while (message := worker_pool.hear())["do"] != "end":
        is_asked = worker_pool.rank in message["asked"]
        try:
            if failed or worker is None:
                answer: Message = {"error": failed}
            elif message["do"] in ANNOUNCEMENTS:
                ANNOUNCEMENTS[message["do"]](worker, message)
            elif is_asked:
                answer = worker.answer(message)
        except Exception as error:
            failed = _explained(error)
            answer = {"error": failed}
        if is_asked:
            worker_pool.reply(answer)


def _explained(error: Exception) -> str:
    return str(error) if isinstance(error, UnalikeError) else f"{type(error).__name__}: {error}"


def _outcome(message: Message) -> StageResults | Answers:
    if "states" in message:
        return StageResults(states_in(message["states"]), message["rounds"])
    clients, tree = message["answers"]
    return Answers(tuple(clients), tree)


def _started(run_config: RunConfig) -> WorkerPool | None:
    call = _distributed(run_config)
    if call is None:
        return None
    workers = call.parameters.get("workers", cores())
    if workers == 1 or (call.name == "auto" and not _is_worth_a_pool(run_config)):
        return None
    return start_pool(workers, partial(serve, run_config), run_config.device, _nccl(run_config))


def _nccl(run_config: RunConfig) -> bool:
    """Whether tensors shall travel directly between the processes' accelerators."""
    call = _distributed(run_config)
    return call is not None and call.parameters.get("nccl", False)


def _distributed(run_config: RunConfig) -> Call | None:
    """The run's executor, if it has or may have several processes. Raises `UnalikeError` for unknown parameters."""
    call = spec.parse_one(run_config.options.executor)
    if call.name not in ("distributed", "auto"):
        return None
    strange = set(call.parameters) - {"workers", "inner", "nccl"}
    workers, nccl = call.parameters.get("workers", 1), call.parameters.get("nccl", False)
    if strange or type(workers) is not int or workers < 1 or type(nccl) is not bool:
        raise UnalikeError(
            f"executor {call}: expected 'distributed(workers=2)', or with inner='loop' or 'batched' in each of them, or with "
            "nccl=True between GPUs"
        )
    return call


def _is_worth_a_pool(run_config: RunConfig) -> bool:
    """Whether "auto" starts processes: on Linux, for a run on the CPU that would take one process long.

    Compiled loops train on all cores from within one process, without messages.
    """
    stage = next(steps_of(run_config.plan, run_config.plan_inputs))
    alone = sys.platform != "linux" or run_config.device.type != "cpu" or multiprocessing.current_process().daemon
    if alone or not isinstance(stage, Stage) or stage.pooled or not stage.trained:
        return False
    settings = replace(
        run_config.settings, model=stage.model or run_config.model, work=stage.method.local_work(run_config.work)
    )
    count = max(1, round(run_config.options.participation * np.count_nonzero(run_config.population.sizes)))
    client_pool = ClientPool(stage.method, settings, run_config.population, ClientStates({}))
    with threads_for(run_config.model):  # as it would train: more of them may wait for each other
        return (
            count > 1
            and not Batched(client_pool).uses_compiled_loops
            and work_seconds(client_pool, count, run_config.options.rounds) > PATIENCE
        )


PATIENCE = 20.0
"""Seconds of training in one process above which a run gets several."""
