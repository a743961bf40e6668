"""The report of one study: its tables, the findings on its claims, and its figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike_studies.layouts.looks import write
from unalike_studies.layouts.tables import markdown
from unalike_studies.ledger import Entry, claims_table, spent
from unalike_studies.result_files import estimates, read
from unalike_studies.results import Results
from unalike_studies.study import Drawn, Study


def write_report(study: Study, scale: str, folder: Path) -> tuple[str, list[Path]]:
    """Write report.md and the figures of a study into its folder of results.

    Returns:
        The text of the report, and the files of the figures.

    Raises:
        UnalikeError: the folder has no result of the study.
    """
    results = read(folder, study.scale(scale).cells)
    if not len(results):
        raise UnalikeError(
            f"{folder} holds no result of {study.name}; run `unalike study run {study.name} --scale {scale}`"
        )
    text = render(study, scale, results, estimates(folder))
    write_bytes(folder / "report.md", text.encode())
    shown = results.instead(study.instead)
    figures = {layout.name: layout.figure(shown) for layout in study.layouts if isinstance(layout, Drawn)}
    return text, [file for name, figure in figures.items() for file in write(figure, name, folder / "figures")]


def render(study: Study, scale: str, results: Results, estimated: dict[str, float]) -> str:
    """The report as Markdown."""
    grid = study.scale(scale)
    lines = [f"# {study.name}, scale {scale}", "", f"{study.title}. {study.paper}.", ""]
    lines += [study.notes, ""] if study.notes else []
    lines += [f"Reduced: {grid.reduced}.", ""] if grid.reduced else []
    for layout in study.layouts:
        lines += [f"## {layout.title}", "", markdown(layout.table(results.instead(study.instead))), ""]
    reductions = {cell.recorded["thinned"] for cell in results.cells if cell.recorded.get("thinned")}
    lines += [f"Of recorded numbers the results keep {', or '.join(sorted(reductions))}.", ""] if reductions else []
    warned = Counter(note for cell in results.cells for note in cell.notes)
    if warned:
        shown_notes = [f"- {note} ({count} of {len(results)} cells)" for note, count in warned.items()]
        lines += ["## Warnings", "", *shown_notes, ""]
    if study.claims:
        entries = [Entry(study, claim, scale, claim.finding(results, grid.unlike)) for claim in study.claims]
        lines += ["## Claims", "", claims_table(entries), ""]
    lines += [spent(grid, results, estimated), ""]
    return "\n".join(lines)
