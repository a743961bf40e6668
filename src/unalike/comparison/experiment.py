"""A comparison in progress: one cell per method and seed, run one after another."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import (
    BusyFolder,
    DamagedRun,
    UnalikeError,
    refuse_empty_path,
    warn,
)
from unalike._utils.option_types import check_whole
from unalike._utils.progress import ProgressCallback
from unalike._utils.spec import slug
from unalike._utils.system.locks import WAITING_SECONDS, is_locked, locked_in_turn
from unalike._utils.system.machine import peak_memory_mb
from unalike._utils.system.process_pool import in_forks
from unalike._utils.tensor_files import sweep_files, write_bytes
from unalike.comparison.comparison import (
    Comparison,
    client_rounds,
    client_timeline,
    labelled,
    last_rounds,
)
from unalike.comparison.comparison_json import COMPARISON_FILE, ComparisonFacts
from unalike.comparison.cost_estimate import CALIBRATION_ROUNDS, Estimate, calibrate
from unalike.comparison.earlier_reports import keep_report
from unalike.comparison.fitted_references import can_be_fitted, fitted_scores, why_not_fitted
from unalike.comparison.racing.race import CellSeconds, Race, RaceStart
from unalike.comparison.standings import PlannedCell, save_cells
from unalike.core.tasks.task import Task
from unalike.engine.multiprocess.worker_pool import launched_by_torchrun
from unalike.models.registry import is_named
from unalike.runtime.processes.launch import IN_ONE_PROCESS, follow_leader
from unalike.runtime.records.history import DIVERGED
from unalike.runtime.records.run_directory import OTHER_WEIGHTS, RunDirectory, digest
from unalike.runtime.round_loop import execute
from unalike.runtime.run_recorder import Run
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.stages.model_group import Diverged
from unalike.statistics.seed_draws import TRAINING
from unalike.tracking.tracking import NO_TRACKERS, Trackers

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Cell:
    """One method under one seed."""

    label: str
    seed: int
    run_config: RunConfig

    @property
    def folder(self) -> str:
        """A readable folder name, made unique by the hash of everything that decides the result."""
        return f"{self.name}-{self.run_config.key}"

    @property
    def name(self) -> str:
        """The readable part of it."""
        return f"{slug(self.label)[:40]}-seed{self.seed}"

    def end(self, run: Run | None) -> dict[str, Any]:
        """The number of rounds of a run of this cell, why it ended, and the selected round; None: it diverged."""
        end = {"method": self.label, "seed": self.seed}
        if run is None:
            return end | {"rounds": None, "why": DIVERGED, "selected": None}
        rounds = run.history.last["round"]
        return end | {"rounds": rounds, "why": run.ended, "selected": run.selected}


@dataclass
class _CellResults:
    """The results of the cells that have run so far."""

    rounds: list[pd.DataFrame] = field(default_factory=list)
    clients: list[pd.DataFrame] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)
    client_rounds: list[pd.DataFrame] = field(default_factory=list)
    timelines: list[pd.DataFrame] = field(default_factory=list)
    confusions: dict[str, pd.DataFrame] = field(default_factory=dict)
    resampled: list[pd.DataFrame] = field(default_factory=list)
    risks: list[pd.DataFrame] = field(default_factory=list)
    fixed_tests: Sequence[str] = ()
    """The protocols whose test samples are the same under all seeds."""
    ran: list[Cell] = field(default_factory=list)
    was_read: bool = False
    """Whether some result was read, not run."""

    def run(
        self, cell: Cell, folder: Path | None, progress: ProgressCallback, trackers: Trackers
    ) -> bool:
        """Run a cell, or read its result, and take it in. Returns whether it diverged.

        Raises `BusyFolder` while another process trains it.
        """
        try:
            run, has_trained = run_cell(cell, folder, progress, trackers)
        except Diverged as error:
            self.ran.append(cell)
            self.was_read = True
            self.add_diverged(cell, error)
            return True
        self.ran.append(cell)
        self.was_read |= not has_trained
        self.add(cell, run)
        return False

    def add(self, cell: Cell, run: Run) -> None:
        """Take in the results of a run: its notes and its end, its scores, and what some kinds of tasks have besides."""
        # Notes on the data are among the facts, once for all methods.
        for note in run.warnings:
            if note not in cell.run_config.data_notes:
                self.notes.append(f"{cell.label}: {note}")
        self.ends.append(cell.end(run))

        self.rounds.append(labelled(run.history.rounds, cell.label, cell.seed))
        population = cell.run_config.population
        clients = last_rounds(run.history, population.names)
        if population.positives is not None:
            positives = dict(zip(population.names, population.positives.tolist(), strict=True))
            after_tests = list(clients).index("n_test") + 1
            clients.insert(after_tests, "n_positive", clients["client"].map(positives))
        self.clients.append(labelled(clients, cell.label, cell.seed))
        by_round = client_rounds(run.history, population.names)
        if by_round is not None:
            self.client_rounds.append(labelled(by_round, cell.label, cell.seed))
        if run.history.timeline_rows:
            timeline = client_timeline(run.history.timeline, population.names)
            self.timelines.append(labelled(timeline, cell.label, cell.seed))

        # A regression has no classes, and a run may have no test sample: then these tables stay without it.
        with suppress(UnalikeError):
            counts = run.confusion()
            self.confusions[cell.label] = counts + self.confusions.get(cell.label, 0)
        with suppress(UnalikeError):
            if run.risks is not None:
                self.risks.append(labelled(run.risks, cell.label, cell.seed))
        if self.fixed_tests:
            with suppress(UnalikeError):
                self.resampled.append(
                    labelled(run.resampled(self.fixed_tests), cell.label, cell.seed)
                )

    def add_diverged(self, cell: Cell, error: Diverged) -> None:
        self.notes.append(f"{cell.label}, seed {cell.seed}, is left out: {error}")
        self.ends.append(cell.end(None))

    def comparison(self, facts: ComparisonFacts) -> Comparison:
        """All results as one comparison. Raises `UnalikeError` if every run diverged."""
        import pandas as pd

        if not self.rounds:
            raise UnalikeError("every method diverged: " + "; ".join(self.notes))
        confusions = []
        for label, counts in self.confusions.items():
            classes = [str(name) for name in counts]
            rows = counts.to_numpy().tolist()
            confusions.append({"method": label, "classes": classes, "counts": rows})
        remaining = _without_diverged(facts, self.rounds, [*facts.notes, *self.notes])

        def joined(tables: list[pd.DataFrame]) -> pd.DataFrame | None:
            return pd.concat(tables, ignore_index=True) if tables else None

        return Comparison(
            rounds=pd.concat(self.rounds, ignore_index=True),
            clients=pd.concat(self.clients, ignore_index=True),
            columns=self.ran[0].run_config.columns,
            facts=replace(remaining, ends=self.ends, confusions=confusions),
            client_rounds=joined(self.client_rounds),
            resampled=joined(self.resampled),
            risks=joined(self.risks),
            timeline=joined(self.timelines),
        )


@dataclass(frozen=True)
class Experiment:
    """The cells of a comparison, seed by seed, and the facts about them; `race` if its methods race."""

    cells: list[Cell]
    facts: ComparisonFacts
    race: RaceStart | None = None

    @property
    def rounds(self) -> int:
        """The number of rounds of all cells together."""
        return sum(cell.run_config.options.rounds for cell in self.cells)

    @property
    def task(self) -> Task:
        """The task of all cells."""
        return self.cells[0].run_config.population.task

    @cached_property
    def run_configs(self) -> dict[str, RunConfig]:
        """Label -> the run config of the method under the first seed."""
        first = self.cells[0].seed
        return {cell.label: cell.run_config for cell in self.cells if cell.seed == first}

    @property
    def fixed_tests(self) -> tuple[str, ...]:
        """The protocols that test on the same samples under all seeds, if there are several seeds."""
        run_config = self.cells[0].run_config
        protocols = run_config.columns.protocols
        if self.facts.sampling.redrawn == TRAINING:
            return tuple(protocols)
        if run_config.test is None:
            return ()
        return tuple(name for name in protocols if name == "server")

    @cached_property
    def key(self) -> str:
        """The hash of everything that decides the result."""
        return digest({"cells": sorted(cell.run_config.key for cell in self.cells)})

    @property
    def calibration_rounds(self) -> int:
        """The number of rounds that `estimate` trains if every method has one stage."""
        return len(self.run_configs) * CALIBRATION_ROUNDS

    def estimate(self, progress: ProgressCallback = lambda row, what="": None) -> Estimate:
        """Estimate the cost of `run` from a few rounds of each method."""
        seeds = len(self.cells) // len(self.run_configs)
        if self.race is not None and self.facts.looks is not None:  # the fewest seeds of a race
            seeds = self.facts.looks[0]
        return calibrate(self.key, self.run_configs, seeds, progress)

    def run(
        self,
        out: str | Path | None,
        progress: ProgressCallback,
        trackers: Trackers = NO_TRACKERS,
        store: Path | None = None,
        jobs: int = 1,
    ) -> Comparison:
        """Run every cell without a result in the folder, and combine the results of all cells.

        `out` is the folder of the comparison, `store` the one that has the cells, if several comparisons share them. `jobs` cells
        are trained at a time. Other processes may train cells of the same folder: this one goes on to others, and waits for theirs
        at the end.
        """
        self._check_jobs(jobs)
        if jobs > 1 and out is None and store is None:
            # processes hand over cells in a folder
            with TemporaryDirectory() as temporary:
                return self.run(out, progress, trackers, Path(temporary), jobs)
        # What cannot work is refused before any training.
        refuse_empty_path("out", out)
        folder = None if out is None else Path(out)
        if folder is not None and (folder / "checkpoints").exists():
            raise UnalikeError(
                f"{folder} holds a single run; choose another folder for the comparison"
            )
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            with locked_in_turn(folder):
                keep_report(folder, self.facts)
                sweep_files(folder)
        if self.facts.looks is not None and launched_by_torchrun():
            raise UnalikeError(
                "found seeds='auto', or no methods, under torchrun, whose processes must know all runs beforehand; give methods "
                "and a number of seeds"
            )
        follow_leader([cell.run_config for cell in self.cells])
        if self.race is None:
            results = self._run_cells(folder, store or folder, progress, trackers, jobs)
            comparison = results.comparison(self.facts)
        else:
            seeds = len({cell.seed for cell in self.cells})
            race = self.race.begin(list(self.run_configs), seeds, self.facts.baseline)
            results = self._run_race(race, folder, store or folder, progress, trackers)
            comparison = results.comparison(replace(self.facts, race=race.account))
        comparison = self._with_references(comparison, results.ran, store or folder)
        if folder is None:
            return comparison

        # A result that was read says nothing about the memory of this process.
        memory = None if results.was_read else peak_memory_mb()
        comparison = self._with_estimate(comparison, folder, memory)

        # The facts come last: killed before, the comparison is unfinished and goes on, whatever other files there are.
        with locked_in_turn(folder):
            (folder / COMPARISON_FILE).unlink(missing_ok=True)
            write_bytes(folder / "config.toml", self.facts.config.encode())
            comparison.report(folder / "report.html")
            comparison.save(folder)
        tracked = trackers.follow("comparison", tomllib.loads(self.facts.config), folder)
        tracked.keep([folder / "report.html"])
        return comparison

    def _run_cells(
        self,
        folder: Path | None,
        store: Path | None,
        progress: ProgressCallback,
        trackers: Trackers,
        jobs: int,
    ) -> _CellResults:
        """Run the cells seed by seed: all of them, or seeds for the methods that matter until the decision stands."""
        looks = self.facts.looks
        seeds = list(dict.fromkeys(cell.seed for cell in self.cells))
        results = _CellResults(fixed_tests=self.fixed_tests)
        methods = set(self.run_configs)
        for done, seed in enumerate(seeds):
            if looks is not None and done >= looks[0]:
                decision = results.comparison(self.facts).decision
                methods = set() if decision.stands else methods.intersection(decision.contenders)
            if not methods:
                break
            until = seeds if looks is None else seeds[: max(looks[0], done + 1)]
            planned = [cell for cell in self.cells if cell.label in methods]
            waiting = [cell for cell in planned if cell.seed in until[done:]]
            self._save_planned(folder, store, results.ran + waiting)
            # Forks train what this look needs, and this process reads it; a cell that failed there is tried again here.
            is_first_look = not done or (looks is not None and done >= looks[0])
            if jobs > 1 and is_first_look:
                train = partial(_train_in_fork, waiting, store, trackers)
                in_forks(train, len(waiting), jobs)
            for cell in planned:
                if cell.seed == seed:
                    self._run_in_turn(results, cell, waiting, store, progress, trackers)
        return results

    def _with_references(
        self, comparison: Comparison, ran: Sequence[Cell], store: Path | None
    ) -> Comparison:
        """Add the references that scikit-learn fits under every seed that was run, or a note that a table has none."""
        import pandas as pd

        of_seed = {cell.seed: cell.run_config for cell in ran}
        run_configs = of_seed.values()
        if not all(map(can_be_fitted, run_configs)):
            reasons = {why_not_fitted(run_config) for run_config in run_configs} - {""}
            notes = [*comparison.facts.notes, *sorted(reasons)]
            return replace(comparison, facts=replace(comparison.facts, notes=notes))
        with_draws = bool(self.fixed_tests)
        tables = [fitted_scores(run_config, store, with_draws) for run_config in run_configs]
        return replace(comparison, fitted=pd.concat(tables, ignore_index=True))

    def _check_jobs(self, jobs: int) -> None:
        """Raise `UnalikeError` for jobs that cannot be honored."""
        check_whole(1, jobs=jobs)
        if jobs == 1:
            return
        why = ""
        if self.race is not None:
            why = "a race looks at each seed before it goes on; name the methods to compare"
        elif launched_by_torchrun():
            why = "under torchrun all processes train one run"
        elif self.cells[0].run_config.device.type != "cpu":
            why = "jobs share the cores of this machine, and not its GPUs; start the command once for each GPU, with one folder"
        if why:
            raise UnalikeError(f"found jobs={jobs}, but {why}; leave jobs out")

    def _run_in_turn(
        self,
        results: _CellResults,
        cell: Cell,
        untried: list[Cell],
        store: Path | None,
        progress: ProgressCallback,
        trackers: Trackers,
    ) -> bool:
        """Run a cell, or read its result. While another process trains it, train those that nobody has tried; then wait for it.

        `untried` loses the cells that are tried. Returns whether the cell diverged.
        """
        if cell in untried:
            untried.remove(cell)
        while True:
            with suppress(BusyFolder):
                return results.run(cell, store, progress, trackers)
            if untried:
                with suppress(BusyFolder, Diverged):
                    run_cell(untried.pop(0), store, progress, trackers)
            else:
                time.sleep(WAITING_SECONDS)

    def _run_race(
        self,
        race: Race,
        folder: Path | None,
        store: Path | None,
        progress: ProgressCallback,
        trackers: Trackers,
    ) -> _CellResults:
        """Run the methods of a race seed by seed, and look at the results after each of them, until the race is over."""
        cell_of = {(cell.seed, cell.label): cell for cell in self.cells}
        seeds = list(dict.fromkeys(cell.seed for cell in self.cells))
        results = _CellResults(fixed_tests=self.fixed_tests)
        times = CellSeconds.load(store)
        for seed in seeds:
            if race.seeds and not race.affords_another_seed():
                race.ended = f"the budget of {race.budget.text} is spent"
                break
            begun = seeds[: max(race.fewest, race.seeds + 1)]
            waiting = [cell_of[s, name] for s in begun[race.seeds :] for name in race.running]
            self._save_planned(folder, store, results.ran + waiting)
            for label in list(race.running):
                # Under the first seed a method may turn out to be too expensive for the budget.
                if not race.seeds and not race.begins(label):
                    race.leave_out(label)
                    continue
                cell = cell_of[seed, label]
                started = time.perf_counter()
                diverged = self._run_in_turn(results, cell, [], store, progress, trackers)
                trained = 0.0 if diverged else float(results.rounds[-1]["seconds"].sum())
                # A cell that was trained before takes no time now, but it has its share in the budget.
                seconds = max(time.perf_counter() - started, trained)
                race.add_cell(label, times.add(cell.run_config.key, seconds))
                if diverged:
                    race.drop_diverged(label, seed)
            race.seeds += 1
            if race.seeds >= race.fewest:
                race.look(results.comparison(self.facts).content())
            if race.ended:
                break
        else:
            race.ended = f"{race.most} seeds, the most of this race, are done"
        self._save_planned(folder, store, results.ran)
        return results

    def _save_planned(self, folder: Path | None, store: Path | None, cells: list[Cell]) -> None:
        """Write the cells that have run or will run into the folder, if there is one."""
        if folder is not None and store is not None:
            save_cells(folder, self.facts, (_planned(cell, folder, store) for cell in cells))

    def _with_estimate(
        self, comparison: Comparison, folder: Path, memory: float | None
    ) -> Comparison:
        """Add the estimate that the folder keeps, if any, beside the actual cost. `memory`: None if not measured."""
        from unalike.statistics.costs import totals

        estimate = Estimate.load(folder, self.key)
        if estimate is None:
            return comparison
        beside = estimate.beside_actual(totals(comparison.rounds), memory)
        return replace(comparison, facts=replace(comparison.facts, estimate=beside))


def _train_in_fork(
    cells: Sequence[Cell], store: Path | None, trackers: Trackers, number: int
) -> None:
    """Train one of the cells in one process, unless another one trains it."""
    cell = cells[number]
    run_config = cell.run_config
    if run_config.options.executor == "auto":
        options = replace(run_config.options, executor=IN_ONE_PROCESS)
        run_config = replace(run_config, options=options)
    run_cell(replace(cell, run_config=run_config), store, trackers=trackers)


def run_cell(
    cell: Cell,
    folder: Path | None,
    progress: ProgressCallback = lambda row, what="": None,
    trackers: Trackers = NO_TRACKERS,
) -> tuple[Run, bool]:
    """Run a cell, or read its result if it has run before. Returns the run, and whether a round was trained."""
    trained_rounds = 0

    def count(row: dict[str, Any], what: str = "") -> None:
        nonlocal trained_rounds
        trained_rounds += 1
        progress(row, f"{cell.label} (seed {cell.seed})")

    out = None if folder is None else _cell_folder(folder, cell)
    if out is not None:
        _adopt_beginning(out, cell)
    try:
        run = execute(cell.run_config, out=out, progress=count, trackers=trackers)
    except DamagedRun as error:
        raise UnalikeError(
            f"{error}, or delete the folder {out}: this cell is then run again"
        ) from None
    has_trained = trained_rounds > 0
    if not has_trained:
        # The result was read: its last row is reported once.
        count(run.history.progress_row)
    return run, has_trained


def _planned(cell: Cell, folder: Path, store: Path) -> PlannedCell:
    """The cell as the folder of a comparison plans it, with its place in the folder that has the cells."""
    place = Path(os.path.relpath(_cell_folder(store, cell), folder))
    return PlannedCell(cell.label, cell.seed, cell.run_config.options.rounds, place.as_posix())


def _cell_folder(out: Path, cell: Cell) -> Path:
    """The folder that already holds the cell, perhaps under another label, or a new one."""
    cells = out / "cells"
    return min(cells.glob(f"*-{cell.run_config.key}"), default=cells / cell.folder)


def _adopt_beginning(folder: Path, cell: Cell) -> None:
    """Make the folder of an earlier run that is the beginning of the cell, or all of it, the folder of the cell.

    The earlier run has fewer rounds, or it began before a part of its method gained a field, which changes the hash.
    """
    if folder.exists():
        return
    record = cell.run_config.description
    wanted = cell.run_config.options.rounds
    places = list(folder.parent.glob(f"{cell.name}-*"))
    if not is_named(cell.run_config.model_name):
        for place in places:
            if RunDirectory(place).began_elsewhere(record):
                raise UnalikeError(
                    f"{place} holds this run from other initial weights. {OTHER_WEIGHTS}"
                )
    shorter = {}
    for place in places:
        rounds_there = RunDirectory(place).rounds_of(record)
        if rounds_there is not None and rounds_there <= wanted:
            shorter[place] = rounds_there
    if not shorter:
        return

    # Of several beginnings the longest saves the most.
    longest = max(shorter, key=lambda place: (shorter[place], place.name))
    rounds = shorter[longest]
    if rounds < wanted and (why := cell.run_config.obstacle(rounds)):
        warn(f"{cell.label}: {wanted} rounds are trained from the first one on: {why}")
    elif is_locked(longest):
        raise BusyFolder(f"another process is writing the run in {longest}; wait until it ends")
    else:
        # another process may have been faster
        with suppress(FileNotFoundError):
            longest.rename(folder)


def _without_diverged(
    facts: ComparisonFacts, rounds: list[pd.DataFrame], notes: list[str]
) -> ComparisonFacts:
    """The facts without the methods that diverged under every seed; another method replaces a diverged baseline."""
    remaining = {table["method"].iloc[0] for table in rounds}
    methods = [m for m in facts.methods if m["label"] in remaining]
    baseline = facts.baseline
    if baseline not in remaining:
        baseline = methods[0]["label"]
        note = f"the baseline {facts.baseline} diverged under every seed: all methods are compared with {baseline} instead"
        notes = [note, *notes]
    return replace(facts, methods=methods, baseline=baseline, notes=list(dict.fromkeys(notes)))
