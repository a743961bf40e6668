"""A run of several processes: who is in it, and what those that do not lead do all day."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from unalike._utils import spec
from unalike._utils.errors import UnalikeError
from unalike._utils.spec import Call
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
from unalike.runtime.worker_handlers import attend, states_in
from unalike.training.client_states import ClientStates
from unalike.training.client_update import initial_client_state


@contextmanager
def worker_pool_for(run_config: RunConfig) -> Iterator[WorkerPool | None]:
    """The processes that work for a run, None where it has but one; let go when the run ends."""
    worker_pool = join_pool(run_config.device, _nccl(run_config)) or _started(run_config)
    if worker_pool is None:
        yield None
        return
    try:
        yield worker_pool
    finally:
        worker_pool.close()


def follow_leader(run_configs: Sequence[RunConfig]) -> None:
    """Before jobs are carried out: a process that `torchrun` started and that does not lead does its share of each, and leaves.

    It does not come back, so these are all the runs of a process. Raises `UnalikeError` when there are more.
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
    """Raise `UnalikeError` where what clients remember would be lost with the machines that remember it."""
    if out is not None or not launched_by_torchrun() or all_on_this_machine():
        return
    for stage in run_config.outline:
        if isinstance(stage, Stage) and initial_client_state(
            stage.method, replace(run_config.settings, model=stage.model or run_config.model)
        ):
            raise UnalikeError(
                f"clients of {stage.method!r} remember something, and no folder is known that all machines see; give one by out="
            )


def inner_executor(executor: str) -> str:
    """The executor inside each process."""
    call = spec.parse_one(executor)
    return str(call.parameters.get("inner", "auto")) if call.name == "distributed" else executor


def make_stage_runner(
    run_config: RunConfig, stage: Stage, index: int, executor: str, folder: Path | None, worker_pool: WorkerPool | None
) -> StageRunner:
    """A stage of the job's plan; `folder` is that of the clients' memories."""
    return StageRunner(
        stage,
        replace(run_config.settings, stage=index),
        run_config.population,
        executor=executor,
        participation=run_config.options.participation,
        folder=None if folder is None else folder / f"stage-{index}",
        transform=run_config.options.chain,
        single="local" in run_config.options.protocols,
        worker_pool=worker_pool,
    )


def make_evaluator(run_config: RunConfig) -> Evaluator:
    """What evaluates the job."""
    chain = run_config.options.chain
    return Evaluator(
        run_config.population, run_config.options.protocols, run_config.test, chain and chain.fixed, run_config.metrics
    )


def announce_stage(worker_pool: WorkerPool | None, folder: Path | None) -> None:
    """Tell the team that a stage begins, and where clients' memories are kept."""
    if worker_pool is not None:
        worker_pool.tell({"do": "stage", "folder": None if folder is None else str(folder)})


def announce_executor(runner: StageRunner) -> None:
    """Tell the simulation's team which executor trains the stage's clients in each process."""
    if runner.worker_pool is not None and not runner.over:
        runner.worker_pool.tell({"do": "executor", "executor": runner.choice.executor})


def announce_outcome(worker_pool: WorkerPool | None, outcome: StageResults | Answers) -> None:
    """Tell the team what a step of the plan came to, so that it knows the next one."""
    if worker_pool is None:
        return
    if isinstance(outcome, StageResults):
        states = {name: state._asdict() for name, state in outcome.items()}
        worker_pool.tell({"do": "next", "states": states, "rounds": outcome.rounds})
    else:
        worker_pool.tell({"do": "next", "answers": [list(outcome.clients), outcome.tree]})


def serve(run_config: RunConfig, worker_pool: WorkerPool) -> None:
    """Follow the plan as the leader carries it out, and do this process's share of it."""
    with threads_for(run_config.model, alone=False):
        _follow(run_config.here(worker_pool.place), worker_pool)


def _follow(run_config: RunConfig, worker_pool: WorkerPool) -> None:
    steps = steps_of(run_config.plan, run_config.plan_inputs)
    step, index, runner, evaluator = next(steps, None), 0, None, make_evaluator(run_config)
    stages = dict[int, StageRunner]()  # a checkpoint has the memories of those that are over, too
    failed = ""  # what went wrong where nobody waits for an answer is told to the next who does
    while (message := worker_pool.hear())["do"] != "end":
        try:
            if message["do"] == "stage":
                folder = None if message["folder"] is None else Path(message["folder"])
                assert isinstance(step, Stage)
                runner = stages[index] = make_stage_runner(run_config, step, index, "loop", folder, worker_pool)
            elif message["do"] == "next":
                step, index = next_step(steps, _outcome(message)), index + 1
            elif message["do"] == "executor":
                assert runner is not None
                runner.choice = Choice(message["executor"], "as the leader says")
            else:
                if runner is None or failed:
                    raise UnalikeError(failed or "no stage has begun")
                if worker_pool.rank in message["asked"]:
                    answer = evaluator.answer if message["do"] in SCORING else attend
                    worker_pool.reply(
                        answer(worker_pool, stages[message["stage"]] if "stage" in message else runner, message)
                    )
        except Exception as error:  # whatever it is, the leader must not wait for an answer that never comes
            failed = str(error) if isinstance(error, UnalikeError) else f"{type(error).__name__}: {error}"
            if worker_pool.rank in message["asked"]:
                worker_pool.reply({"error": failed})


def _outcome(message: Message) -> StageResults | Answers:
    if "states" in message:
        return StageResults(states_in(message["states"]), message["rounds"])
    clients, tree = message["answers"]
    return Answers(tuple(clients), tree)


def _started(run_config: RunConfig) -> WorkerPool | None:
    call = _distributed(run_config)
    if call is None:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = call.parameters.get("workers", cores)
    if workers == 1 or (call.name == "auto" and not _worth_a_team(run_config)):
        return None
    return start_pool(workers, partial(serve, run_config), run_config.device, _nccl(run_config))


def _nccl(run_config: RunConfig) -> bool:
    """Whether tensors shall travel directly between the processes' accelerators."""
    call = _distributed(run_config)
    return call is not None and call.parameters.get("nccl", False)


def _distributed(run_config: RunConfig) -> Call | None:
    """The executor of the job, if it is of several processes or may be. Raises `UnalikeError` for what it does not know."""
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


def _worth_a_team(run_config: RunConfig) -> bool:
    """Whether "auto" starts processes: on Linux, for a run on the CPU that would take one of them long.

    Compiled loops train on all cores from within one process, which spares it the talking.
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
"""Seconds of training in one process from which on a run is worth several."""
