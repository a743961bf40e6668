"""The protocols between the round loop and the places where clients train, and the backend for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from unalike.core.types import Tree
from unalike.engine.multiprocess.worker_pool import WorkerPool
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults
from unalike.runtime.evaluation import Evaluator
from unalike.runtime.model_group import GroupUpdates
from unalike.runtime.query_runner import ask_clients
from unalike.runtime.run_config import RunConfig
from unalike.runtime.stage_runner import StageRunner
from unalike.runtime.stage_state import Facts, RoundResult, StageState

Row = dict[str, Any]


S = TypeVar("S", bound="StageBackend")


class StageBackend(Protocol):
    """The clients of one stage. The round loop calls `begin_round`, `train` once a group, and `end_round`."""

    state: StageState

    @property
    def holds_results(self) -> bool:
        """Whether a round must be in a checkpoint before it is evaluated, because evaluation shows it to other machines."""

    @property
    def why(self) -> str:
        """The executor and the reason for the choice."""

    def start(self) -> None:
        """Called once, after the stage was restored from a checkpoint and before its first round."""

    def begin_round(self, cohort: list[int], result: RoundResult) -> dict[str, list[int]]:
        """Group -> the clients that `train` returns updates of: the cohort, or the part of it that answered in time."""

    def train(self, name: str, ids: Sequence[int], result: RoundResult) -> GroupUpdates:
        """Broadcast the group's model to the clients `ids`, train it there, check their updates. Raises `Diverged`."""

    def end_round(self, result: RoundResult) -> None:
        """Complete what is known of the round: faults and traffic."""

    def personal(self, client: int) -> Tree:
        """The model that a client evaluates with, in state-dict order. Raises `UnalikeError` where it is on another machine."""

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        """Tensors and facts from which `load_state_dict` restores the stage."""

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Go back to where `state_dict` was called."""

    def collect_client_states(self) -> None:
        """Called once, at the end of the run: bring the clients' states to this process, where other processes have them."""


class Backend(Protocol[S]):
    """Runs the steps of a plan: on this machine (`LocalBackend`), or at the sites of a federation."""

    @property
    def notes(self) -> Sequence[str]:
        """Warnings to record with the run."""

    def stage(self, stage: Stage, index: int, folder: Path | None) -> S:
        """The clients of a stage, the `index`-th step of the plan; `folder` keeps the clients' states."""

    def evaluate(self, clients: S, result: RoundResult | None, *, train_next: bool) -> tuple[Row, list[Row]]:
        """The metrics after a round (None: before training), and one row per client.

        With `train_next` a backend may ask clients to train the next round in the same message; `begin_round` then finds it done.
        """

    def query(self, step: QueryStep, index: int) -> Answers:
        """The clients' answers to a query between stages."""

    def end_step(self, outcome: Answers | StageResults) -> None:
        """Called after each step of the plan but the one that a run ends in."""


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
