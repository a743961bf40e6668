"""The report of one study: its tables, the findings on its claims, and its figures, as Markdown and as a page."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.reporting.html import fill, write_text
from unalike.reporting.panels import Panel, View
from unalike.reporting.table import Table, TableCell
from unalike_studies.layouts.looks import styled, write
from unalike_studies.layouts.tables import markdown
from unalike_studies.ledger import Entry, claims_rows, spent
from unalike_studies.result_files import estimates, read
from unalike_studies.results import Results
from unalike_studies.study import Drawn, Study


@dataclass(frozen=True)
class Part:
    """A section of a report: a table, of which the first row is the heading, and its figure if it has one."""

    title: str
    rows: Sequence[Sequence[str]]
    panel: Panel | None = None

    @property
    def table(self) -> Table:
        """The table for a page."""
        head, *body = self.rows
        return Table(self.title, head, [[_cell(text) for text in row] for row in body])


def write_report(study: Study, scale: str, folder: Path) -> tuple[str, list[Path]]:
    """Write report.md, report.html and the figures of a study into its folder of results.

    Returns:
        The text of the report, and the files of the page and of the figures.

    Raises:
        UnalikeError: the folder has no result of the study.
    """
    results = read(folder, study.scale(scale).cells)
    if not len(results):
        raise UnalikeError(
            f"{folder} holds no result of {study.name}; run `unalike study run {study.name} --scale {scale}`"
        )
    about, parts = _about(study, scale, results), _parts(study, scale, results)
    cost = spent(study.scale(scale), results, estimates(folder))
    tables = [f"## {part.title}\n\n{markdown(part.rows)}" for part in parts]
    text = (
        "\n\n".join([f"# {study.name}, scale {scale}", f"{study.title}.", *about, *tables, cost])
        + "\n"
    )
    write_bytes(folder / "report.md", text.encode())
    kind = f"Study {study.name}, scale {scale}"
    page = fill(
        "study.html.j2",
        title=study.title,
        warnings=[],
        kind=kind,
        about=about,
        parts=parts,
        spent=cost,
    )
    files = [write_text(page, folder / "report.html")]
    for part in parts:
        if part.panel is not None:
            files += write(part.panel.views[0].figure, part.panel.key, folder / "figures")
    return text, files


def _about(study: Study, scale: str, results: Results) -> list[str]:
    """The paragraphs before the tables."""
    reduced = study.scale(scale).reduced
    kept = sorted(
        {cell.recorded["thinned"] for cell in results.cells if cell.recorded.get("thinned")}
    )
    recorded = f"Of recorded numbers the results keep {', or '.join(kept)}." if kept else ""
    return list(
        filter(None, [f"{study.paper}.", study.notes, reduced and f"Reduced: {reduced}.", recorded])
    )


def _parts(study: Study, scale: str, results: Results) -> list[Part]:
    """The sections: one for each layout, the warnings of the cells, and the claims."""
    shown, parts = results.instead(study.instead), list[Part]()
    for layout in study.layouts:
        panel = None
        if isinstance(layout, Drawn):
            figure, alt = (
                styled(layout.figure(shown)),
                f"{layout.title}; the table has its numbers.",
            )
            view = View(layout.title, figure, alt, narrow=replace(figure, in_a_row=1))
            panel = Panel(layout.name, layout.title, [view], [])
        parts.append(Part(layout.title, layout.table(shown), panel))
    warned = Counter(note for cell in results.cells for note in cell.notes)
    if warned:
        parts.append(
            Part(
                "Warnings",
                [["cells", "warning"], *([f"{n} of {len(results)}", t] for t, n in warned.items())],
            )
        )
    if study.claims:
        unlike = study.scale(scale).unlike
        entries = [
            Entry(study, claim, scale, claim.finding(results, unlike)) for claim in study.claims
        ]
        parts.append(Part("Claims", claims_rows(entries)))
    return parts


def _cell(text: object) -> TableCell:
    """A cell that is sorted by its number, if it begins with one."""
    value: float | str = "" if text is None else str(text)
    shown = str(value)
    with suppress(ValueError, IndexError):
        value = float(shown.split()[0])
    return TableCell(shown, math.nan if shown == "-" else value)
