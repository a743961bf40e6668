"""Open the folder of a comparison or a run; of a comparison that has not ended, the cells that are finished."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike.comparison import standings
from unalike.comparison.comparison import Comparison
from unalike.comparison.comparison_json import COMPARISON_FILE, facts_from
from unalike.comparison.joining.merging import merge, relabelled
from unalike.comparison.standings import PlannedCell
from unalike.runtime.records.history import DIVERGED
from unalike.runtime.records.run_directory import RunDirectory


def open_comparison(folder: str | Path) -> Comparison:
    """Read a comparison or a run again from its folder: its tables, its facts, its report.

    Args:
        folder: a folder that `ua.compare(..., out=folder)`, `unalike compare --out` or `ua.run(..., out=folder)` wrote.

    Returns:
        The comparison; a run is a comparison of one method under one seed. Of a comparison that has not ended, its finished
        cells, without a decision.

    Raises:
        UnalikeError: the folder holds neither a comparison with a finished cell nor a run with at least one round.

    Example:
        >>> table = ua.open_comparison("results")  # doctest: +SKIP
        >>> table.plot("curves")  # doctest: +SKIP
    """
    folder = Path(folder)
    if not (folder / standings.CELLS_FILE).exists():
        return Comparison.load(folder)
    _, cells, stored = standings.planned(folder)
    finished, diverged = [], []
    for cell in cells:
        run = RunDirectory(folder / cell.folder)
        if run.finished:
            finished.append(cell)
        if run.diverged:
            diverged.append(cell)
    progress = f"{len(finished) + len(diverged)} of {len(cells)} cells"
    if not (folder / COMPARISON_FILE).exists():
        return _unfinished(folder, finished, diverged, progress, stored)
    found = Comparison.load(folder)
    if len(finished) + len(diverged) == len(cells):
        return found
    note = f"A later comparison has begun in {folder}: {progress} are finished. The command that started it continues it."
    return replace(found, facts=replace(found.facts, notes=[note, *found.facts.notes]))


def _unfinished(
    folder: Path,
    finished: Sequence[PlannedCell],
    diverged: Sequence[PlannedCell],
    progress: str,
    stored: dict[str, Any],
) -> Comparison:
    """The finished cells as one comparison, which is not decided."""
    if not finished:
        raise UnalikeError(
            f"{folder} holds a comparison with {progress} finished: there is nothing to report yet. The command that started it "
            "continues it"
        )
    facts = facts_from(json.dumps(stored), standings.CELLS_FILE)
    runs = []
    for cell in finished:
        run = Comparison.load(folder / cell.folder)
        runs.append(relabelled(run, {run.facts.baseline: cell.method}))
    found = merge(runs)

    # Notes say what is missing, because the tables do not show it.
    labels = {cell.method for cell in finished}
    methods = [method for method in facts.methods if method["label"] in labels]
    notes = [
        f"This comparison is unfinished: {progress} are finished, and all results below are those of these cells."
    ]
    if missing := [method["label"] for method in facts.methods if method["label"] not in labels]:
        notes.append(f"Without a finished cell, and so not shown: {', '.join(missing)}.")
    notes += [f"{cell.method}, seed {cell.seed}, is left out: it diverged." for cell in diverged]
    ends = []
    for cell in diverged:
        end = {"method": cell.method, "seed": cell.seed}
        ends.append(end | {"rounds": None, "why": DIVERGED, "selected": None})
    known = replace(
        facts,
        methods=methods,
        baseline=facts.baseline if facts.baseline in labels else methods[0]["label"],
        notes=[*notes, *facts.notes],
        ends=[*found.facts.ends, *ends],
        unfinished=progress,
    )
    return replace(found, facts=known)
