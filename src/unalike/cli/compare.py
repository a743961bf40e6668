"""`unalike compare`: several methods, paired seeds, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unalike.cli import options as o

NAME = "compare"

METHODS = ["fedavg", "fedprox(mu=0.1)", "scaffold", "fedavg + lws"]


@o.shares(training=o.training)
def command(
    method: Annotated[
        list[str], typer.Option(help="A method or a sum of them (see `unalike list methods`); repeat to compare.")
    ] = METHODS,
    data: o.Data = "digits",
    data_dir: o.DataDir = None,
    partition: o.Partition = "dirichlet(alpha=0.1)",
    plan: o.Plan = None,
    clients: o.Clients = None,
    val: o.Val = 0.0,
    test: o.Test = None,
    proxy: o.Proxy = None,
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 3, or 0,1,4.")] = "3",
    baseline: Annotated[
        str | None, typer.Option(help="The method others are held against; the first unless given.")
    ] = None,
    *,
    training: dict[str, Any],
    out: o.Out = Path("results"),
    dry_run: o.DryRun = False,
    config: o.Config = None,
) -> None:
    """Compare methods under equal conditions and write a report.

    They have the same partitions, weights, cohorts and batches.

    \b
    unalike compare --data digits --method fedavg --method fedmix --rounds 30 --out results
    unalike compare --data my.npz --model cnn --clients 5 --method fedavg --method 'fedprox(mu=0.1) + lws'
    unalike compare --method fedavg --method scaffold --budget '20 MB' --val 0.2 --select best
    unalike compare --dry-run --rounds 500 --seeds 10 --model cnn --data mnist
    unalike compare --config results/config.toml --out again

    The folder keeps one cell per method and seed: finished cells are read, an interrupted one goes on where it stopped.
    """
    from unalike._utils.progress import progress_bar
    from unalike.cli.terminal_tables import estimate_table, summary_table
    from unalike.experiments.compare import prepare_experiment, read_seeds

    numbers = read_seeds(seeds)
    found, learn, held = o.dataset(data, data_dir, proxy, test, training["protocol"])
    fixed = o.divided(found, partition, plan, clients, 0, val) if plan is not None else None
    flags = {"data": data, "data_dir": data_dir and str(data_dir), "proxy": proxy, "test": test}
    flags |= {"partition": partition, "clients": clients, "val": val or None} if plan is None else {"plan": str(plan)}
    experiment = prepare_experiment(
        method,
        clients if fixed is None else fixed,
        data=found if fixed is None else None,
        partition=partition,
        val=val,
        source=flags,
        proxy=learn,
        test=held,
        seeds=numbers,
        baseline=baseline,
        **training,
    )
    if dry_run:
        with progress_bar(experiment.calibration, "calibrating", lines=True) as progress:
            foreseen = experiment.estimate(progress)
        estimate_table(foreseen)
        if out is not None:
            foreseen.save(out)
        return
    with progress_bar(experiment.rounds, "comparing", lines=True) as progress:
        comparison = experiment.run(out, progress)
    summary_table(comparison)
    if out is not None:
        print(f"report: {(out / 'report.html').resolve()}")
