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
from unalike_studies.ledger import Entry, claims_rows, cost_of
from unalike_studies.result_files import estimates, read
from unalike_studies.results import Results
from unalike_studies.study import DrawnLayout, Study


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
        cells = []
        for row in body:
            cells.append([_cell(text) for text in row])
        return Table(self.title, head, cells)


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
            f"{folder} holds no result of {study.name}; "
            f"run `unalike study run {study.name} --scale {scale}`"
        )
    about = _about(study, scale, results)
    parts = _parts(study, scale, results)
    cost = cost_of(study.scale(scale), results, estimates(folder))

    heading = f"# {study.name}, scale {scale}"
    tables = [f"## {part.title}\n\n{markdown(part.rows)}" for part in parts]
    paragraphs = [heading, f"{study.title}.", *about, *tables, cost]
    text = "\n\n".join(paragraphs) + "\n"
    write_bytes(folder / "report.md", text.encode())

    page = fill(
        "study.html.j2",
        title=study.title,
        warnings=[],
        kind=f"Study {study.name}, scale {scale}",
        about=about,
        parts=parts,
        spent=cost,
    )
    files = [write_text(page, folder / "report.html")]
    for part in parts:
        if part.panel is not None:
            figure = part.panel.views[0].figure
            files += write(figure, part.panel.key, folder / "figures")
    return text, files


def _about(study: Study, scale: str, results: Results) -> list[str]:
    """The paragraphs before the tables."""
    paragraphs = [f"{study.paper}."]
    if study.notes:
        paragraphs.append(study.notes)
    reduced = study.scale(scale).reduced
    if reduced:
        paragraphs.append(f"Reduced: {reduced}.")
    thinnings = {cell.recorded.get("thinned") for cell in results.cells}
    what_is_kept = sorted(thinned for thinned in thinnings if thinned)
    if what_is_kept:
        paragraphs.append(f"Of recorded numbers the results keep {', or '.join(what_is_kept)}.")
    return paragraphs


def _parts(study: Study, scale: str, results: Results) -> list[Part]:
    """The sections: one for each layout, the warnings of the cells, and the claims."""
    # Layouts may show other columns than the stored ones; claims name the columns they mean.
    shown = results.instead(study.instead)
    parts = []
    for layout in study.layouts:
        panel = _panel(layout, shown) if isinstance(layout, DrawnLayout) else None
        parts.append(Part(layout.title, layout.table(shown), panel))

    counts_by_warning = Counter(note for cell in results.cells for note in cell.notes)
    if counts_by_warning:
        rows = [["cells", "warning"]]
        for warning, count in counts_by_warning.items():
            rows.append([f"{count} of {len(results)}", warning])
        parts.append(Part("Warnings", rows))

    if study.claims:
        entries = [Entry(study, claim, scale, claim.finding(results)) for claim in study.claims]
        parts.append(Part("Claims", claims_rows(entries)))
    return parts


def _panel(layout: DrawnLayout, results: Results) -> Panel:
    """The figure of a layout, for wide and narrow pages."""
    figure = styled(layout.figure(results))
    description = f"{layout.title}; the table has its numbers."
    view = View(layout.title, figure, description, narrow=replace(figure, in_a_row=1))
    return Panel(layout.name, layout.title, [view], [])


def _cell(text: object) -> TableCell:
    """A cell that is sorted by its number, if it begins with one."""
    value: float | str = "" if text is None else str(text)
    shown = str(value)
    with suppress(ValueError, IndexError):
        value = float(shown.split()[0])
    return TableCell(shown, math.nan if shown == "-" else value)
