"""`unalike partition`: show a partition without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli.flags import AsJson, path, uses_flags

if TYPE_CHECKING:
    from unalike.data.population import Population

NAME = "partition"


@uses_flags(clients=data_flags.clients)
def command(
    *,
    clients: data_flags.DataFlags,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the partition; 0 unless given.", show_default=False)
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Draw the samples by client and class (.png, .svg, .pdf).",
            parser=path,
            metavar="PATH",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write index files for other tools into this folder.", parser=path, metavar="PATH"
        ),
    ] = None,
    as_json: AsJson = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the plan to this file, for --plan.", parser=path, metavar="PATH"),
    ] = None,
) -> None:
    """Divide a data set and show how much the clients differ.

    \b
    unalike partition --data digits --partition 'pathological(classes=2)' --clients 20
    unalike partition --data digits --partition 'zipf(size=100)' --save plan.json
    unalike partition --data visits.csv --target outcome --group hospital
    """
    from unalike._utils.tensor_files import writing
    from unalike.cli.terminal_tables import bubbles, console

    if clients.plan is not None and seed is not None:
        raise UnalikeError(
            f"found seed={seed} beside a plan: it has no effect; leave it out, or make the plan with it: "
            "`unalike partition --save`"
        )
    dataset = clients.load().dataset
    population = clients.divide(dataset, seed or 0)
    plan = population.plan
    assert plan is not None
    screen = console()
    if as_json:
        print(json.dumps(plan.summary(population.classes), indent=1))
    else:
        screen.print(plan.show(population.classes))
        if population.classes is not None:
            print(bubbles(plan.counts, population.classes, screen.width))
    if figure is not None:
        _draw(population, figure)
        typer.echo(f"figure: {figure.resolve()}", err=as_json)
    if export is not None:
        from unalike.data.partitioning.partition_files import write_partition

        with writing(export):
            write_partition(plan, export)
        typer.echo(f"index files: {export.resolve()}", err=as_json)
    if save is not None:
        plan.save(save)
        typer.echo(f"plan: {save.resolve()}", err=as_json)


def _draw(population: Population, file: Path) -> None:
    """Draw the samples by client and class. Raises `UnalikeError` for a format that is not known."""
    from unalike._utils.tensor_files import writing
    from unalike.reporting.charts import matplotlib_figures
    from unalike.reporting.figures import division

    assert population.plan is not None
    title = f"{population.plan.data}: {population.plan.spec}"
    chart = matplotlib_figures.draw(division(population, title))
    formats = chart.canvas.get_supported_filetypes()
    if file.suffix[1:].lower() not in formats:
        raise UnalikeError(
            f"{file} cannot be drawn; expected a file name that ends in .{', .'.join(sorted(formats))}"
        )
    with writing(file):
        chart.savefig(file, bbox_inches="tight", dpi=150)
