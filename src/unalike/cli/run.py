"""`unalike run`: one method."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from unalike.cli import options as o

NAME = "run"


def command(
    method: Annotated[str, typer.Option(help="A method or a sum of them (see `unalike list methods`).")] = "fedavg",
    data: o.Data = "digits",
    data_dir: o.DataDir = None,
    partition: o.Partition = "dirichlet(alpha=0.1)",
    plan: o.Plan = None,
    clients: o.Clients = None,
    model: o.Model = "mlp",
    rounds: o.Rounds = 50,
    seed: o.Seed = 0,
    protocol: o.Protocol = ["clients"],  # noqa: B006  (Typer copies it)
    participation: o.Participation = 1.0,
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
    out: o.Out = None,
    dry_run: o.DryRun = False,
    profile: o.Profile = False,
    config: o.Config = None,
) -> None:
    """Train one method and show how it went.

    \b
    unalike run --data digits --method scaffold --rounds 30
    unalike run --data my.npz --model cnn --clients 5 --method 'fedprox(mu=0.1) + lws' --out runs/prox
    unalike run --val 0.2 --stop 'patience(rounds=10)' --select best

    With --out the run is kept: its tables, its model, its checkpoints. The same command goes on where it stopped, and with more
    --rounds beyond its end.
    """
    from unalike.cli.show import estimate_table, profile_table, run_table
    from unalike.federation import execute
    from unalike.job import prepare
    from unalike.profiling import Profile
    from unalike.progress import watch
    from unalike.study.estimate import ROUNDS, estimated
    from unalike.study.single import keep_facts

    found, learn, held = o.dataset(data, data_dir, proxy, test, protocol)
    people = o.divided(found, partition, plan, clients, seed, val)
    job = prepare(
        method,
        people,
        model=model,
        rounds=rounds,
        work=o.work(locals()),
        seed=seed,
        participation=participation,
        executor=o.executor(executor, workers),
        evaluate_every=evaluate_every,
        protocol=tuple(protocol),
        device=device,
        buffers=buffers,
        transform=transform,
        precision=precision,
        proxy=learn,
        test=held,
        stop=stop,
        budget=budget,
        select=select,
    )
    with watch(ROUNDS if dry_run else rounds, method, lines=True) as progress:
        if dry_run:
            return estimate_table(estimated(job.key, {method: job}, 1, progress))
        with Profile(rounds) if profile else nullcontext() as seen:
            result = execute(job, out=out, progress=progress if seen is None else seen.watching(progress))
    run_table(result)
    if seen is not None:
        file = (out or Path()) / "trace.json"
        seen.write(file)
        profile_table(seen)
        print(f"trace of these rounds in {file.resolve()}; open it in chrome://tracing or ui.perfetto.dev")
    if out is not None:
        divided = {"partition": partition, "clients": len(people), "val": val or None}
        front = {"data": data, "data_dir": data_dir and str(data_dir), "proxy": proxy, "test": test}
        keep_facts(result, method, front | (divided if plan is None else {"plan": str(plan)}))
        print(f"kept in {out.resolve()}; `unalike report {out}` writes its report")
