"""`unalike study run`: run the cells of a study that have no result."""

from __future__ import annotations

from typing import Annotated

import typer

from unalike.cli import options as o
from unalike.cli.study import arguments as a

NAME = "run"


def command(
    name: a.Study,
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
    dry_run: o.DryRun = False,
) -> None:
    """Run the cells of a study that have no stored result, and store each as it ends.

    An interrupted study continues from the stored results, on any machine.

    \b
    unalike study run niid-bench-fcube
    unalike study run local-statistics-table1 --scale small --jobs 2
    unalike study run niid-bench-fashion --scale paper --data-dir data --dry-run
    """
    from unalike._utils.errors import unknown
    from unalike.experiments.seed_plan import read_seeds
    from unalike.studies.catalogue import study
    from unalike.studies.results import FOLDER
    from unalike.studies.run_study import estimate, estimates, missing, run_cells

    found = study(name)
    cells = found.scale(scale).cells
    for kind, wanted in (("method", method), ("setting", setting)):
        known = {getattr(cell, kind) for cell in cells}
        for label in wanted or ():
            if label not in known:
                raise unknown(f"{kind} of {name}", label, known)
        cells = [cell for cell in cells if not wanted or getattr(cell, kind) in wanted]
    if seeds is not None:
        cells = [cell for cell in cells if cell.seed in read_seeds(seeds)]
    folder = (out or FOLDER) / name / scale
    todo = missing(cells, folder)
    print(f"{name}, {scale}: {len(cells) - len(todo)} of {len(cells)} cells have results; {len(todo)} to run")
    if todo and (dry_run or scale == "paper"):
        estimate(todo, folder, data_dir)
    known_seconds = estimates(folder)
    expected = [known_seconds.get(cell.kind) for cell in todo]
    if todo and None not in expected:
        print(f"estimated: {sum(filter(None, expected)):,.0f} seconds, one cell at a time")
    if dry_run:
        return
    for done, result in enumerate(run_cells(todo, folder, root=out or FOLDER, data_dir=data_dir, jobs=jobs), 1):
        print(
            f"{done}/{len(todo)} {result.method}, {result.setting}, seed {result.seed}: {result.seconds:.0f} s",
            flush=True,
        )
    print(f"results: {folder.resolve()}")
