"""`unalike report`: write the HTML report, a table for a paper, or figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unalike._utils.errors import UnalikeError

if TYPE_CHECKING:
    from unalike.comparison.joining.joined import Joined

NAME = "report"


def command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of `unalike compare --out`, `unalike run --out` or federations; several are joined."
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="html, a table (markdown, csv or latex) or json; all but html are printed unless --out is given. By the ending of "
            "--out (.md, .tex, .csv, .json), or html."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Default for html: report.html or summary.html in the folder, or in the current folder for several."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Headline of the page.")] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Compare the costs of reaching this score (0.8, or an RMSE); the baseline's final mean unless given."
        ),
    ] = None,
    smallest_effect: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Smallest difference that matters (0.005 is half a point), for the verdicts.",
        ),
    ] = None,
    across: Annotated[
        str | None,
        typer.Option(
            help="Score that decides: pooled, clients or worst (as for compare); that of the comparison unless given."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Method that the others are compared with; that of each comparison unless given."
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="The table to write: methods (a row for each; the default), clients (every client with every method) or wide "
            "(for papers: methods by rows, the data of the folders by columns, mean ± sd in a cell)."
        ),
    ] = None,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary", help="One page for a board: decision, who gains and loses, limits, cost."
        ),
    ] = False,
    checklist: Annotated[
        bool,
        typer.Option(
            "--checklist",
            help="The items of TRIPOD+AI, answered as far as the folder knows, as html or with --format markdown.",
        ),
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures as SVG and PDF into this folder.")
    ] = None,
) -> None:
    """Write the report of comparisons or runs.

    The report is one HTML file that needs no network. Other formats give a table; json gives the decision, too.

    \b
    unalike report results
    unalike report results --out for-the-board.html --title 'Five hospitals'
    unalike report results --summary
    unalike report results --checklist
    unalike report results --format markdown
    unalike report mild severe --out both.html --figures figures
    unalike report mild severe --table wide --format latex
    unalike report mild severe --baseline fedprox

    Several folders, and the finished runs of a federation, are joined: runs on the same clients become one comparison, methods are
    ranked over partitions of one study, and results that cannot be compared are shown side by side with the reason.
    """
    from unalike.cli.finished_run import run_folders
    from unalike.comparison.joining.joined import join
    from unalike.comparison.open_comparison import open_comparison
    from unalike.reporting.export import export_table, format_of
    from unalike.reporting.html import write_text

    format = format or ("html" if out is None else format_of(out))
    # a flag without effect is refused, so that nobody believes in it
    flags_of_page = {
        "--target": target is not None,
        "--title": title is not None,
        "--summary": summary,
    }
    for flag, is_given in flags_of_page.items():
        if is_given and format != "html":
            raise UnalikeError(
                f"found {flag} with --format {format}: only the html page uses {flag}; leave one of the two out"
            )

    if table is not None and format == "html":
        raise UnalikeError(
            f"found --table {table} with --format html, which has every table; give --format markdown, csv or latex"
        )

    # a folder may hold several runs, as that of a federation does
    runs = [run for folder in folders for run in run_folders(folder)]
    comparisons = []
    for run in runs:
        comparison = open_comparison(run).judged_by(smallest_effect, across)
        comparisons.append((str(run), comparison))
    joined = join(comparisons, baseline)
    if checklist:
        _write_checklist(joined, format, folders[0], out, title)
        return
    contents = [(block.name, block.comparison.content()) for block in joined.blocks]
    if figures is not None:
        from unalike.reporting.paper_figures import save

        written = save(contents, joined.ranks, figures)
        typer.echo(f"figures: {written.resolve()}", err=True)

    if format != "html":
        text = export_table(contents, table or "methods", format)
        if out is None:
            print(text, end="")
        else:
            print(f"table: {write_text(text, out).resolve()}")
        return
    kind = "summary" if summary else "report"
    if out is None:
        folder = Path() if len(folders) > 1 else folders[0]
        out = folder / f"{kind}.html"
    page = write_text(joined.page(title, target, summary), out)
    print(f"{kind}: {page.resolve()}")


def _write_checklist(
    joined: Joined, format: str, folder: Path, out: Path | None, title: str | None
) -> None:
    """Write or print the checklist of one comparison. Raises `UnalikeError` for several, and for other formats."""
    from unalike.reporting.checklist import checklist, page
    from unalike.reporting.html import write_text
    from unalike.reporting.table import markdown

    if len(joined.blocks) > 1 or format not in ("html", "markdown"):
        raise UnalikeError(
            f"found --checklist with {len(joined.blocks)} comparisons and --format {format}; expected one comparison, and html or "
            "markdown"
        )
    content = joined.blocks[0].comparison.content(title)
    if format == "markdown" and out is None:
        print(markdown(checklist(content)))
        return
    text = page(content) if format == "html" else markdown(checklist(content)) + "\n"
    print(f"checklist: {write_text(text, out or folder / 'checklist.html').resolve()}")
