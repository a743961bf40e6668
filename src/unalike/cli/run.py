"""`unalike run`: train one method."""

import sys
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli import flags as f
from unalike.cli.config_file import Config, resolved_config

NAME = "run"


@f.uses_flags(samples=data_flags.samples, seed=f.seed, training=f.training)
def command(
    context: typer.Context,
    method: f.Method = "fedavg",
    *,
    samples: data_flags.DataFlags,
    seed: int,
    training: dict[str, Any],
    out: f.Out = None,
    track: f.Track = [],  # noqa: B006  (Typer copies it)
    dry_run: f.DryRun = False,
    as_json: f.AsJson = False,
    profile: f.Profile = False,
    config: Config = None,
) -> None:
    """Train one method and print the result.

    \b
    unalike run --data digits --method scaffold --rounds 30
    unalike run --data visits.csv --target outcome --group hospital --model linear
    unalike run --data my.npz --model cnn --clients 5 --method 'fedprox(mu=0.1) + lws' --out runs/prox
    unalike run --val 0.2 --stop 'patience(rounds=10)' --select best

    With --out, the tables, the model and the checkpoints of the run are kept. The same command continues an interrupted run; with
    more --rounds it continues a finished one.
    """
    from unalike._utils.progress import progress_bar
    from unalike.cli.terminal_tables import estimate_table, profile_table, run_json, run_table
    from unalike.comparison.comparison_json_of_cells import save_run_facts
    from unalike.comparison.cost_estimate import CALIBRATION_ROUNDS, calibrate
    from unalike.runtime.processes.launch import follow_leader
    from unalike.runtime.records.profiling import Profile
    from unalike.runtime.round_loop import execute
    from unalike.runtime.setup.run_config import prepare_run
    from unalike.runtime.setup.run_options import named_plan
    from unalike.tracking.tracking import Trackers

    # what contradicts itself is refused before anything is read
    if as_json and profile:
        raise UnalikeError(
            "found --profile with --json, which has no table of the profile; leave one of the two out"
        )
    if dry_run and profile:
        raise UnalikeError(
            "found --profile with --dry-run, which trains no run to profile; leave one of the two out"
        )
    if training["record"] is not None and out is None:
        raise UnalikeError("--record keeps numbers in a folder, found none; add --out FOLDER")
    trackers = Trackers.of(track)
    rounds = training["rounds"]
    plan = named_plan(method)
    options = data_flags.check(samples, [plan], training | {"seed": seed})

    # the samples of the clients and of the server, and the run on them
    loaded = samples.load(training["protocol"])
    population = samples.divide(loaded.dataset, seed)
    run_config = prepare_run(
        plan,
        population,
        options,
        model=training["model"],
        start=training["start"],
        start_partial=training["start_partial"],
        work=training["work"],
        test=loaded.test,
        proxy=loaded.proxy,
        record=training["record"],
    )

    # a dry run only estimates what the run costs
    with progress_bar(CALIBRATION_ROUNDS if dry_run else rounds, method, lines=True) as progress:
        if dry_run:
            estimate = calibrate(run_config.key, {method: run_config}, 1, progress)
            if as_json:
                return print(estimate.to_json())
            resolved = samples.resolved_partition(loaded.dataset)
            print(resolved_config(context, **resolved), end="\n\n")
            return estimate_table(estimate)
        follow_leader([run_config])
        with Profile(rounds) if profile else nullcontext() as profiler:
            callback = progress if profiler is None else profiler.watching(progress)
            result = execute(run_config, out=out, progress=callback, trackers=trackers)

    # the result goes to standard output; with --json all other lines go to standard error
    if as_json:
        print(run_json(result))
    else:
        run_table(result)
    if profiler is not None and not profiler.rounds:
        print(
            "no trace: this run trained no round after the first, which only warms up",
            file=sys.stderr,
        )
    elif profiler is not None:
        file = (out or Path()) / "trace.json"
        profiler.write(file)
        profile_table(profiler)
        print(
            f"trace of these rounds in {file.resolve()}; open it in chrome://tracing or ui.perfetto.dev"
        )
    if out is not None:
        # the page of the run names the number of clients also where the data defines it
        division = {
            name: value or len(population)
            for name, value in samples.resolved_partition(loaded.dataset).items()
        }
        save_run_facts(result, method, samples.flag_values | division)
        typer.echo(
            f"kept in {out.resolve()}; `unalike report {quote(str(out))}` writes its report",
            err=as_json,
        )
