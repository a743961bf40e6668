"""`unalike diagnose`: measure the kinds of heterogeneity of clients."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unalike.cli import data_flags
from unalike.cli import flags as f

NAME = "diagnose"


@f.uses_flags(clients=data_flags.training_clients, seed=f.seed, model=f.model, work=f.work)
def command(
    *,
    clients: data_flags.DataFlags,
    seed: int,
    rounds: Annotated[
        int,
        typer.Option(
            help="Rounds of FedAvg for the numbers about training, such as 5; 0 trains nothing.",
            min=0,
        ),
    ] = 0,
    model: str,
    work: Any,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the page and the numbers into this folder.", parser=f.path, metavar="PATH"
        ),
    ] = None,
    as_json: f.AsJson = False,
) -> None:
    """Measure how the clients' data differs: labels, sizes, features, concepts, clusters.

    \b
    unalike diagnose --data digits --partition 'dirichlet(alpha=0.1)' --clients 10
    unalike diagnose --data visits.csv --target outcome --group hospital --rounds 5 --out diagnosis
    unalike diagnose --data digits --partition 'rotation(degrees=90)' --clients 12 --out diagnosis

    Each number comes with a 95 % interval over other clients of the same kind, and with its reference scale: the same number for
    known divisions of the same samples among as many clients. --rounds and the options of local training add measures of client
    drift. With --out, a page with charts and a file of all numbers are written. The sites of a federation make the same page
    with `unalike federation init ... --method diagnosis`, and their samples stay where they are.
    """
    from unalike._utils.progress import progress_bar
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.diagnosis.diagnose import diagnose_population
    from unalike.diagnosis.findings import MEASURE_COLUMNS
    from unalike.diagnosis.training import TRAINED_DIVISIONS, TrainingRequest
    from unalike.reporting.table import Table

    population, title = clients.population_and_title(seed)
    # the command that the page shows has what differs from the defaults; of training only if there is some
    if rounds:
        options = {"rounds": rounds, "seed": seed or None, "model": model}
        command_line = clients.command(NAME, options, work)
    else:
        command_line = clients.command(NAME, {"rounds": None, "seed": seed or None})
    with progress_bar(rounds * TRAINED_DIVISIONS, "training", lines=True) as progress:
        diagnosis = diagnose_population(
            population,
            title,
            seed=seed,
            training=TrainingRequest(rounds, model, work, progress) if rounds else None,
            command=command_line,
        )
    if as_json:
        print(diagnosis.to_json())
    else:
        sentences([*diagnosis.findings, ""])
        measures = Table.of("", MEASURE_COLUMNS, diagnosis.measures.values())
        tables(measures.columns, measures.texts)
        sentences([], diagnosis.notes)
    if out is not None:
        typer.echo(f"page: {diagnosis.save(out).resolve()}", err=as_json)
