"""`unalike recommend`: methods to try on some clients, learned from stored runs."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike.cli import data_flags
from unalike.cli import flags as f
from unalike.core.options import ModelOptions, RecommendationOptions, TrainingOptions

NAME = "recommend"


@f.uses_flags(
    clients=data_flags.trained,
    seed=f.seed,
    training=f.values_of(ModelOptions, TrainingOptions, only=("model", "participation")),
    asked=f.values_of(RecommendationOptions),
    work=f.work,
)
def command(
    *,
    clients: data_flags.DataFlags,
    seed: int,
    training: dict[str, Any],
    asked: dict[str, Any],
    work: Any,
    out: Annotated[
        Path | None, typer.Option(help="Write the page and the numbers into this folder.")
    ] = None,
    as_json: f.AsJson = False,
) -> None:
    """Recommend methods for clients: a short list with expected gain, risk and cost.

    \b
    unalike recommend --data digits --partition 'dirichlet(alpha=0.1)' --clients 10
    unalike recommend --data visits.csv --target outcome --group hospital --candidates shared --out advice
    unalike recommend --data digits --clients 20 --participation 0.2 --objective worst_decile

    The clients are diagnosed without training, and compared with the stored tasks on which many methods were run: those of real
    owners for clients that own their data, the others for clients that a partition made. The last sentence says how good such
    advice was on data sets that it had not seen. Then compare the short list on your own data: the command for it is printed.
    """
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.comparison.seed_plan import write_seeds
    from unalike.recommendation.recommend import recommend_for_population
    from unalike.recommendation.task_features import Conditions
    from unalike.reporting.table import Table

    population, title = clients.described(seed)
    participation = training["participation"]
    options = training | {
        "participation": None if participation == 1 else participation,
        "seed": seed or None,
    }
    recommendation = recommend_for_population(
        population,
        title,
        Conditions(participation, work, training["model"]),
        **asked,
        seed=seed,
        command=clients.command(NAME, options | asked, work),
    )
    if as_json:
        print(recommendation.to_json())
    else:
        sentences([*recommendation.findings, ""])
        advice = Table.of("", recommendation.columns, recommendation.advice)
        tables(advice.columns, advice.texts)
        sentences([], recommendation.notes)
    specs = ["fedavg", *(one.spec for one in recommendation.short_list)]
    if len(specs) > 1:
        metric = asked["metric"]
        same = {"method": specs} | options | {"metric": metric}
        objective = {"accuracy": recommendation.metric.name}.get(
            asked["objective"], asked["objective"]
        )
        if (
            work.lr == type(work)().lr
        ):  # not chosen: the rate that was best most often for the first method
            work = replace(work, lr=recommendation.short_list[0].rate)
        goal = {
            "objective": objective if asked["candidates"] == "shared" else f"personal_{objective}"
        }
        seeds = write_seeds([seed, seed + 1, seed + 2]) if seed else None
        compared = same | {"seed": None, "seeds": seeds}
        typer.echo(
            f"\ncompare, with one learning rate: {clients.command('compare', compared, work)}",
            err=as_json,
        )
        tuned = clients.command("tune", same | goal, work)
        typer.echo(f"or choose a learning rate for each first: {tuned}", err=as_json)
    if out is not None:
        typer.echo(f"page: {recommendation.save(out).resolve()}", err=as_json)
