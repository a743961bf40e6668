"""`unalike evaluate`: evaluate the model of a finished run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli.flags import AsJson, Client, Recalibrated, data_dir, path, uses_flags
from unalike.cli.names import completion

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from torch import Tensor

    from unalike.core.tasks.task import Task
    from unalike.data.dataset import Dataset
    from unalike.data.subgroups import Subgroups
    from unalike.metrics.metrics import RunMetrics
    from unalike.statistics.evaluated_rows import EvaluatedRow

NAME = "evaluate"


class Samples(NamedTuple):
    """Samples with labels, the row of the table that each belongs to, its unit, and its subgroup by each column of --by.

    `unit_name` says what a unit is, such as the column of patients; None where every sample is one.
    """

    x: Tensor
    y: Tensor
    owner: np.ndarray
    rows: list[str]
    unit: np.ndarray
    unit_name: str | None
    subgroups: list[tuple[np.ndarray, list[str]]]


@uses_flags(data_dir=data_dir, table=data_flags.table)
def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of `unalike run --out`, of a federation, or of a site.")
    ],
    data: Annotated[
        str | None, typer.Option(help="Data set or file; the run's own clients unless given.")
    ] = None,
    client: Client = None,
    metric: Annotated[
        list[str],
        typer.Option(
            help="Metric (see `unalike list metrics`), repeat for several; the run's unless given.",
            show_default=False,
            **completion("metric"),
        ),
    ] = [],  # noqa: B006  (Typer copies it)
    by: Annotated[
        list[str],
        typer.Option(
            help="Column of the table whose values have a row each, such as sex, or with limits age=50,65; repeat for several.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    threshold: Annotated[
        list[float],
        typer.Option(
            help="Risk from which on a sample counts as positive, for sensitivity, specificity, PPV and NPV; repeat for several.",
            min=0,
            max=1,
            show_default=False,
        ),
    ] = [],  # noqa: B006
    recalibrate: Annotated[
        Path | None,
        typer.Option(
            help="New file for a recalibration of the risks on these samples (intercept and slope).",
            parser=path,
            metavar="PATH",
        ),
    ] = None,
    recalibration: Recalibrated = None,
    *,
    data_dir: Path | None,
    table: dict[str, Any],
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's shared model, or the model of one of its clients.

    The samples are the test samples of the run's clients (of the client named), or all samples of another data set; with --group
    its groups have a row each. Tables are encoded as in the run; classes are identified by name. With two classes the calibration
    of the risks follows.

    Intervals come from 500 draws of the samples of each row with replacement, or with --unit of its patients; with fewer than ten
    samples (of a class) there is none. A metric of pooled samples may be far from the mean of the rows: a pooled ROC AUC also
    rewards telling the groups apart.

    \b
    unalike evaluate runs/prox
    unalike evaluate runs/prox --data new.npz --metric roc_auc --json
    unalike evaluate runs/ward --data new_patients.csv --group hospital --by sex --by age=50,65
    unalike evaluate runs/ward --data new_patients.csv --threshold 0.1 --threshold 0.3
    unalike evaluate runs/ward --data new_patients.csv --recalibrate recalibration.json
    unalike evaluate runs/ditto --client north
    """
    import numpy as np

    from unalike.cli.finished_run import (
        load_model,
        metrics_of_run,
        model_folder,
        note_shared_model,
        recalibrated,
        recalibration_of,
    )
    from unalike.core.tasks.registry import find_task
    from unalike.data.subgroups import Subgroups
    from unalike.metrics.scoring import score
    from unalike.statistics.evaluated_rows import Evaluated, evaluated_rows

    # What can be wrong before data is read.
    subgroups = [Subgroups.read(text) for text in by]
    if recalibrate is not None and (data is None or recalibration is not None):
        raise UnalikeError(
            "found --recalibrate without --data, or beside --recalibration; expected a table with --data, whose risks are those of "
            "the model itself"
        )

    # Score all samples once.
    folder = model_folder(folder)
    predict, config = load_model(folder, client)
    classes = config["data"].get("classes")
    task = find_task(config["data"]["task"]).of(classes)
    chosen = metrics_of_run(metric, config, task, classes)
    if recalibration is not None:
        predict = recalibrated(predict, recalibration, task, config, client, scored=data)
    if data is not None:
        samples = _other_samples(data, data_dir, folder, config, table, subgroups)
    else:
        samples = _own_samples(folder, config, data_dir, client, table, subgroups)
    scores = score(task, predict, samples.x, samples.y, samples.owner, logits=bool(chosen))
    evaluated = Evaluated(task, scores, samples.unit, chosen)
    if (threshold or recalibrate is not None) and not evaluated.has_risks:
        flag = "--threshold" if threshold else "--recalibrate"
        raise UnalikeError(
            f"found {flag} for a task of {task.name} that has not two classes; leave it out"
        )

    # The rows of groups or clients, and then those of subgroups.
    rows = evaluated_rows(evaluated, samples.owner, samples.rows, summarized=True)
    rows_by_column = []
    for owner, names in samples.subgroups:
        rows_by_column.append(evaluated_rows(evaluated, owner, names, summarized=False))
    note_shared_model(config, client)

    if as_json:
        every_row = [*rows]
        for some in rows_by_column:
            every_row += some
        print(_json(every_row, threshold, has_positives=_positive(task, classes) is not None))
    else:
        _print_tables(
            [rows, *rows_by_column],
            task,
            chosen,
            thresholds=threshold,
            positive=_positive(task, classes),
            unit=samples.unit_name,
        )

    # Written last, so that the file is of a whole evaluation.
    if recalibrate is not None:
        assert data is not None
        risks = evaluated.risks(np.arange(len(samples.y)))
        assert risks is not None
        found = recalibration_of(risks, task, config, client, Path(data).name)
        found.save(recalibrate)
        typer.echo(
            f"recalibration: logit(risk) becomes {found.intercept:.3g} + {found.slope:.3g} logit(risk), for `unalike predict` and "
            f"`unalike evaluate` with --recalibration: {recalibrate.resolve()}",
            err=as_json,
        )


