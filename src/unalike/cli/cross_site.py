"""`unalike cross-site`: score every model of a run or a comparison on the test rows of every site."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli.flags import AsJson, TableOut, data_dir, uses_flags
from unalike.cli.names import completion

if TYPE_CHECKING:
    from unalike.comparison.cross_site import SiteModel
    from unalike.data.population import Population

NAME = "cross-site"
MAX_SITES = 30
"""With more sites the table cannot be read."""


@uses_flags(data_dir=data_dir)
def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of `unalike compare --out` or `unalike run --out`.")
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of the table (see `unalike list metrics`); that of the run unless given.",
            show_default=False,
            **completion("metric"),
        ),
    ] = None,
    out: TableOut = None,
    *,
    data_dir: Path | None,
    as_json: AsJson = False,
) -> None:
    """Score every model on the test rows of every site: does a site's own model serve the others, and the shared one all?

    The models are the shared and personal ones of the run, or of all methods of the comparison under its first seed; and on tables
    those that scikit-learn fits on the training rows of each site alone and on all rows pooled.

    \b
    unalike cross-site results
    unalike cross-site results --metric roc_auc --out models-by-site.csv
    """
    import warnings

    import pandas as pd

    from unalike.cli.finished_run import metrics_of_run
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.comparison.cross_site import cross_site_scores, reference_models
    from unalike.comparison.fitted_references import can_be_fitted, why_not_fitted
    from unalike.metrics.metrics import run_metrics
    from unalike.reporting.cross_site import ModelsBySite
    from unalike.reporting.html import write_text
    from unalike.runtime.records.run_directory import RunDirectory
    from unalike.runtime.results.finished_run import open_run

    runs = _runs(folder)
    first = next(iter(runs.values()))
    population = _population(first, data_dir)
    run = open_run(first)
    run_config = replace(run.run_config, population=population)
    task = population.task
    config = RunDirectory(first).config or {}
    metrics = metrics_of_run([] if metric is None else [metric], config, task, population.classes)

    # All models have the same division, so that no test row of a site was one of training.
    models: list[SiteModel] = []
    notes = []
    for method, run_folder in runs.items():
        found_models, why_none = _models_of_run(method, run_folder, population)
        models += found_models
        notes.append(why_none)
    notes.append(why_not_fitted(run_config))
    if can_be_fitted(run_config):
        models += reference_models(run_config)
    if not models:
        raise UnalikeError("; ".join(note for note in notes if note))
    # fits of a forest on few rows warn of what the notes say
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = cross_site_scores(population, models, metrics)

    leading = next(m for name, m in run_metrics(task, metrics).items() if name != "loss")
    by_site = ModelsBySite(scores, leading, run.client_noun)
    notes.append(by_site.small_sites)
    notes = [note for note in notes if note]
    if as_json:
        print(json.dumps(by_site.records, indent=1))
    else:
        table = by_site.table
        tables(table.columns, table.texts, table.caption, table.words)
        sentences(by_site.reading, notes)
    if out is not None:
        text = by_site.page(notes)
        if out.suffix == ".csv":
            text = pd.DataFrame(by_site.records).to_csv(index=False)
        typer.echo(f"{by_site.title}: {write_text(text, out).resolve()}", err=as_json)


def _runs(folder: Path) -> dict[str, Path]:
    """Method -> the folder of its run: that of a run itself, or the finished ones of a comparison under its first seed."""
    from unalike.comparison.open_comparison import open_comparison
    from unalike.comparison.standings import CELLS_FILE, planned
    from unalike.runtime.records.run_directory import RunDirectory

    if (folder / "federation.toml").exists():
        raise UnalikeError(
            f"{folder} is a federation, whose rows and own models stay at the sites: `unalike report {folder} --table clients` has "
            "the scores of the shared model at each site; at a site, `unalike evaluate SITE --data FILE` scores the model that it "
            "keeps"
        )
    if not (folder / CELLS_FILE).exists():
        config = RunDirectory(folder).config
        if config is None:
            raise UnalikeError(
                f"{folder} holds neither a run nor a comparison; give a folder of `unalike compare --out` or `unalike run --out`"
            )
        return {open_comparison(folder).facts.baseline: folder}
    _, cells, _ = planned(folder)
    first_seed = cells[0].seed
    runs = {}
    for cell in cells:
        run = folder / cell.folder
        if cell.seed == first_seed and RunDirectory(run).finished:
            runs[cell.method] = run
    if not runs:
        raise UnalikeError(
            f"{folder} holds no finished run under seed {first_seed}; the command that began it continues it"
        )
    return runs


def _population(run: Path, data_dir: Path | None) -> Population:
    """The clients of a run with their samples. Raises `UnalikeError` where they are not known, or very many."""
    from unalike.cli.finished_run import own_clients, own_plan
    from unalike.runtime.records.run_directory import RunDirectory

    config = RunDirectory(run).config
    if config is None:
        raise UnalikeError(f"{run} has no partition plan, so the clients' samples are unknown")
    _, population = own_clients(run, config, data_dir, own_plan(run))
    if len(population) > MAX_SITES:
        raise UnalikeError(
            f"{run} has {len(population)} clients; expected at most {MAX_SITES} for a table of every model at every client"
        )
    return population


def _models_of_run(method: str, run: Path, population: Population) -> tuple[list[SiteModel], str]:
    """The shared model of a run and those of its clients, as far as it has them, and a note where it has none."""
    from unalike.cli.finished_run import load_model
    from unalike.comparison.cross_site import trained_model
    from unalike.runtime.results.finished_run import open_run

    models = []
    why_none = ""
    places: list[str | None] = [None]
    if open_run(run).has_models_of_clients:
        places += population.names
    for client in places:
        try:
            predict, _ = load_model(run, client)
        except UnalikeError as error:
            why_none = f"{method} has no model for {client or 'all'} in the table: {error}"
            continue
        models.append(trained_model(population, method, client or "", predict))
    # that a method keeps its models at the clients is what its rows show
    return models, "" if models else why_none
