"""`unalike partition`: look at a partition before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    figure: Annotated[Path | None, typer.Option(help="Draw who has how much of what (.png, .svg, .pdf).")] = None,
    export: Annotated[Path | None, typer.Option(help="Write index files for other tools into this folder.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the plan in this file, for --plan.")] = None,
) -> None:
    """Divide a data set and show how much the clients differ.

    \b
    unalike partition --data digits --partition 'pathological(classes=2)' --clients 20
    unalike partition --data digits --partition 'zipf(size=100)' --save plan.json
    """
    from unalike._utils.errors import UnalikeError
    from unalike._utils.tensor_files import writing
    from unalike.cli.partition_bubbles import bubbles
    from unalike.cli.terminal_tables import console

    if plan is not None and seed is not None:
        raise UnalikeError(
            f"found seed={seed} beside a plan: it would change nothing; leave it out, or make the plan with it: "
            "`unalike partition --save`"
        )
    people = o.divided(o.dataset(data, data_dir)[0], partition, plan, clients, seed or 0, val)
    if people.plan is None:
        raise RuntimeError("a partitioned population carries its plan")
    screen = console()
    screen.print(people.plan.show(people.classes))
    if people.classes is not None:
        print(bubbles(people.plan.counts, people.classes, screen.width))
    if figure is not None:
        from unalike.data.partitioning import partition_figures

        drawn = partition_figures.bubbles(people.plan, people.classes)
        known = drawn.canvas.get_supported_filetypes()
        if figure.suffix[1:].lower() not in known:
            raise UnalikeError(f"{figure} cannot be drawn; expected a name that ends in .{', .'.join(sorted(known))}")
        with writing(figure):
            drawn.savefig(figure, bbox_inches="tight", dpi=150)
        print(f"figure: {figure.resolve()}")
    if export is not None:
        from unalike.data.partitioning.partition_files import write_partition

        with writing(export):
            write_partition(people.plan, export)
        print(f"index files: {export.resolve()}")
    if save is not None:
        people.plan.save(save)
        print(f"plan: {save.resolve()}")
