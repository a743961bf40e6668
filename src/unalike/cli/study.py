"""`unalike study`: run the experiments of papers, show their tables, and write the ledger of verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unalike.cli import options as o

HELP = """Published tables and figures as experiments, with verdicts on the claims of their papers.

\b
unalike study list
unalike study run fedmix-quadratic --scale smoke --out studies-of-mine
unalike study report fedmix-quadratic --scale smoke --out studies-of-mine
"""

NAME = "study"
app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)

Study = Annotated[str, typer.Argument(help="Name of a study (see `unalike study list`).")]
ScaleName = Annotated[str, typer.Option(help="smoke (under a minute), small, or paper (the paper's settings).")]
Results = Annotated[
    Path | None, typer.Option(help="Folder of results; studies/results unless given.", show_default=False)
]


@app.command("list")
def list_studies() -> None:
    """List the studies, and how many of their cells have a stored result.

    \b
    unalike study list
    """
    from unalike.cli.terminal_tables import tables
    from unalike.studies.catalogue import STUDIES
    from unalike.studies.results import FOLDER
    from unalike.studies.run_study import missing

    rows = []
    for study in STUDIES.values():
        counts = []
        for name, scale in study.scales.items():
            cells = scale.cells
            done = len(cells) - len(missing(cells, FOLDER / study.name / name))
            counts.append(f"{done}/{len(cells)}")
        rows.append([study.name, study.title, *counts])
    tables(["study", "content", "smoke", "small", "paper"], rows, "Studies, with results stored / cells", words=2)


@app.command("run")
def run_study(
    name: Study,
    scale: ScaleName = "smoke",
    data_dir: o.DataDir = None,
    out: Results = None,
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
    from unalike.experiments.compare import read_seeds
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


@app.command("report")
def report_study(name: Study, scale: ScaleName = "smoke", out: Results = None) -> None:
    """Print the tables of a study and the verdicts on its claims, and draw its figures.

    \b
    unalike study report niid-bench-fcube --scale small
    """
    from unalike.studies.catalogue import study
    from unalike.studies.report import write_report
    from unalike.studies.results import FOLDER

    folder = (out or FOLDER) / name / scale
    text, files = write_report(study(name), scale, folder)
    print(text)
    for file in files:
        print(f"figure: {file.resolve()}")


@app.command("ledger")
def write_ledger(
    out: Results = None,
    file: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/reproduction.md"),
) -> None:
    """Write the ledger: every claim with the verdict that the stored results give.

    \b
    unalike study ledger --file ledger.md
    """
    from unalike._utils.tensor_files import write_bytes
    from unalike.studies.catalogue import STUDIES
    from unalike.studies.ledger import page
    from unalike.studies.results import FOLDER

    write_bytes(file, page(STUDIES.values(), out or FOLDER).encode())
    print(f"ledger: {file.resolve()}")
