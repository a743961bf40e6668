"""Run one trial: choose its values, train on the training samples, score the validation samples."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.system.machine import cores
from unalike.comparison.comparison import labelled, last_rounds
from unalike.data.population import Population
from unalike.runtime.processes.launch import IN_ONE_PROCESS
from unalike.runtime.records.history import History
from unalike.runtime.records.run_directory import digest
from unalike.runtime.round_loop import execute
from unalike.runtime.setup.run_config import RunConfig, configure_run
from unalike.runtime.stages.model_group import Diverged
from unalike.tuning.sampler import Pruner, next_values
from unalike.tuning.trial import DIVERGED, FINISHED, PRUNED, End, Trial
from unalike.tuning.tunable import Tunable, Values
from unalike.tuning.tuning_score import TuningScore


@dataclass
class _Watch:
    """Follows a run: keeps its scores, and ends it when it is hopeless."""

    objective: TuningScore
    rounds: int
    pruner: Pruner | None
    scores: list[tuple[int, float]] = field(default_factory=list)
    rounds_done: int = 0
    pruned: bool = False

    def __call__(self, history: History) -> bool:
        self.rounds_done = int(history.last["round"])
        score = self.objective.of_round(history)
        if not math.isfinite(score):
            return False
        self.scores.append((self.rounds_done, score))
        if self.pruner is not None and self.rounds_done < self.rounds:
            self.pruned = self.pruner.hopeless(self.rounds_done, score)
        return self.pruned


@dataclass(frozen=True)
class TrialRunner:
    """The common inputs of all trials of a tuning.

    The clients have their validation samples in the place of test samples, so that no trial can see a test sample. `seed` is
    that of all trials: the same initial weights, cohorts and batches. `training` are the other arguments of `configure_run`.
    """

    methods: Mapping[str, Tunable]
    clients: Population
    objective: TuningScore
    seed: int
    training: Mapping[str, Any]
    prune: bool = True

    @cached_property
    def sign(self) -> int:
        """+1 if a higher score is better, -1 if a lower one is."""
        return self.run_config(next(iter(self.methods.values()))).columns.metric.sign

    def run_config(self, tunable: Tunable) -> RunConfig:
        """The run of a trial. Raises `UnalikeError` if it cannot be trained."""
        return configure_run(
            tunable.plan, self.clients, work=tunable.work, seed=self.seed, **self.training
        )

    def key(self, label: str) -> str:
        """The hash of everything that decides the trials of a method, besides their number."""
        start = self.methods[label]
        spaces = {name: repr(space) for name, space in start.spaces.items()}
        return digest(
            {
                "run": self.run_config(start).key,
                "spaces": spaces,
                "objective": self.objective.text,
                "prune": self.prune,
            }
        )

    def values(self, label: str, number: int, ended: Sequence[Trial]) -> Values:
        """The values of a trial: those that the method was given with for trial 0, else those that the sampler chooses."""
        start = self.methods[label]
        if number == 0:
            return start.values
        return next_values(start.spaces, ended, number, self.sign, self.seed)

    def run(self, label: str, number: int, ended: Sequence[Trial]) -> Trial:
        """Run a trial of a method.

        Args:
            label: the method.
            number: the number of the trial.
            ended: the trials of the method that have ended.
        """
        started = time.perf_counter()
        values = self.values(label, number, ended)
        run_config = self.run_config(self.methods[label].with_values(values))
        rounds = run_config.options.rounds
        # Trial 0 is never stopped early: it says what the given values are worth.
        pruner = Pruner(ended, self.sign, rounds) if self.prune and number else None
        watch = _Watch(self.objective, rounds, pruner)

        score: float | None = None
        with suppress(Diverged):
            history = execute(run_config, stop=watch).history
            if watch.pruned:
                score = watch.scores[-1][1]
            else:
                score = self._score(run_config, history, label)
        end: End = FINISHED
        if watch.pruned:
            end = PRUNED
        elif score is None:
            end = DIVERGED
        return Trial(
            number=number,
            values=values,
            scores=watch.scores,
            score=score,
            end=end,
            rounds=watch.rounds_done,
            seconds=time.perf_counter() - started,
        )

    def _score(self, run_config: RunConfig, history: History, label: str) -> float | None:
        """The score of a whole run, as the report computes it; None if it has none, as a run whose loss is not finite."""
        clients = labelled(last_rounds(history, run_config.population.names), label, 0)
        rounds = labelled(history.rounds, label, 0)
        scores = self.objective.of_runs(rounds, clients, history.columns)
        if not len(scores) or not math.isfinite(scores.iloc[0]):
            return None
        return float(scores.iloc[0])


def in_one_process(training: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run that goes beside others: no further processes, unless an executor was chosen."""
    executor = training.get("executor", "auto")
    if executor == "auto":
        executor = IN_ONE_PROCESS
    return {**training, "executor": executor}


def threads_of(jobs: int) -> int:
    """The threads of each of `jobs` processes, which share out those of the machine."""
    return max(1, cores() // jobs)


def on_validation(population: Population) -> Population:
    """The clients with their validation samples in the place of test samples. Raises `UnalikeError` if there are none."""
    if not len(population.val.values):
        raise UnalikeError(
            "tuning scores validation samples and the clients have none; give val=0.2 "
            "with data=, ua.partition(..., val=0.2), --val 0.2 or ClientData(val=...)"
        )
    return replace(population, test=population.val)
