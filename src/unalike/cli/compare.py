"""`unalike compare`: several methods, paired seeds, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unalike.cli import options as o

NAME = "compare"

METHODS = ["fedavg", "fedprox(mu=0.1)", "scaffold", "fedavg + lws"]


def command(
    method: Annotated[
        list[str], typer.Option(help="A method or a sum of them (see `unalike list methods`); repeat to compare.")
    ] = METHODS,
    data: o.Data = "digits",
    data_dir: o.DataDir = None,
    partition: o.Partition = "dirichlet(alpha=0.1)",
    plan: o.Plan = None,
    clients: o.Clients = None,
    model: o.Model = "mlp",
    rounds: o.Rounds = 50,
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 3, or 0,1,4.")] = "3",
    baseline: Annotated[
        str | None, typer.Option(help="The method others are held against; the first unless given.")
    ] = None,
    participation: o.Participation = 1.0,
    protocol: o.Protocol = ["clients"],  # noqa: B006  (Typer copies it)
    executor: o.Executor = "auto",
    workers: o.Workers = None,
    evaluate_every: o.EvaluateEvery = 1,
    device: o.Device = "cpu",
    buffers: o.Buffers = "average",
    transform: o.Transform = None,
    precision: o.Precision = "float32",
    proxy: o.Proxy = None,
    val: o.Val = 0.0,
    test: o.Test = None,
    stop: o.Stop = None,
    budget: o.Budget = None,
    select: o.Select = "last",
    epochs: o.Epochs = 1,
    steps: o.Steps = None,
    batch_size: o.BatchSize = "32",
    lr: o.Lr = 0.05,
    momentum: o.Momentum = 0.0,
    nesterov: o.Nesterov = False,
    weight_decay: o.WeightDecay = 0.0,
    optimiser: o.Optimiser = "sgd",
    schedule: o.Schedule = 1.0,
    clip: o.Clip = None,
    keep_optimiser_state: o.KeepOptimiserState = False,
    out: o.Out = Path("results"),
    dry_run: o.DryRun = False,
    config: o.Config = None,
) -> None:
    """Compare methods under the same partitions, weights, cohorts and batches, and write a report.

    \b
    unalike compare --data digits --method fedavg --method fedmix --rounds 30 --out results
    unalike compare --data my.npz --model cnn --clients 5 --method fedavg --method 'fedprox(mu=0.1) + lws'
    unalike compare --method fedavg --method scaffold --budget '20 MB' --val 0.2 --select best
    unalike compare --dry-run --rounds 500 --seeds 10 --model cnn --data mnist
    unalike compare --config results/config.toml --out again

    The folder keeps one cell per method and seed: finished cells are read, an interrupted one goes on where it stopped.
    """
    from unalike.cli.show import estimate_table, summary_table
    from unalike.progress import watch
    from unalike.study.compare import lay_out, read_seeds

    numbers = read_seeds(seeds)
    work = o.work(locals())
    found, learn, held = o.dataset(data, data_dir, proxy, test, protocol)
    fixed = o.divided(found, partition, plan, clients, 0) if plan is not None else None
    flags = {"data": data, "data_dir": data_dir and str(data_dir), "proxy": proxy, "test": test}
    flags |= {"partition": partition, "clients": clients, "val": val or None} if plan is None else {"plan": str(plan)}
    study = lay_out(
        method,
        clients if fixed is None else fixed,
        data=found if fixed is None else None,
        partition=partition,
        val=val,
        source=flags,
        proxy=learn,
        test=held,
        model=model,
        rounds=rounds,
        seeds=numbers,
        baseline=baseline,
        work=work,
        protocol=protocol,
        participation=participation,
        executor=o.executor(executor, workers),
        evaluate_every=evaluate_every,
        device=device,
        buffers=buffers,
        transform=transform,
        precision=precision,
        stop=stop,
        budget=budget,
        select=select,
    )
    if dry_run:
        with watch(study.calibration, "calibrating", lines=True) as progress:
            foreseen = study.estimate(progress)
        estimate_table(foreseen)
        if out is not None:
            foreseen.save(out)
        return
    with watch(study.rounds, "comparing", lines=True) as progress:
        comparison = study.run(out, progress)
    summary_table(comparison)
    if out is not None:
        print(f"report: {(out / 'report.html').resolve()}")