def _positive(task: Task, classes: list[str] | None) -> str | None:
    """The class whose risk is meant: the second of two; None for more classes and for numbers."""
    from unalike.core.tasks.task import TWO_CLASSES

    return classes[-1] if classes is not None and task.offers(TWO_CLASSES) else None


def _print_tables(
    sections: Sequence[Sequence[EvaluatedRow]],
    task: Task,
    chosen: RunMetrics,
    thresholds: Sequence[float],
    positive: str | None,
    unit: str | None,
) -> None:
    """Print the metrics of each section by itself, and then calibration and thresholds of all rows.

    `positive` is the class whose risk is meant, `unit` the name of what has several rows.
    """
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.metrics.metrics import run_metrics
    from unalike.reporting.evaluation_tables import calibration_table, score_table, threshold_table

    metrics = run_metrics(task, chosen)
    # intervals of all would not fit the screen
    with_interval = [*chosen] or [name for name in metrics if name != "loss"][:1]
    printed = []
    for rows in sections:
        printed.append(score_table(rows, [*metrics.values()], with_interval, positive))
    every_row = [row for rows in sections for row in rows]
    for table in (calibration_table(every_row), threshold_table(every_row, thresholds)):
        if table is not None:
            printed.append(table)
    for place, table in enumerate(printed):
        if place:
            print()
        tables(table.columns, table.texts, table.caption)
    if any(_has_interval(row) for row in every_row):
        together = "" if unit is None else f"; rows that belong together ({unit}) are drawn so"
        of = f"In brackets: 95 % intervals for other samples of the same places{together}."
        sentences(["", of])


def _has_interval(row: EvaluatedRow) -> bool:
    return any(not math.isnan(low) for low, _ in row.intervals.values())


def _json(rows: Sequence[EvaluatedRow], thresholds: Sequence[float], has_positives: bool) -> str:
    """The rows as JSON records; numbers that are not known are null."""
    from unalike.reporting.evaluation_tables import calibration, threshold_rows

    records = []
    for row in rows:
        record: dict[str, Any] = {"row": row.name, "samples": row.samples}
        if has_positives:
            record["positives"] = row.positives
        record |= row.metrics
        record["intervals"] = row.intervals
        if row.risks is not None:
            record["calibration"] = calibration(row)
        if thresholds:
            record["thresholds"] = [_named(found) for found in threshold_rows(row, thresholds)]
        records.append(_known(record))
    return json.dumps(records, indent=1)


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a threshold with each share as value, low and high."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}


