"""`unalike partition`: show a partition without training."""

import json
from pathlib import Path
from typing import Annotated

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli.flags import AsJson, uses_flags

NAME = "partition"


@uses_flags(clients=data_flags.clients)
def command(
    *,
    clients: data_flags.DataFlags,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the partition; 0 unless given.", show_default=False)
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the samples by client and class (.png, .svg, .pdf).")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write index files for other tools into this folder.")
    ] = None,
    as_json: AsJson = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the plan to this file, for --plan.")
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
    population = clients.divide(clients.load().dataset, seed or 0)
    assert population.plan is not None
    screen = console()
    if as_json:
        print(json.dumps(population.plan.summary(population.classes), indent=1))
    else:
        screen.print(population.plan.show(population.classes))
        if population.classes is not None:
            print(bubbles(population.plan.counts, population.classes, screen.width))
    if figure is not None:
        from unalike.reporting.charts import matplotlib_figures
        from unalike.reporting.figures import division

        drawn = matplotlib_figures.draw(
            division(population, f"{population.plan.data}: {population.plan.spec}")
        )
        endings = drawn.canvas.get_supported_filetypes()
        if figure.suffix[1:].lower() not in endings:
            raise UnalikeError(
                f"{figure} cannot be drawn; expected a file name that ends in .{', .'.join(sorted(endings))}"
            )
        with writing(figure):
            drawn.savefig(figure, bbox_inches="tight", dpi=150)
        typer.echo(f"figure: {figure.resolve()}", err=as_json)
    if export is not None:
        from unalike.data.partitioning.partition_files import write_partition

        with writing(export):
            write_partition(population.plan, export)
        typer.echo(f"index files: {export.resolve()}", err=as_json)
    if save is not None:
        population.plan.save(save)
        typer.echo(f"plan: {save.resolve()}", err=as_json)
