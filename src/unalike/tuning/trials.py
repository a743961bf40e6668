"""Run the trials of all methods, several at a time in processes of their own, and keep each as it ends."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unalike._utils.spec import slug
from unalike._utils.system.process_pool import process_pool
from unalike.tuning.trial import Trial, load_trial
from unalike.tuning.trial_runner import TrialRunner, in_one_process, threads_of

Trials = dict[str, list[Trial]]
"""Label -> trials, by number."""
OnTrial = Callable[[str, Trial], None]
"""Called with the method and each trial as it ends, or as it is read."""


@dataclass(frozen=True)
class TrialBudget:
    """The budget of each method: as many trials as every other method, or fewer once its trials have taken `seconds`."""

    trials: int
    seconds: float | None = None

    def spent(self, begun: int, seconds: float) -> bool:
        """Whether a method gets no more trials."""
        return begun >= self.trials or (self.seconds is not None and seconds >= self.seconds)


@dataclass
class _Progress:
    """The trials that have ended, and those that run."""

    budget: TrialBudget
    ended: Trials
    running: dict[Future[Trial], tuple[str, int]] = field(default_factory=dict)

    def next(self) -> tuple[str, int] | None:
        """Method and number of the next trial; None once every method has spent its budget.

        The next method is the one with the fewest trials among those with budget left.
        """
        begun = {label: self._begun(label) for label in self.ended}
        waiting = []
        for label, trials in self.ended.items():
            seconds = sum(trial.seconds for trial in trials)
            if not self.budget.spent(len(begun[label]), seconds):
                waiting.append(label)
        if not waiting:
            return None
        label = min(waiting, key=lambda name: len(begun[name]))
        return label, min(set(range(self.budget.trials)) - begun[label])

    def _begun(self, label: str) -> set[int]:
        """The numbers of the trials of a method that have ended or run."""
        ended = {trial.number for trial in self.ended[label]}
        running = {number for name, number in self.running.values() if name == label}
        return ended | running


def run_trials(
    runner: TrialRunner, budget: TrialBudget, folder: Path | None, jobs: int, on_trial: OnTrial
) -> Trials:
    """Run the trials that the folder does not hold yet.

    `budget` is what each method may spend; `folder` keeps one file per trial. With jobs = 1 the trials run in this process, one
    after another, and the same seed gives the same trials. `on_trial` is called as trials end.
    """
    folders = {}
    if folder is not None:
        folders = {
            label: folder / f"{slug(label)[:40]}-{runner.key(label)}" for label in runner.methods
        }
    # What the folder holds is not run again, but told like a trial that ends.
    stored = {label: _stored(folders.get(label), budget) for label in runner.methods}
    progress = _Progress(budget, stored)
    for label, trials in stored.items():
        for trial in trials:
            on_trial(label, trial)

    if jobs > 1:
        runner = replace(runner, training=in_one_process(runner.training))
    with _ThisProcess() if jobs == 1 else process_pool(jobs, threads_of(jobs)) as pool:
        while (task := progress.next()) is not None or progress.running:
            # As many trials as processes; each learns from those that have ended when it begins.
            if task is not None and len(progress.running) < jobs:
                label, number = task
                future = pool.submit(runner.run, label, number, list(progress.ended[label]))
                progress.running[future] = task
                continue
            for future in wait(progress.running, return_when=FIRST_COMPLETED).done:
                label, _ = progress.running.pop(future)
                trial = future.result()
                if label in folders:
                    trial.save(folders[label])
                trials = [*progress.ended[label], trial]
                progress.ended[label] = sorted(trials, key=lambda one: one.number)
                on_trial(label, trial)
    return progress.ended


def _stored(folder: Path | None, budget: TrialBudget) -> list[Trial]:
    """The trials that a folder holds."""
    if folder is None:
        return []
    trials = [load_trial(folder, number) for number in range(budget.trials)]
    return [trial for trial in trials if trial is not None]


class _ThisProcess(Executor):
    """Runs each task at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        ended: Future[Any] = Future()
        ended.set_result(fn(*args, **kwargs))
        return ended
