"""`unalike study list`: list the studies and their stored results."""

from __future__ import annotations

NAME = "list"


def command() -> None:
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
