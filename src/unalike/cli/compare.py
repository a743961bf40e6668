"""`unalike compare`: compare methods under paired seeds and write a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unalike.cli import data_flags
from unalike.cli import options as o

NAME = "compare"

METHODS = ["fedavg", "fedprox(mu=0.1)", "scaffold", "fedavg + lws"]


@o.uses_flags(samples=data_flags.samples, training=o.training)
def command(
    context: typer.Context,
    method: Annotated[
        list[str],
        typer.Option(
            help="Method, or a sum of methods and parts (see `unalike list methods`); repeat the flag for each method."
        ),
    ] = METHODS,
    *,
    samples: data_flags.DataFlags,
    seeds: Annotated[
        str, typer.Option(help="Number of seeds, a list of them (0,1,4), or auto: add seeds until the decision stands.")
    ] = "3",
    min_seeds: Annotated[int, typer.Option(help="Fewest seeds with --seeds auto.")] = 3,
    max_seeds: Annotated[int, typer.Option(help="Most seeds with --seeds auto.")] = 10,
    smallest_effect: Annotated[
        float | None,
        typer.Option(
            help="Smallest difference that matters, such as 0.005: half a point (default), or 1 % of an RMSE."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Method that the others are compared with; the first unless given.")
    ] = None,
    training: dict[str, Any],
    out: o.Out = Path("results"),
    track: o.Track = [],  # noqa: B006  (Typer copies it)
    dry_run: o.DryRun = False,
    config: o.Config = None,
) -> None:
    """Compare methods under equal conditions and write a report.

    Under each seed, all methods have the same partition, initial weights, cohorts and batches.

    \b
    unalike compare --data digits --method fedavg --method fedmix --rounds 30 --out results
    unalike compare --data visits.csv --target outcome --group hospital --method fedavg --method scaffold
    unalike compare --data my.npz --model cnn --clients 5 --method fedavg --method 'fedprox(mu=0.1) + lws'
    unalike compare --method fedavg --method scaffold --budget '20 MB' --val 0.2 --select best
    unalike compare --method fedavg --method scaffold --seeds auto --max-seeds 20
    unalike compare --dry-run --rounds 500 --seeds 10 --model cnn --data mnist
    unalike compare --config results/config.toml --out again

    The folder keeps one cell per method and seed: finished cells are read, an interrupted cell continues where it stopped.
    """
    from unalike._utils.progress import progress_bar
    from unalike.cli.config.resolved import resolved_config
    from unalike.cli.terminal_tables import estimate_table, live_standings, summary_table
    from unalike.experiments.compare import prepare_experiment
    from unalike.experiments.seed_plan import SeedPlan, read_seeds
    from unalike.tracking.tracking import Trackers, group_of

    trackers, numbers = Trackers.of(track, group_of(out)), read_seeds(seeds)
    data_flags.check(samples, method, training)
    loaded = samples.load(training["protocol"])
    experiment = prepare_experiment(
        method,
        samples.request(loaded),
        SeedPlan.of(numbers, min_seeds, max_seeds),
        source=samples.kept,
        proxy=loaded.proxy,
        smallest_effect=smallest_effect,
        baseline=baseline,
        **training,
    )
    if dry_run:
        with progress_bar(experiment.calibration_rounds, "calibrating", lines=True) as progress:
            estimate = experiment.estimate(progress)
        found = samples.resolved(loaded.dataset) | {"baseline": experiment.facts.baseline}
        print(resolved_config(context, **found), end="\n\n")
        estimate_table(estimate)
        if out is not None:
            estimate.save(out)
        return
    with live_standings(out, experiment.rounds) as progress:
        comparison = experiment.run(out, progress, trackers)
    summary_table(comparison)
    if out is not None:
        print(f"report: {(out / 'report.html').resolve()}")
