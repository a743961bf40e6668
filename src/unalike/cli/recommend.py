"""`unalike recommend`: methods to try on some clients, learnt from stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli import options as o

NAME = "recommend"


@o.uses_flags(clients=data_flags.clients, work=o.work)
def command(
    *,
    clients: data_flags.DataFlags,
    seed: Annotated[int, typer.Option(help="Seed of the partition and of the diagnosis.")] = 0,
    model: Annotated[str, typer.Option(help="Model that shall be trained (see `unalike list models`).")] = "mlp",
    participation: Annotated[float, typer.Option(help="Share of clients in a round.")] = 1.0,
    candidates: Annotated[
        str, typer.Option(help="shared: methods with one model for all clients; any: all methods.")
    ] = "any",
    objective: Annotated[
        str, typer.Option(help="accuracy, or worst_decile: that of the worst tenth of the clients.")
    ] = "accuracy",
    work: Any,
    out: Annotated[Path | None, typer.Option(help="Write the page and the numbers into this folder.")] = None,
) -> None:
    """Recommend methods for clients: a short list with expected gain, risk and cost.

    \b
    unalike recommend --data digits --partition 'dirichlet(alpha=0.1)' --clients 10
    unalike recommend --data visits.csv --target outcome --group hospital --candidates shared --out advice
    unalike recommend --data digits --clients 20 --participation 0.2 --objective worst_decile

    The clients are diagnosed without training, and compared with the stored tasks on which many methods were run. The last
    sentence says how good such advice was on data sets that it had not seen. Then compare the short list on your own data: the
    command for it is printed.
    """
    from unalike.cli.terminal_tables import tables
    from unalike.recommendation.content import COLUMNS, row_texts
    from unalike.recommendation.recommend import recommend_for_population
    from unalike.recommendation.task_features import Conditions

    if clients.val:
        raise UnalikeError(f"found --val {clients.val}: a recommendation reads training samples alone; leave it out")
    loaded = clients.load()
    population = clients.divide(loaded.dataset, seed)
    division = clients.resolved(loaded.dataset).get("partition") or f"plan {clients.plan}"
    options = {"model": model, "participation": None if participation == 1 else participation, "seed": seed or None}
    repeat = _command(NAME, clients, options | {"candidates": candidates, "objective": objective}, work)
    found = recommend_for_population(
        population,
        f"{clients.data}, {division}",
        Conditions(participation, work, model),
        candidates=candidates,
        objective=objective,
        seed=seed,
        command=repeat,
    )
    print("\n".join(found.findings), end="\n\n")
    tables(COLUMNS, [list(row_texts(one)) for one in found.advice])
    for note in found.notes:
        print(f"note: {note}")
    specs = ["fedavg", *(one.spec for one in found.short_list)]
    if len(specs) > 1:
        same = {"method": specs} | options
        goal = {"objective": objective if candidates == "shared" else f"personal_{objective}"}
        print(f"\ncompare, with one learning rate: {_command('compare', clients, same, work)}")
        print(f"or choose a learning rate for each first: {_command('tune', clients, same | goal, work)}")
    if out is not None:
        print(f"page: {found.save(out).resolve()}")


def _command(name: str, clients: data_flags.DataFlags, options: dict[str, Any], work: Any) -> str:
    """A command line on the same clients, with the options of local training that differ from their defaults."""
    from unalike.experiments.command_line import command_line

    return command_line(name, clients.kept | options | o.changed_work(work))
