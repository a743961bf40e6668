"""`unalike tune`: tune methods under the same budget, compare them before and after, and write a page."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike.cli import data_flags
from unalike.cli import flags as f
from unalike.cli.names import named
from unalike.core.options import DecisionOptions, TuningOptions

NAME = "tune"

METHODS = ["fedavg", "fedprox", "scaffold", "fedadam"]


@f.uses_flags(
    samples=data_flags.samples,
    tuning=f.values_of(TuningOptions),
    decision=f.values_of(DecisionOptions),
    training=f.training,
)
def command(
    context: typer.Context,
    method: Annotated[
        list[str],
        typer.Option(
            help=f"{f.METHOD}; repeat the flag for each method. Its values are those of the first trial.",
            **named("method"),
        ),
    ] = METHODS,
    *,
    samples: data_flags.DataFlags,
    tuning: dict[str, Any],
    decision: dict[str, Any],
    training: dict[str, Any],
    out: f.Out = Path("tuned"),
    as_json: f.AsJson = False,
) -> None:
    """Tune methods under the same budget, then compare them before and after.

    Every method gets as many trials of --rounds rounds. The local learning rate and the fields of parts that declare a search
    space are tuned.

    \b
    unalike tune --data digits --method fedavg --method scaffold --trials 20 --rounds 30 --out tuned
    unalike tune --data visits.csv --target outcome --group hospital --method fedavg --method fedprox --jobs 4
    unalike tune --data mnist --model cnn --method fedavg --method fedadam --objective worst_decile
    unalike tune --method fedavg --method ditto --objective personal_accuracy --budget-seconds 600

    Trials are scored on validation samples (--val, 0.2 unless given), the methods on test samples that no trial saw, under other
    seeds. Trials that are unlikely to win are stopped early. The folder keeps finished trials: the same command goes on. Needs the
    extra: pip install 'unalike[tune]'.
    """
    from unalike._utils.progress import progress_bar
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.comparison.command_line import command_line
    from unalike.comparison.compare import labelled_methods
    from unalike.runtime.setup.run_options import named_plan
    from unalike.tuning.tune import VALIDATION_SHARE, TuneRequest, run_tuning

    given = given_flags(context)
    if samples.plan is None and "val" not in given:
        samples = replace(samples, val=VALIDATION_SHARE)
    data_flags.check(samples, [named_plan(text) for text in method], training)
    loaded = samples.load(training["protocol"])
    asked = TuneRequest(
        methods=labelled_methods(method),
        clients=samples.request(loaded),
        rounds=training.pop("rounds"),
        **tuning,
    )
    with progress_bar(asked.most_rounds, "tuning", lines=True) as progress:
        tuned = run_tuning(
            asked,
            out,
            progress,
            source=samples.kept,
            command=command_line(NAME, {"data": samples.data} | given),
            proxy=loaded.proxy,
            **decision,
            **training,
        )
    if as_json:
        print(tuned.to_json())
    else:
        table = tuned.before_and_after()
        tables(table.columns, table.texts, words=table.words)
        sentences(["", *tuned.findings], tuned.notes)
    if out is not None:
        typer.echo(f"page: {(out / 'tuning.html').resolve()}", err=as_json)


def given_flags(context: typer.Context) -> dict[str, Any]:
    """The flags that were given, except the folder and the form of the output."""
    names = (p.name or "" for p in context.command.params)
    sources = {
        name: context.get_parameter_source(name) for name in names if name not in ("out", "as_json")
    }
    return {
        name: context.params[name]
        for name, source in sources.items()
        if source is not None and source.name != "DEFAULT"
    }