def _known(value: Any) -> Any:
    """The same with None for NaN, which JSON has not."""
    if isinstance(value, dict):
        return {name: _known(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_known(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _other_samples(
    data: str,
    data_dir: Path | None,
    folder: Path,
    config: dict[str, Any],
    table: dict[str, Any],
    subgroups: Sequence[Subgroups],
) -> Samples:
    """All samples of a data set: one row, or with --group one for each group."""
    import numpy as np

    from unalike.cli.finished_run import fitting, labels, note_own_data

    note_own_data(data, folder, config)
    beside = _columns_of(subgroups, data, data_dir)
    dataset = fitting(data, data_dir, folder, config, table | beside)
    x, _ = dataset.merged()
    y = labels(dataset, folder, config)
    owner = np.zeros(len(y), np.int64)
    names = [dataset.name if "(" in data else Path(data).name]
    if table.get("group"):
        columns = [dataset.groups[column].astype(str) for column in table["group"]]
        group_of_row = [", ".join(cells) for cells in zip(*columns, strict=True)]
        found, owner = np.unique(group_of_row, return_inverse=True)
        names = found.tolist()
    return Samples(
        x=x,
        y=y,
        owner=owner,
        rows=names,
        unit=dataset.units,
        unit_name=dataset.unit,
        subgroups=_divided(subgroups, dataset, np.arange(len(y))),
    )


def _own_samples(
    folder: Path,
    config: dict[str, Any],
    data_dir: Path | None,
    client: str | None,
    table: dict[str, Any],
    subgroups: Sequence[Subgroups],
) -> Samples:
    """The test samples of the run's clients, one row for each that has some, or of the client that is named.

    Where no client has test samples, those that the server holds out.
    """
    import numpy as np
    import torch

    from unalike.cli.finished_run import client_index, own_clients, own_plan, source_of
    from unalike.core.inputs import take_rows
    from unalike.data.ragged import Ragged

    if table:
        raise UnalikeError(
            f"found --{next(iter(table))} without --data: the rows are the run's own clients; give the table with --data"
        )
    plan = own_plan(folder, remedy="; give --data")
    source = source_of(folder, config, data_dir)
    columns = _columns_of(subgroups, source.data, source.data_dir)
    dataset, population = own_clients(folder, config, data_dir, plan, **columns)
    chosen = np.flatnonzero(population.test.sizes).tolist()
    if client is not None:
        wanted = client_index(population, client)
        chosen = [k for k in chosen if k == wanted]
    if not chosen:
        return _server_samples(folder, config, data_dir, client, subgroups)
    test = Ragged.of(population.test[k] for k in chosen)
    owner = np.repeat(np.arange(len(chosen)), test.sizes)
    names = [population.names[k] for k in chosen]

    # The samples in the data set: a plan that changes samples numbers its copies anew.
    places = Ragged.of(plan.test[k] for k in chosen).values
    return Samples(
        x=take_rows(population.x, torch.from_numpy(test.values)),
        y=population.y[test.values],
        owner=owner,
        rows=names,
        unit=dataset.units[places],
        unit_name=dataset.unit,
        subgroups=_divided(subgroups, dataset, places),
    )


def _server_samples(
    folder: Path,
    config: dict[str, Any],
    data_dir: Path | None,
    client: str | None,
    subgroups: Sequence[Subgroups],
) -> Samples:
    """The test samples of the server, as one row.

    Raises `UnalikeError` where there are none, and for a client or subgroups.
    """
    import numpy as np

    from unalike.cli.finished_run import source_of

    test = source_of(folder, config, data_dir).load(config["protocol"]).test
    if client is not None or subgroups or test is None:
        who = f"the client {client} has" if client is not None else "the clients have"
        raise UnalikeError(
            f"{who} no test samples in {folder}, so there is nothing to score here; give rows that the run has not seen, with "
            "--data"
        )
    x, y = test
    return Samples(
        x=x,
        y=y,
        owner=np.zeros(len(y), np.int64),
        rows=["test samples of the server"],
        unit=np.arange(len(y)),
        unit_name=None,
        subgroups=[],
    )


def _columns_of(
    subgroups: Sequence[Subgroups], data: str, data_dir: Path | None
) -> dict[str, list[str]]:
    """The option of the reader that keeps the columns of subgroups. Raises `UnalikeError` for data that is no table."""
    from unalike.data.sources.load import table_at

    if not subgroups:
        return {}
    if table_at(data, data_dir) is None:
        raise UnalikeError(
            f"found --by {subgroups[0].column} with {data}, which is no table; --group names a group of other data"
        )
    return {"beside": [some.column for some in subgroups]}


def _divided(
    subgroups: Sequence[Subgroups], dataset: Dataset, places: np.ndarray
) -> list[tuple[np.ndarray, list[str]]]:
    """For each of `subgroups` the number of the subgroup of each sample at these places, int64 [n], and the subgroups' names."""
    divided = []
    for some in subgroups:
        assert dataset.beside is not None
        divided.append(some.divide(dataset.beside.iloc[places], dataset.name))
    return divided
