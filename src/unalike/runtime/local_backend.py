"""The backend on this machine: clients are simulated in this process, or in the processes of a worker pool."""

from __future__ import annotations

from unalike.engine.multiprocess.worker_pool import WorkerPool
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults
from unalike.runtime.backend import Row
from unalike.runtime.query_runner import ask_clients
from unalike.runtime.run_config import RunConfig
from unalike.runtime.run_recorder import RunRecorder
from unalike.runtime.stage_runner import StageRunner
from unalike.runtime.stage_state import RoundResult
from unalike.runtime.worker_loop import (
    announce_outcome,
    announce_stage,
    inner_executor,
    make_evaluator,
    make_stage_runner,
)


class LocalBackend:
    """Runs a plan here. With a worker pool, the other processes are told what they need to follow."""

    def __init__(self, run_config: RunConfig, worker_pool: WorkerPool | None = None):
        self.run_config, self.worker_pool, self.evaluator = run_config, worker_pool, make_evaluator(run_config)

    def stage(self, stage: Stage, index: int, recorder: RunRecorder) -> StageRunner:
        folder = None if self.worker_pool is None else self.worker_pool.folder
        if recorder.directory is not None:
            folder = recorder.directory.memory
        executor = inner_executor(self.run_config.options.executor)
        runner = make_stage_runner(self.run_config, stage, index, executor, folder, self.worker_pool)
        announce_stage(self.worker_pool, folder)
        return runner

    def evaluate(self, clients: StageRunner, result: RoundResult | None, *, train_next: bool) -> tuple[Row, list[Row]]:
        return self.evaluator(clients, result)

    def query(self, step: QueryStep, index: int) -> Answers:
        run_config = self.run_config
        return ask_clients(step, run_config.settings, run_config.population, run_config.options.chain)

    def end_step(self, outcome: Answers | StageResults) -> None:
        announce_outcome(self.worker_pool, outcome)
