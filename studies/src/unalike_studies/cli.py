"""`unalike study`: the commands of the program for studies, added through the entry-point group `unalike.commands`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unalike.cli import flags as f
from unalike.cli.help_pages import CommandApp

if TYPE_CHECKING:
    from unalike_studies.cells import StudyCell

HELP = """Published tables and figures as experiments, with verdicts on the claims of their papers.

\b
unalike study list
unalike study run fedmix-quadratic
unalike study report fedmix-quadratic
"""

Name = Annotated[str, typer.Argument(help="Name of a study (see `unalike study list`).")]
Names = Annotated[
    list[str],
    typer.Argument(
        help="Names of studies (see `unalike study list`), or patterns such as 'fedlws-*'."
    ),
]
ScaleName = Annotated[
    str, typer.Option(help="smoke (under a minute), small, or paper (the paper's settings).")
]
Results = Annotated[
    Path | None,
    typer.Option(help="Folder of results; studies/results unless given.", show_default=False),
]

app = CommandApp(help=HELP)


@app.command("list")
def list_studies() -> None:
    """List the studies, and how many of their cells have a stored result.

    \b
    unalike study list
    """
    from unalike.cli.terminal_tables import tables
    from unalike_studies.catalogue import STUDIES
    from unalike_studies.result_files import FOLDER
    from unalike_studies.run_study import missing

    rows = []
    for study in STUDIES.values():
        counts = []
        for name, scale in study.scales.items():
            cells = scale.cells
            to_run = missing(cells, FOLDER / study.name / name)
            counts.append(f"{len(cells) - len(to_run)}/{len(cells)}")
        rows.append([study.name, study.title, *counts])
    title = f"Studies, with results stored in {FOLDER.resolve()} / cells"
    tables(["study", "content", "smoke", "small", "paper"], rows, title, words=2)


@app.command()
@f.uses_flags(data_dir=f.data_dir, device=f.device)
def run(
    names: Names,
    scale: ScaleName = "smoke",
    *,
    data_dir: Path | None,
    out: Results = None,
    jobs: Annotated[
        int, typer.Option(help="Cells that run at a time, each in a process of its own.")
    ] = 1,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Run these methods only, by their labels; repeat the flag.", show_default=False
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help="Run these settings only, by their labels; repeat the flag.", show_default=False
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Run these seeds only: 3 for the first three, or 0,1,4.", show_default=False
        ),
    ] = None,
    device: str,
    again: Annotated[
        bool, typer.Option("--again", help="First delete the stored results of these cells.")
    ] = False,
    dry_run: f.DryRun = False,
) -> None:
    """Run the cells of studies that have no stored result, and store each as it ends.

    An interrupted study continues from the stored results, on any machine. A cell that several studies share is run once.

    \b
    unalike study run niid-bench-fcube
    unalike study run local-statistics-table2-linear --scale small --jobs 2
    unalike study run 'fedlws-*' --scale small --jobs 2      # all studies of a paper
    unalike study run niid-bench-fashion --scale paper --data-dir data --dry-run
    unalike study run fedpake-table1 --scale paper --device cuda
    """
    from unalike.comparison.seed_plan import read_numbers
    from unalike_studies.catalogue import matching
    from unalike_studies.result_files import ALL_FILES, FOLDER, estimates, gather
    from unalike_studies.run_study import estimate, missing, run_cells

    # The cells to choose from, by study.
    root = out or FOLDER
    cells_of = {study.name: study.scale(scale).cells for study in matching(names)}
    cells_of = _with_label(cells_of, "method", method)
    cells_of = _with_label(cells_of, "setting", setting)
    numbers = None if seeds is None else read_numbers(seeds)

    # The cells that have no result. Several studies may share one, which then runs once:
    # `expected_seconds` has one entry a digest.
    todo: dict[Path, list[StudyCell]] = {}
    expected_seconds: dict[str, float | None] = {}
    for name, cells in cells_of.items():
        folder = root / name / scale
        if numbers is not None:
            cells = [cell for cell in cells if cell.seed in numbers]
        if device != "cpu":
            cells = [replace(cell, options={**cell.options, "device": device}) for cell in cells]
        if again and not dry_run:
            gather(folder, ALL_FILES, without={cell.digest for cell in cells})
        to_run = missing(cells, folder)
        todo[folder] = to_run
        print(f"{name}, {scale}: {len(cells) - len(to_run)} of {len(cells)} cells have results")
        if to_run and (dry_run or scale == "paper"):
            estimate(to_run, folder, data_dir)
        known_seconds = estimates(folder)
        for cell in to_run:
            expected_seconds[cell.digest] = known_seconds.get(cell.kind)
    total = sum(len(to_run) for to_run in todo.values())
    print(f"{total} results are missing; {len(expected_seconds)} cells to run")
    if expected_seconds and None not in expected_seconds.values():
        seconds = sum(filter(None, expected_seconds.values()))
        print(f"estimated: {seconds:,.0f} seconds, one cell at a time")
    if dry_run:
        return

    # With `--again`, results of other studies are not copied either.
    copy_from = None if again else root
    new_results = run_cells(todo, root=copy_from, data_dir=data_dir, jobs=jobs)
    try:
        for number, result in enumerate(new_results, 1):
            text = f"{result.method}, {result.setting}, seed {result.seed}: {result.seconds:.0f} s"
            print(f"{number}/{total} {text}", flush=True)
    except KeyboardInterrupt:
        print(
            "the results of ended cells are stored; the same command continues from here",
            file=sys.stderr,
        )
        raise
    for folder in todo:
        print(f"results: {folder.resolve()}")


@app.command("gather")
def gather_results(names: Names, scale: ScaleName = "small", out: Results = None) -> None:
    """Join the result files of each study into one, without the results of cells that no longer exist.

    \b
    unalike study gather 'fedlws-*'
    """
    from unalike_studies.catalogue import matching
    from unalike_studies.result_files import ALL_FILES, FOLDER, digests, gather

    for study in matching(names):
        folder = (out or FOLDER) / study.name / scale
        stored = digests(folder)
        of_cells = {cell.digest for cell in study.scale(scale).cells}
        outdated = stored - of_cells
        gather(folder, ALL_FILES, without=outdated)
        print(
            f"{study.name}, {scale}: {len(stored & of_cells)} results, "
            f"{len(outdated)} of other cells left out"
        )


@app.command()
def report(name: Name, scale: ScaleName = "smoke", out: Results = None) -> None:
    """Print the tables of a study and the verdicts on its claims, and draw its figures.

    \b
    unalike study report niid-bench-fcube --scale small
    """
    from unalike_studies.catalogue import study
    from unalike_studies.report import write_report
    from unalike_studies.result_files import FOLDER

    folder = (out or FOLDER) / name / scale
    text, files = write_report(study(name), scale, folder)
    print(text)
    for file in files:
        kind = "page" if file.suffix == ".html" else "figure"
        print(f"{kind}: {file.resolve()}")


@app.command()
def ledger(
    out: Results = None,
    folder: Annotated[Path, typer.Option(help="The folder of the pages to write.")] = Path("docs"),
) -> None:
    """Write the ledger: every claim with the verdict that the stored results give, on three pages.

    \b
    unalike study ledger --folder pages
    """
    from unalike._utils.tensor_files import write_bytes
    from unalike_studies.catalogue import STUDIES
    from unalike_studies.ledger import pages
    from unalike_studies.result_files import FOLDER

    for name, text in pages(STUDIES.values(), out or FOLDER).items():
        write_bytes(folder / name, text.encode())
        print(f"ledger: {(folder / name).resolve()}")


def _with_label(
    cells_of: dict[str, list[StudyCell]], kind: str, labels: list[str] | None
) -> dict[str, list[StudyCell]]:
    """The cells whose method or setting (`kind`) has one of these labels. Raises `UnalikeError` if no study has a label."""
    from unalike._utils.errors import unknown

    if labels is None:
        return cells_of
    known_labels = {getattr(cell, kind) for cells in cells_of.values() for cell in cells}
    for label in labels:
        if label not in known_labels:
            studies = ", ".join(cells_of)
            raise unknown(f"{kind} of {studies}", label, known_labels)
    chosen = {}
    for name, cells in cells_of.items():
        chosen[name] = [cell for cell in cells if getattr(cell, kind) in labels]
    return chosen
