"""`unalike partition`: show a partition without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import options as o

NAME = "partition"


def command(
    data: o.Data = "digits",
    data_dir: o.DataDir = None,
    partition: o.Partition = "dirichlet(alpha=0.1)",
    clients: o.Clients = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the partition; 0 unless given.", show_default=False)] = None,
    val: o.Val = 0.0,
    plan: o.Plan = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the samples by client and class (.png, .svg, .pdf).")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write index files for other tools into this folder.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan to this file, for --plan.")] = None,
) -> None:
    """Divide a data set and show how much the clients differ.

    \b
    unalike partition --data digits --partition 'pathological(classes=2)' --clients 20
    unalike partition --data digits --partition 'zipf(size=100)' --save plan.json
    """
    from unalike._utils.tensor_files import writing
    from unalike.cli.partition_bubbles import bubbles
    from unalike.cli.terminal_tables import console

    if plan is not None and seed is not None:
        raise UnalikeError(
            f"found seed={seed} beside a plan: it has no effect; leave it out, or make the plan with it: "
            "`unalike partition --save`"
        )
    population = o.divided(o.dataset(data, data_dir)[0], partition, plan, clients, seed or 0, val)
    if population.plan is None:
        raise RuntimeError("a partitioned population carries its plan")
    screen = console()
    screen.print(population.plan.show(population.classes))
    if population.classes is not None:
        print(bubbles(population.plan.counts, population.classes, screen.width))
    if figure is not None:
        from unalike.data.partitioning import partition_figures

        drawn = partition_figures.bubbles(population.plan, population.classes)
        known = drawn.canvas.get_supported_filetypes()
        if figure.suffix[1:].lower() not in known:
            raise UnalikeError(
                f"{figure} cannot be drawn; expected a file name that ends in .{', .'.join(sorted(known))}"
            )
        with writing(figure):
            drawn.savefig(figure, bbox_inches="tight", dpi=150)
        print(f"figure: {figure.resolve()}")
    if export is not None:
        from unalike.data.partitioning.partition_files import write_partition

        with writing(export):
            write_partition(population.plan, export)
        print(f"index files: {export.resolve()}")
    if save is not None:
        population.plan.save(save)
        print(f"plan: {save.resolve()}")
