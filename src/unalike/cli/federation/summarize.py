"""`unalike federation summarize`: summarize a site's table, so that the encoding can be agreed without a sample table."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli.flags import data_dir, uses_flags

NAME = "summarize"


@uses_flags(data_dir=data_dir, table=data_flags.table)
def command(
    data: Annotated[str, typer.Argument(help="The site's table, such as north.csv.")],
    *,
    table: dict[str, Any],
    data_dir: Path | None,
    least: Annotated[
        int,
        typer.Option(help="Fewest rows that a name or a number in the summary is about.", min=1),
    ] = 5,
    out: Annotated[Path, typer.Option(help="File for the summary.")] = Path("summary.json"),
) -> None:
    """Summarize a site's table for the encoding of a federation.

    The summary is a text file: read it, then send it to the coordinator.

    \b
    unalike federation summarize north.csv --target outcome --out north.json
    unalike federation summarize north.csv --target outcome --drop id --least 20 --out north.json
    unalike federation init hospitals --sites 3 --summary north.json --summary south.json --summary west.json

    It has the count, mean, squared deviations and quantiles of each column of numbers, the rows of each frequent category, and the
    names of the frequent classes. Rarer categories and classes stay at the site.
    """
    from unalike.data.sources.load import table_at
    from unalike.data.sources.table_summary import summarize

    path = table_at(data, data_dir)
    if path is None or not table.keys() & {"target", "time"}:
        missing = f"{data} is no table" if path is None else "found no --target"
        raise UnalikeError(
            f"{missing}; expected a table such as north.csv, and --target COLUMN, the column to predict"
        )
    summary = summarize(path, least=least, **table)
    summary.save(out)
    kinds = f"{len(summary.numbers)} columns of numbers, {len(summary.categories)} of categories"
    print(
        f"wrote {out.resolve()}: {summary.rows} training rows, {kinds}; read it before you send it"
    )
