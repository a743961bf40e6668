"""`unalike report`: write the HTML report, a table for a paper, or figures."""

from pathlib import Path
from typing import Annotated

import typer

from unalike._utils.errors import UnalikeError

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
    clients: Annotated[
        bool,
        typer.Option(
            "--clients",
            help="The table of the clients with every method, instead of that of the methods.",
        ),
    ] = False,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary", help="One page for a board: decision, who gains and loses, limits, cost."
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
    unalike report results --format markdown
    unalike report mild severe --out both.html --figures figures

    Several folders, and the finished runs of a federation, are joined: runs on the same clients become one comparison, methods are
    ranked over partitions of one study, and results that cannot be compared are shown side by side with the reason.
    """
    from unalike.cli.finished_run import run_folders
    from unalike.comparison.joining.joined import join
    from unalike.comparison.open_comparison import open_comparison
    from unalike.reporting.export import export, export_clients, format_of
    from unalike.reporting.html import write_text

    format = format or ("html" if out is None else format_of(out))
    if format != "html" and (target, title, summary) != (None, None, False):
        flag = "--target" if target is not None else "--title" if title is not None else "--summary"
        raise UnalikeError(
            f"found {flag} with --format {format}: only the html page uses {flag}; leave one of the two out"
        )
    runs = [run for folder in folders for run in run_folders(folder)]
    joined = join(
        [(str(run), open_comparison(run).judged_by(smallest_effect, across)) for run in runs]
    )
    contents = [(block.name, block.comparison.content()) for block in joined.blocks]
    if figures is not None:
        from unalike.reporting.paper_figures import save

        typer.echo(f"figures: {save(contents, joined.ranks, figures).resolve()}", err=True)
    if clients and format == "html":
        raise UnalikeError(
            "found --clients with --format html, which has these tables anyway; give --format markdown, csv or latex"
        )
    if format != "html":
        text = export_clients(contents, format) if clients else export(contents, format)
        if out is None:
            print(text, end="")
        else:
            print(f"table: {write_text(text, out).resolve()}")
        return
    home = Path() if len(folders) > 1 else folders[0]
    kind = "summary" if summary else "report"
    print(
        f"{kind}: {write_text(joined.page(title, target, summary), out or home / f'{kind}.html').resolve()}"
    )
