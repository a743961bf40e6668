"""A comparison laid out: a cell for each method and seed, and what the report will say of them."""

from __future__ import annotations

import re
import tomllib
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError
from unalike._utils.progress import ProgressCallback
from unalike._utils.tensor_files import write_bytes
from unalike.experiments.comparison import Comparison, ComparisonFacts, labelled, last_rounds
from unalike.experiments.cost_estimate import ROUNDS, Estimate, estimated, peak_mb
from unalike.runtime.model_group import Diverged
from unalike.runtime.round_loop import execute
from unalike.runtime.run_config import RunConfig
from unalike.runtime.run_directory import RunDirectory, digest
from unalike.runtime.run_recorder import Run
from unalike.runtime.stopping import DIVERGED
from unalike.runtime.worker_loop import follow_leader

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
        """A name that a person can read, made unique by the hash of everything that decides the result."""
        return (
            f"{re.sub(r'[^a-z0-9.]+', '-', self.label.lower()).strip('-')[:40]}-seed{self.seed}-{self.run_config.key}"
        )

    def end(self, run: Run) -> dict[str, Any]:
        """How many rounds a run of it did, why it ended, and which was selected."""
        rounds = run.history.last["round"]
        return {"method": self.label, "seed": self.seed, "rounds": rounds, "why": run.ended, "selected": run.selected}


@dataclass(frozen=True)
class Experiment:
    """All cells, seed by seed, and the facts about them."""

    cells: list[Cell]
    facts: ComparisonFacts

    @property
    def rounds(self) -> int:
        """Of all cells together."""
        return sum(cell.run_config.options.rounds for cell in self.cells)

    @cached_property
    def first(self) -> dict[str, RunConfig]:
        """Each method's job under the first seed."""
        return {cell.label: cell.run_config for cell in self.cells if cell.seed == self.cells[0].seed}

    @cached_property
    def key(self) -> str:
        """The hash of everything that decides the result."""
        return digest({"cells": sorted(cell.run_config.key for cell in self.cells)})

    @property
    def calibration(self) -> int:
        """The rounds that `estimate` trains."""
        return len(self.first) * ROUNDS

    def estimate(self, watch: ProgressCallback = lambda row, what="": None) -> Estimate:
        """What `run` will cost, from a few rounds of each method."""
        return estimated(self.key, self.first, len(self.cells) // len(self.first), watch)

    def run(self, out: str | Path | None, progress: ProgressCallback) -> Comparison:
        """Run what is not yet in the folder `out`, and put all of it together."""
        import pandas as pd

        from unalike.metrics.statistics import totals

        folder = None if out is None else Path(out)
        if folder is not None and (folder / "checkpoints").exists():
            raise UnalikeError(f"{folder} holds a single run; choose another folder for the comparison")
        if folder is not None and (folder / "comparison.json").exists():
            _say_what_is_replaced(folder, self.facts)
        follow_leader([cell.run_config for cell in self.cells])
        rounds: list[pd.DataFrame] = []
        clients: list[pd.DataFrame] = []
        notes: list[str] = []
        ends: list[dict[str, Any]] = []
        trained = 0
        for cell in self.cells:
            told: list[int] = []

            def tell(
                row: dict[str, Any], what: str = f"{cell.label} (seed {cell.seed})", told: list[int] = told
            ) -> None:
                told.append(row["round"])
                progress(row, what)

            try:
                run = execute(cell.run_config, out=None if folder is None else _home(folder, cell), progress=tell)
                trained += bool(told)
                if not told:  # read back, not run
                    tell(run.history.last)
            except Diverged as error:
                notes.append(f"{cell.label}, seed {cell.seed}, is left out: {error}")
                ends.append(
                    {"method": cell.label, "seed": cell.seed, "rounds": None, "why": DIVERGED, "selected": None}
                )
                continue
            notes += [f"{cell.label}: {text}" for text in run.notes]
            ends.append(cell.end(run))
            rounds.append(labelled(run.history.rounds, cell.label, cell.seed))
            own = last_rounds(run.history, cell.run_config.population.names)
            clients.append(labelled(own, cell.label, cell.seed))
        if not rounds:
            raise UnalikeError("every method diverged: " + "; ".join(notes))
        comparison = Comparison(
            pd.concat(rounds, ignore_index=True),
            pd.concat(clients, ignore_index=True),
            replace(_surviving(self.facts, rounds, notes), ends=ends),
        )
        if folder is not None and (foreseen := Estimate.load(folder, self.key)):
            memory = peak_mb() if trained == len(self.cells) else None
            facts = replace(comparison.facts, estimate=foreseen.beside(totals(comparison.rounds), memory))
            comparison = replace(comparison, facts=facts)
        if folder is not None:
            comparison.save(folder)
            comparison.report(folder / "report.html")
            write_bytes(folder / "config.toml", self.facts.config.encode())
        return comparison


def _say_what_is_replaced(folder: Path, facts: ComparisonFacts) -> None:
    """Warn where the folder's report and tables are those of a comparison with other settings; its cells stay."""
    found, wanted = RunDirectory(folder).config or {}, tomllib.loads(facts.config)
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if names:
        warnings.warn(
            f"{folder} holds a comparison with other settings ({', '.join(names)}): its report and tables will be replaced, its "
            "cells stay",
            stacklevel=3,
        )


def _home(out: Path, cell: Cell) -> Path:
    """The cell's folder: one that holds it already, whatever its label was then, or a new one."""
    return min((out / "cells").glob(f"*-{cell.run_config.key}"), default=out / "cells" / cell.folder)


def _surviving(facts: ComparisonFacts, rounds: list[pd.DataFrame], notes: list[str]) -> ComparisonFacts:
    """Without the methods of which no run is left."""
    alive = {table["method"].iloc[0] for table in rounds}
    methods = [m for m in facts.methods if m["label"] in alive]
    baseline = facts.baseline if facts.baseline in alive else methods[0]["label"]
    if baseline != facts.baseline:
        told = f"the baseline {facts.baseline} diverged under every seed: everything is held against {baseline} instead"
        notes = [told, *notes]
    return replace(facts, methods=methods, baseline=baseline, notes=list(dict.fromkeys(notes)))
