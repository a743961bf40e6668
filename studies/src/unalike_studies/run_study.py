"""Run the cells of a study that have no stored result, and store each as it ends."""

import json
import os
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from unalike._utils.errors import UnalikeError, warn
from unalike._utils.system.process_pool import in_processes
from unalike._utils.tensor_files import write_bytes
from unalike.comparison.cost_estimate import calibrate
from unalike.runtime.records.history import Row
from unalike.runtime.round_loop import execute
from unalike.runtime.stages.model_group import Diverged
from unalike.tuning.trial_runner import IN_ONE_PROCESS
from unalike_studies.cells import StudyCell
from unalike_studies.result_files import ESTIMATES, digests, estimates, find, gather, save
from unalike_studies.result_of_run import result_of, result_of_diverged
from unalike_studies.results import CellResult

PARTIAL = ".partial"
"""Folder of the checkpoints of cells that have not ended."""

Place = tuple[Path, StudyCell]
"""A folder of results, and a cell whose result belongs there."""


class Failure(NamedTuple):
    """A cell that cannot be run, and why."""

    cell: StudyCell
    error: str


def missing(cells: Iterable[StudyCell], folder: Path) -> list[StudyCell]:
    """The cells that have no stored result with their digest."""
    stored = digests(folder)
    return [cell for cell in cells if cell.digest not in stored]


def run_cells(
    wanted: Mapping[Path, Iterable[StudyCell]],
    *,
    root: Path | None = None,
    data_dir: str | Path | None = None,
    jobs: int = 1,
) -> Iterator[CellResult]:
    """Run cells one after another, or `jobs` at a time in processes of their own; store each result as its cell ends.

    Studies of a paper share cells, such as those of their baseline: a cell of several folders is run once, and copied.

    Args:
        wanted: folder of results -> cells; those with a stored result are not run again.
        root: the folder of all studies; a cell that has a result anywhere in it is copied from there.
        data_dir: folder of data files; $UNALIKE_DATA by default.
        jobs: the number of processes. The threads of the machine are shared out among them.

    Yields:
        Each new result.

    Raises:
        UnalikeError: cells cannot be run, for instance because their data is missing. It is raised after all others are run; a
            warning says so at once.
    """
    if jobs < 1:
        raise UnalikeError(f"found jobs={jobs}, expected the number of processes, 1 or more")

    # Digest -> all places of the cell; a result that is stored anywhere is copied to them.
    places: dict[str, list[Place]] = {}
    for folder, cells in wanted.items():
        for cell in missing(cells, folder):
            places.setdefault(cell.digest, []).append((folder, cell))
    if root is not None:
        for digest, result in find(root, places).items():
            yield from _copies(result, places.pop(digest))

    # Each of the others runs at its first place. A cell that cannot run stops no other.
    failures: list[Failure] = []
    first_places = [places_of_cell[0] for places_of_cell in places.values()]
    for outcome in _run_all(first_places, data_dir, jobs):
        if outcome is None:
            continue
        if isinstance(outcome, CellResult):
            yield outcome
            yield from _copies(outcome, places[outcome.digest][1:])
            continue
        is_new = all(outcome.error != failure.error for failure in failures)
        if is_new:
            warn(f"{outcome.cell}: {outcome.error}; the other cells go on")
        failures.append(outcome)

    for folder in wanted:
        gather(folder)
    if failures:
        first = failures[0]
        raise UnalikeError(
            f"{len(failures)} of {len(places)} cells cannot be run; {first.cell}: {first.error}"
        )


def _run_all(
    todo: list[Place], data_dir: str | Path | None, jobs: int
) -> Iterator[CellResult | Failure | None]:
    """The results of cells, or the errors why they cannot be run; None for cells that another process has run meanwhile."""
    if jobs == 1:
        for place in todo:
            yield _run_at(place, data_dir)
        return

    # The processes of cells start no processes of their own.
    todo_alone = []
    for folder, cell in todo:
        options = {"executor": IN_ONE_PROCESS, **cell.options}
        todo_alone.append((folder, replace(cell, options=options)))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    run_place = partial(_run_quietly, data_dir=data_dir)

    # Processes cannot warn here, and many cells would give the same warning.
    warned = set[str]()
    for outcome in in_processes(run_place, todo_alone, jobs, threads):
        if isinstance(outcome, CellResult):
            for warning in outcome.notes:
                if warning not in warned:
                    warn(warning)
                    warned.add(warning)
        yield outcome


def _run_quietly(place: Place, data_dir: str | Path | None) -> CellResult | Failure | None:
    """`_run_at` without warnings, which the result keeps as notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _run_at(place, data_dir)


def _run_at(place: Place, data_dir: str | Path | None) -> CellResult | Failure | None:
    folder, cell = place
    if not missing([cell], folder):
        return None
    try:
        return run_cell(cell, folder, data_dir)
    except UnalikeError as error:
        return Failure(cell, str(error))


def _copies(result: CellResult, places: list[Place]) -> Iterator[CellResult]:
    """Store the result in other places, where its cell may have other labels."""
    for folder, cell in places:
        copy = result.labelled(cell)
        save(copy, folder)
        yield copy


def run_cell(cell: StudyCell, folder: Path, data_dir: str | Path | None = None) -> CellResult:
    """Run one cell and store its result. A run that diverges is a result, too: its history is empty.

    An interrupted cell goes on from its last checkpoint on this machine.
    """
    started = time.perf_counter()
    run_config = cell.prepare(data_dir)
    checkpoints = folder / PARTIAL / cell.digest
    before = _seconds_before(checkpoints)
    try:
        run = execute(run_config, out=checkpoints)
    except Diverged as error:
        seconds = before + time.perf_counter() - started
        result = result_of_diverged(cell, run_config, seconds, str(error))
    else:
        seconds = before + time.perf_counter() - started
        result = result_of(cell, run, seconds)

    # The checkpoints go last: after an interruption the cell has either them or its result.
    save(result, folder)
    shutil.rmtree(checkpoints)
    return result


def _seconds_before(checkpoints: Path) -> float:
    """Seconds of training of an interrupted cell up to its last checkpoint; what was lost after it does not count."""
    rounds = checkpoints / "rounds.parquet"
    if not rounds.exists():
        return 0.0
    import pandas as pd

    return float(pd.read_parquet(rounds, columns=["seconds"])["seconds"].sum())


def estimate(
    cells: Iterable[StudyCell], folder: Path, data_dir: str | Path | None = None
) -> dict[str, float]:
    """Estimate the seconds of one cell of every method and setting from a few rounds each, and keep them in the folder.

    Returns:
        "METHOD, SETTING" -> seconds.
    """
    seconds = estimates(folder)
    for cell in cells:
        if cell.kind in seconds:
            continue
        started = time.perf_counter()
        run_config = cell.prepare(data_dir)
        setup = time.perf_counter() - started
        cost = calibrate(run_config.key, {cell.kind: run_config}, 1, _show_nothing)
        seconds[cell.kind] = setup + cost.seconds
        # Written after each kind, so that an interruption loses no estimate.
        text = json.dumps(seconds, indent=1) + "\n"
        write_bytes(folder / ESTIMATES, text.encode())
    return seconds


def _show_nothing(row: Row, what: str = "") -> None:
    """No progress is shown during an estimate."""
