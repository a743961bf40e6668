"""`unalike evaluate`: evaluate the model of a finished run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from unalike._utils.errors import UnalikeError, warn
from unalike.cli import data_flags
from unalike.cli.flags import AsJson, Client, data_dir, uses_flags
from unalike.cli.names import completion

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np
    import pandas as pd
    from torch import Tensor

    from unalike.core.tasks.task import Task
    from unalike.metrics.metrics import RunMetrics

NAME = "evaluate"
POOLED = "all samples pooled"
"""The row for all samples as if they were of one client."""
MEAN = "mean of the rows"
"""The row for the unweighted mean of the rows above that have a value."""


class Samples(NamedTuple):
    """Samples with labels, and the row of the table that each belongs to."""

    x: Tensor
    y: Tensor
    owner: np.ndarray
    rows: list[str]


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
    *,
    data_dir: Path | None,
    table: dict[str, Any],
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's shared model, or the model of one of its clients.

    The samples are the test samples of the run's clients (of the client named), or all samples of another data set; with --group
    its groups have a row each. Tables are encoded as in the run; classes are identified by name.

    A metric of pooled samples may be far from the mean of the rows: a pooled ROC AUC also rewards telling the groups apart.

    \b
    unalike evaluate runs/prox
    unalike evaluate runs/prox --data new.npz --metric roc_auc --json
    unalike evaluate runs/ward --data new_patients.csv --group hospital
    unalike evaluate runs/ditto --client north
    """
    import pandas as pd

    from unalike.cli.finished_run import load_model, model_folder, note_shared_model
    from unalike.cli.terminal_tables import tables
    from unalike.core.tasks.registry import find_task
    from unalike.metrics.metrics import measure, per_client, positives, run_metrics
    from unalike.metrics.scoring import score

    folder = model_folder(folder)
    predict, config = load_model(folder, client)
    classes = config["data"].get("classes")
    task = find_task(config["data"]["task"]).of(classes)
    chosen = _metrics(metric, config, task, classes)
    if data is not None:
        samples = _other_samples(data, data_dir, folder, config, table)
    else:
        samples = _own_samples(folder, config, data_dir, client, table)
    x, y, owner, rows = samples
    scores = score(task, predict, x, y, owner, logits=bool(chosen))
    values = pd.DataFrame(per_client(task, scores, len(rows), chosen), index=rows)
    if len(rows) > 1:
        of_all = [measure(task, scores, chosen), values.mean()]
        values = pd.concat([values, pd.DataFrame(of_all, index=[POOLED, MEAN])])

    # numbers of samples come first; the mean has none
    sizes = pd.Series(owner).groupby(owner).size()
    counts: dict[str, pd.Series] = {"samples": sizes.reindex(range(len(rows)), fill_value=0)}
    positive_counts = positives(scores, len(rows), classes)
    if positive_counts is not None:
        counts["positives"] = pd.Series(positive_counts)
    for name, count in reversed(counts.items()):
        cells: list[float] = list(count)
        if len(rows) > 1:
            cells += [count.sum(), math.nan]
        values.insert(0, name, cells)
    note_shared_model(config, client)

    if as_json:
        print(_json(values, counts))
        return
    texts = {}
    for name in counts:
        texts[name] = ["" if math.isnan(n) else f"{n:.0f}" for n in values[name]]
    if classes is not None and "positives" in texts:
        texts[f"positives ({classes[-1]})"] = texts.pop("positives")
    for name, shown_metric in run_metrics(task, chosen).items():
        texts[shown_metric.word] = [shown_metric.text(value) for value in values[name]]
    tables(["", *texts], list(zip(values.index, *texts.values(), strict=True)))


def _json(values: pd.DataFrame, counts: Collection[str]) -> str:
    """The rows as JSON records; numbers that are not known are null, counts are whole."""
    records = []
    for name, row in zip(values.index, values.to_dict("records"), strict=True):
        record: dict[Any, Any] = {"row": name}
        for column, value in row.items():
            if math.isnan(value):
                record[column] = None
            else:
                record[column] = int(value) if column in counts else value
        records.append(record)
    return json.dumps(records, indent=1)


def _metrics(
    flags: list[str], config: dict[str, Any], task: Task, classes: list[str] | None
) -> RunMetrics:
    """The metrics that flags name, else those of the run; a warning names those that only a program knows."""
    from unalike.metrics.named_metrics import read

    specs = flags or config.get("metric", ())
    chosen = read([specs] if isinstance(specs, str) else specs)
    metrics = {metric.name: metric.of(task, classes) for metric in chosen}
    if not flags:
        unknown = [name for name in config.get("metrics", ()) if name not in metrics]
        if unknown:
            warn(
                f"the metrics {', '.join(unknown)} of the run came from a program and are left out"
            )
    return metrics


def _other_samples(
    data: str, data_dir: Path | None, folder: Path, config: dict[str, Any], table: dict[str, Any]
) -> Samples:
    """All samples of a data set: one row, or with --group one for each group."""
    import numpy as np

    from unalike.cli.finished_run import fitting, labels, note_own_data

    note_own_data(data, folder, config)
    dataset = fitting(data, data_dir, folder, config, table)
    x, _ = dataset.merged()
    y = labels(dataset, folder, config)
    if not table.get("group"):
        name = dataset.name if "(" in data else Path(data).name
        return Samples(x, y, np.zeros(len(y), np.int64), [name])
    columns = [dataset.groups[column].astype(str) for column in table["group"]]
    group_of_row = [", ".join(cells) for cells in zip(*columns, strict=True)]
    names, owner = np.unique(group_of_row, return_inverse=True)
    return Samples(x, y, owner, names.tolist())


def _own_samples(
    folder: Path,
    config: dict[str, Any],
    data_dir: Path | None,
    client: str | None,
    table: dict[str, Any],
) -> Samples:
    """The test samples of the run's clients, one row for each client, or of the client that is named."""
    import numpy as np

    from unalike.cli.finished_run import client_index, own_data
    from unalike.data.partition_plan import PartitionPlan
    from unalike.data.partitioning.apply_plan import apply_plan
    from unalike.data.ragged import Ragged

    if table:
        raise UnalikeError(
            f"found --{next(iter(table))} without --data: the rows are the run's own clients; give the table with --data"
        )
    if not (folder / "plan.json").exists():
        raise UnalikeError(
            f"{folder} has no partition plan, so the clients' samples are unknown; give --data"
        )
    plan = PartitionPlan.load(folder / "plan.json")
    population = apply_plan(plan, own_data(folder, config, data_dir))
    chosen = range(len(population)) if client is None else [client_index(population, client)]
    test = Ragged.of(population.test[k] for k in chosen)
    owner = np.repeat(np.arange(len(chosen)), test.sizes)
    names = [population.names[k] for k in chosen]
    return Samples(population.x[test.values], population.y[test.values], owner, names)
