"""`unalike compare`: compare methods under paired seeds and write a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli import flags as f
from unalike.cli.config_file import Config, resolved_config
from unalike.cli.names import completion
from unalike.core.options import (
    AcrossOptions,
    DecisionOptions,
    JobsOptions,
    RaceOptions,
    SeedsOptions,
)

if TYPE_CHECKING:
    from unalike.comparison.sweep.sweep_result import Sweep

NAME = "compare"

SWEPT_METHODS = ["fedavg", "fedprox(mu=0.1)", "scaffold", "fedavg + lws"]
"""The methods of a sweep without `--method`: a race at every point would take too long."""


@f.uses_flags(
    samples=data_flags.samples,
    seeds=f.values_of(SeedsOptions),
    race=f.values_of(RaceOptions),
    decision=f.values_of(DecisionOptions, AcrossOptions),
    training=f.training,
    processes=f.values_of(JobsOptions),
)
def command(
    context: typer.Context,
    method: Annotated[
        list[str],
        typer.Option(
            help=f"{f.METHOD}; repeat the flag for each method. Without it, a short list of methods races.",
            show_default=False,
            **completion("method"),
        ),
    ] = [],  # noqa: B006  (Typer copies it)
    *,
    samples: data_flags.DataFlags,
    seeds: dict[str, Any],
    race: dict[str, Any],
    decision: dict[str, Any],
    training: dict[str, Any],
    processes: dict[str, Any],
    sweep: Annotated[
        list[str],
        typer.Option(
            help="Values of an option or parameter, such as lr=0.01,0.1, alpha=0.1,1 (of the partition) or mu=0.1,1 (of methods); "
            "repeat for a grid, and compare at each of its points.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  (Typer copies it)
    out: f.Out = Path("results"),
    track: f.Track = [],  # noqa: B006  (Typer copies it)
    dry_run: f.DryRun = False,
    as_json: f.AsJson = False,
    config: Config = None,
) -> None:
    """Compare methods under equal conditions and write a report; without methods, find the one that suits the data.

    Under each seed, all methods have the same partition, initial weights, cohorts and batches. Without `--method`, a short list of
    methods races within a budget: whichever is shown to be worse than the best one so far is dropped.

    \b
    unalike compare --data visits.csv --target outcome --group hospital --within '10 min'
    unalike compare --data digits --method fedavg --method fedmix --rounds 30 --out results
    unalike compare --data visits.csv --target outcome --group hospital --method fedavg --method scaffold
    unalike compare --data my.npz --model cnn --clients 5 --method fedavg --method 'fedprox(mu=0.1) + lws'
    unalike compare --method fedavg --method scaffold --budget '20 MB' --val 0.2 --select best
    unalike compare --method fedavg --method scaffold --seeds auto --max-seeds 20
    unalike compare --method fedavg --method scaffold --sweep lr=0.01,0.1 --sweep alpha=0.1,1 --out grid
    unalike compare --dry-run --method fedavg --method scaffold --rounds 500 --seeds 10 --model cnn --data mnist
    unalike compare --config results/config.toml --out again

    The folder keeps one cell per method and seed: finished cells are read, an interrupted cell continues where it stopped, and with
    more rounds every cell continues. Several processes may share the folder, such as the jobs of a cluster: each goes on to a cell
    that none trains. A report with other settings is kept in reports/ before it is replaced.
    """
    from unalike._utils.progress import progress_bar
    from unalike.cli.terminal_tables import (
        comparison_json,
        estimate_table,
        live_standings,
        summary_table,
    )
    from unalike.comparison.compare import chosen_plan, prepare_experiment
    from unalike.comparison.earlier_reports import earlier_reports
    from unalike.comparison.seed_plan import read_seeds
    from unalike.comparison.sweep.grid import read_grid
    from unalike.comparison.sweep.sweep import plan_sweep
    from unalike.runtime.setup.run_options import named_plan
    from unalike.tracking.tracking import Trackers, group_of

    trackers = Trackers.of(track, group_of(out))
    # A race adds seeds by itself: even the usual number contradicts it if it was typed. A config file may name all defaults.
    chosen = context.get_parameter_source("seeds")
    typed = chosen is not None and chosen.name == "COMMANDLINE"
    if typed and not method and not sweep:
        raise UnalikeError(
            f"found --seeds {seeds['seeds']} without --method; a race adds seeds by itself. Leave --seeds out and give its budget, "
            "such as --within '5 seeds', or name the methods to compare"
        )
    methods: list[str] | None = method or None
    within = race["within"]
    rounds = training["rounds"]
    plan = chosen_plan(
        SWEPT_METHODS if sweep else methods,
        within,
        rounds,
        **seeds | {"seeds": read_seeds(seeds["seeds"])},
    )
    data_flags.check(samples, [named_plan(text) for text in method], training)
    loaded = samples.load(training["protocol"])
    clients = samples.request(loaded)
    options = {"source": samples.flag_values, "proxy": loaded.proxy, **decision, **training}
    if sweep:
        if dry_run:
            raise UnalikeError("found --dry-run with --sweep; leave one of the two out")
        planned = plan_sweep(methods or SWEPT_METHODS, read_grid(sweep), clients, plan, **options)
        with progress_bar(planned.rounds, "sweeping", lines=True) as progress:
            result = planned.run(out, progress, trackers, **processes)
        return _print_sweep(result, out, as_json)
    experiment = prepare_experiment(methods, clients, plan, **options)
    if dry_run:
        with progress_bar(experiment.calibration_rounds, "calibrating", lines=True) as progress:
            estimate = experiment.estimate(progress)
        if as_json:
            print(estimate.to_json())
        else:
            resolved = samples.resolved_partition(loaded.dataset) | {
                "baseline": experiment.facts.baseline
            }
            print(resolved_config(context, **resolved), end="\n\n")
            estimate_table(estimate)
        if out is not None:
            estimate.save(out)
        return
    with live_standings(out, experiment.rounds) as progress:
        comparison = experiment.run(out, progress, trackers, **processes)
    if as_json:
        print(comparison_json(comparison), end="")
    else:
        summary_table(comparison)
    if out is not None:
        typer.echo(f"report: {(out / 'report.html').resolve()}", err=as_json)
        for folder in earlier_reports(out):
            typer.echo(f"earlier report: {(folder / 'report.html').resolve()}", err=as_json)


def _print_sweep(result: Sweep, out: Path | None, as_json: bool) -> None:
    """Print the table of a sweep and its best points."""
    from unalike.cli.terminal_tables import sentences, tables

    if as_json:
        print(result.to_json())
    else:
        table = result.as_table()
        tables(table.columns, table.texts, words=table.words)
        sentences(["", *result.findings])
    if out is not None:
        typer.echo(f"page: {(out / 'sweep.html').resolve()}", err=as_json)
