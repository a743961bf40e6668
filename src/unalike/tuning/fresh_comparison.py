"""The comparison of methods, as given or tuned, under seeds on which nothing was tuned."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unalike._utils.progress import ProgressCallback
from unalike._utils.system.process_pool import in_processes
from unalike.comparison.compare import prepare_experiment
from unalike.comparison.comparison import Comparison
from unalike.comparison.experiment import Experiment, run_cell
from unalike.comparison.seed_plan import SeedPlan
from unalike.core.work import Work
from unalike.data.partitioning.given_clients import ClientsRequest
from unalike.runtime.stages.model_group import Diverged
from unalike.tuning.trial_runner import in_one_process, threads_of


@dataclass(frozen=True)
class FreshComparison:
    """A comparison that is to be run.

    The clients are tested on samples that no trial saw; `settings` are the other arguments of `prepare_experiment`, `command`
    the one that the report shows.
    """

    methods: Mapping[str, object]
    works: Mapping[str, Work]
    clients: ClientsRequest
    seeds: Sequence[int]
    settings: Mapping[str, Any]
    command: str

    def prepare(self) -> Experiment:
        """Check and prepare the runs. Raises `UnalikeError` if one of them cannot be trained."""
        seeds = SeedPlan.of(self.seeds)
        prepared = prepare_experiment(
            self.methods, self.clients, seeds, work=self.works, **self.settings
        )
        return replace(prepared, facts=replace(prepared.facts, command=self.command))

    def run(self, out: Path | None, progress: ProgressCallback, jobs: int) -> Comparison:
        """Run what the folder does not hold yet, and compare: `jobs` runs at a time with a folder, one by one without."""
        experiment = self.prepare()
        if out is not None and jobs > 1:
            tasks = [(label, seed) for seed in self.seeds for label in self.methods]
            for _ in in_processes(partial(self._run_one, out), tasks, jobs, threads_of(jobs)):
                pass  # the folder keeps the results
        return experiment.run(out, progress)

    def _run_one(self, out: Path, task: tuple[str, int]) -> None:
        """Run one method under one seed into the folder.

        A run that diverges is not handled here: it diverges again, and is noted, when `run` reads the results.
        """
        label, seed = task
        settings = in_one_process(self.settings) | {"baseline": None}
        one = replace(
            self,
            methods={label: self.methods[label]},
            works={label: self.works[label]},
            seeds=[seed],
            settings=settings,
        )
        with suppress(Diverged):
            run_cell(one.prepare().cells[0], out)
