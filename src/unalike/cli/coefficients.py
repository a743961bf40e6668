"""`unalike coefficients`: the table of a linear, logistic, Poisson or Cox model that `newton` fitted."""

from pathlib import Path
from typing import Annotated

import typer

from unalike.cli.flags import AsJson, TableOut

NAME = "coefficients"


def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of `unalike run --out`, or of a federation.")
    ],
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Print the coefficients of a linear, logistic, Poisson or Cox model, with standard errors, p, intervals and ratios.

    The run has to be one of the method newton or newton_own_intercepts, which fits the model to the training samples of all clients
    as if they were pooled. Coefficients are in the units of the table's columns.

    \b
    unalike run --data visits.csv --target died --group hospital --method newton --model logistic --out runs/died
    unalike coefficients runs/died
    unalike coefficients runs/died --out coefficients.csv
    """
    import warnings

    from unalike.cli.finished_run import model_folder
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.reporting.coefficients import as_table, page, reading
    from unalike.reporting.html import write_text
    from unalike.runtime.results.finished_run import open_run

    run = open_run(model_folder(folder))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        coefficients = run.coefficients()
    notes = [str(found.message) for found in caught if found.category is UserWarning]

    about = coefficients.attrs["about"]
    if as_json:
        print(coefficients.to_json(orient="records", indent=1, double_precision=15))
    else:
        table = as_table(coefficients)
        tables(table.columns, table.texts, title=about, words=table.words)
        sentences(reading(coefficients), notes)
    if out is not None:
        title = f"{', '.join(coefficients['outcome'].unique())}: {run.config['data']['name']}"
        text = page(coefficients, title, about, notes)
        if out.suffix == ".csv":
            text = coefficients.to_csv(index=False)
        typer.echo(f"coefficients: {write_text(text, out).resolve()}", err=as_json)
