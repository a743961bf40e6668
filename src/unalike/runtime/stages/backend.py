"""The protocols between the round loop and the places where clients train: this process, several processes, a network."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from unalike.client_devices.simulated_clock import Turn
from unalike.core.types import Tree
from unalike.methods.plan import Answers, QueryStep, Stage, StageResults
from unalike.runtime.records.history import Row
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.stage_state import Facts, StageState
from unalike.training.server.updates import Updates

Clock = Callable[[], float]
"""The time of a run in seconds since some moment: the seconds of its rounds and evaluations are differences of it."""

machine_clock: Clock = time.perf_counter
"""The clock of this machine."""


@dataclass(frozen=True)
class RoundUpdates:
    """The updates of a round's cohort, and what it cost to get them.

    `groups` leaves out groups without a client in the cohort; `faults` say what went wrong with a client before it had an
    update to look at; `lost` why the update of a simulated device did not arrive; `local` are evaluations of the models
    after local training, where clients evaluate these themselves. `client_seconds` are the times from the request to the
    update, of simulated devices or by the clock, where the sampler learns from rounds. `turns` are the rows of the timeline of
    simulated devices or of sites. `complete` is called when the updates have been aggregated, and frees what held them.
    """

    groups: Mapping[str, Updates]
    seconds: float
    bytes_down: int
    bytes_up: int
    faults: Mapping[int, str] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    local: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    client_seconds: Mapping[int, float] = field(default_factory=dict)
    turns: Sequence[Turn] = ()
    complete: Callable[[], None] = lambda: None


NO_UPDATES = RoundUpdates(groups={}, seconds=0.0, bytes_down=0, bytes_up=0)
"""The updates of a round without clients, which nobody was asked for."""


class Replies(NamedTuple):
    """The result of an exchange with the clients.

    `metrics` of the current models and one row per client, None where they were not evaluated; `updates` of the clients that
    trained, None where none did; `evaluation_seconds` of the evaluation, NaN where clients evaluate and train in one go.
    """

    metrics: tuple[Row, list[Row]] | None = None
    updates: RoundUpdates | None = None
    evaluation_seconds: float = math.nan


class StageBackend(Protocol):
    """The clients of one stage."""

    state: StageState
    clock: Clock
    """The clock of the run, which budgets and stop rules follow through the history. The time since a checkpoint, or until a silent
    site is given up, is that of the machine, whatever the clock says."""
    trains_ahead: bool
    """Whether clients train a round in the exchange that evaluates the round before, as a network wants it: each exchange costs a
    round trip. A round is then in a checkpoint before it is evaluated, because the clients go on from it."""

    @property
    def executor(self) -> str:
        """The executor and the reason for its choice, once `start` was called."""

    def start(self) -> None:
        """Choose the executor. Called once, after the stage was restored from a checkpoint and before its first round."""

    def exchange(self, *, train: Sequence[int] = (), evaluate: bool = False) -> Replies:
        """Send the current models to the clients: first they `evaluate` them, then the clients `train` train them.

        Updates are checked. The models are those that the round `state.pending` ended with; before training it is None. Raises
        `Diverged` where no update of a group can be used.
        """

    def state_dict(self) -> tuple[Tree, list[Facts]]:
        """Tensors and facts from which `load_state_dict` restores the stage."""

    def load_state_dict(self, tensors: Tree, facts: list[Facts]) -> None:
        """Restore the state that `state_dict` returned."""


class Backend(Protocol):
    """Carries out the steps of a plan: on this machine, in several processes or over a network."""

    run_config: RunConfig
    """The run, with the samples and the model on the device that trains."""

    @property
    def notes(self) -> Sequence[str]:
        """Warnings to record with the run."""

    def stage(self, stage: Stage, index: int, folder: Path | None) -> StageBackend:
        """The clients of a stage, the `index`-th step of the plan; `folder` keeps the clients' states."""

    def query(self, step: QueryStep, index: int) -> Answers:
        """The clients' answers to a query between stages."""

    def end_step(self, outcome: Answers | StageResults) -> None:
        """Called after each step of the plan but the one that a run ends in."""
