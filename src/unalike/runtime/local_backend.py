"""The backend on this machine: clients are simulated in this process, or in the processes of a worker pool."""

from __future__ import annotations

from pathlib import Path

from unalike.engine.multiprocess.worker_pool import WorkerPool
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults
from unalike.runtime.backend import Row
from unalike.runtime.evaluation import Evaluator
from unalike.runtime.query_runner import ask_clients
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stage_runner import StageRunner
from unalike.runtime.stage_state import RoundResult


class LocalBackend:
    """Runs a plan here. With a worker pool, the other processes are told what they need to follow (`worker_loop`)."""

    notes = ()

    def __init__(self, run_config: RunConfig, worker_pool: WorkerPool | None = None):
        self.run_config, self.worker_pool, self.evaluator = run_config, worker_pool, Evaluator(run_config)

    def stage(self, stage: Stage, index: int, folder: Path | None) -> StageRunner:
        pool = self.worker_pool
        if pool is None:
            return StageRunner(self.run_config, stage, index, folder)
        folder = folder or pool.folder
        runner = StageRunner(self.run_config, stage, index, folder, pool)
        pool.tell({"do": "stage", "folder": None if folder is None else str(folder)})
        return runner

    def evaluate(self, clients: StageRunner, result: RoundResult | None, *, train_next: bool) -> tuple[Row, list[Row]]:
        return self.evaluator(clients, result)

    def query(self, step: QueryStep, index: int) -> Answers:
        run_config = self.run_config
        return ask_clients(step, run_config.settings, run_config.population, run_config.options.chain)

    def end_step(self, outcome: Answers | StageResults) -> None:
        if self.worker_pool is None:
            return
        if isinstance(outcome, StageResults):
            states = {name: state._asdict() for name, state in outcome.items()}
            self.worker_pool.tell({"do": "next", "states": states, "rounds": outcome.rounds})
        else:
            self.worker_pool.tell({"do": "next", "answers": [list(outcome.clients), outcome.tree]})
