"""`unalike study run`: run the cells of studies that have no result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unalike.cli import options as o
from unalike.cli.study import arguments as a

if TYPE_CHECKING:
    from unalike.studies.cells import StudyCell

NAME = "run"


def command(
    names: a.Studies,
    scale: a.ScaleName = "smoke",
    data_dir: o.DataDir = None,
    out: a.Results = None,
    jobs: Annotated[int, typer.Option(help="Cells that run at a time, each in a process of its own.")] = 1,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Run these methods only, by their labels; repeat the flag.", show_default=False),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(help="Run these settings only, by their labels; repeat the flag.", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Run these seeds only: 3 for the first three, or 0,1,4.", show_default=False)
    ] = None,
    device: o.Device = "cpu",
    dry_run: o.DryRun = False,
) -> None:
    """Run the cells of studies that have no stored result, and store each as it ends.

    An interrupted study continues from the stored results, on any machine. A cell that several studies share is run once.

    \b
    unalike study run niid-bench-fcube
    unalike study run local-statistics-table1 --scale small --jobs 2
    unalike study run 'fedlws-*' --scale small --jobs 2      # all studies of a paper
    unalike study run niid-bench-fashion --scale paper --data-dir data --dry-run
    unalike study run fedpake-table1 --scale paper --device cuda
    """
    from unalike.experiments.seed_plan import read_numbers
    from unalike.studies.catalogue import matching
    from unalike.studies.results import FOLDER
    from unalike.studies.run_study import estimate, estimates, missing, run_cells

    root = out or FOLDER
    wanted = {study.name: study.scale(scale).cells for study in matching(names)}
    wanted = _with_label(_with_label(wanted, "method", method), "setting", setting)
    numbers = None if seeds is None else read_numbers(seeds)
    todo: dict[Path, list[StudyCell]] = {}
    expected: dict[str, float | None] = {}
    for name, cells in wanted.items():
        folder = root / name / scale
        if numbers is not None:
            cells = [cell for cell in cells if cell.seed in numbers]
        if device != "cpu":
            cells = [replace(cell, options={**cell.options, "device": device}) for cell in cells]
        todo[folder] = missing(cells, folder)
        print(f"{name}, {scale}: {len(cells) - len(todo[folder])} of {len(cells)} cells have results")
        if todo[folder] and (dry_run or scale == "paper"):
            estimate(todo[folder], folder, data_dir)
        known_seconds = estimates(folder)
        expected |= {cell.digest: known_seconds.get(cell.kind) for cell in todo[folder]}
    total = sum(map(len, todo.values()))
    print(f"{total} results are missing; {len(expected)} cells to run")
    if expected and None not in expected.values():
        print(f"estimated: {sum(filter(None, expected.values())):,.0f} seconds, one cell at a time")
    if dry_run:
        return
    for done, result in enumerate(run_cells(todo, root=root, data_dir=data_dir, jobs=jobs), 1):
        print(
            f"{done}/{total} {result.method}, {result.setting}, seed {result.seed}: {result.seconds:.0f} s",
            flush=True,
        )
    print(*(f"results: {folder.resolve()}" for folder in todo), sep="\n")


def _with_label(wanted: dict[str, list[StudyCell]], kind: str, labels: list[str] | None) -> dict[str, list[StudyCell]]:
    """The cells whose method or setting (`kind`) has one of these labels. Raises `UnalikeError` if no study has a label."""
    from unalike._utils.errors import unknown

    if labels is None:
        return wanted
    known = {getattr(cell, kind) for cells in wanted.values() for cell in cells}
    for label in labels:
        if label not in known:
            raise unknown(f"{kind} of {', '.join(wanted)}", label, known)
    return {name: [cell for cell in cells if getattr(cell, kind) in labels] for name, cells in wanted.items()}
