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
from unalike.cli.names import named

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from unalike.core.tasks import Task
    from unalike.metrics.metrics import RunMetrics

NAME = "evaluate"
POOLED, MEAN = "all samples pooled", "mean of the rows"
"""The rows for all samples as if they were of one client, and for the unweighted mean of the rows above that have a value."""


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
            **named("metric"),
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
    from unalike.core.tasks import find_task
    from unalike.metrics.metrics import measure, per_client, positives, run_metrics
    from unalike.metrics.scoring import score

    folder = model_folder(folder)
    predict, config = load_model(folder, client)
    classes = config["data"].get("classes")
    task = find_task(config["data"]["task"]).of(classes)
    chosen = _metrics(metric, config, task, classes)
    if data is not None:
        x, y, owner, rows = _other_samples(data, data_dir, folder, config, table)
    else:
        x, y, owner, rows = _own_samples(folder, config, data_dir, client, table)
    scores = score(task, predict, x, y, owner, logits=bool(chosen))
    found = pd.DataFrame(per_client(task, scores, len(rows), chosen), index=rows)
    if len(rows) > 1:
        found = pd.concat(
            [
                found,
                pd.DataFrame([measure(task, scores, chosen), found.mean()], index=[POOLED, MEAN]),
            ]
        )
    counts = {
        "samples": pd.Series(owner).groupby(owner).size().reindex(range(len(rows)), fill_value=0)
    }
    if (of_class := positives(scores, len(rows), classes)) is not None:
        counts["positives"] = pd.Series(of_class)
    for name, count in reversed(counts.items()):
        found.insert(0, name, [*count, *([count.sum(), math.nan] if len(rows) > 1 else [])])
    note_shared_model(config, client)
    if as_json:
        records = [
            {"row": row, **values}
            for row, values in zip(found.index, found.to_dict("records"), strict=True)
        ]
        values = [
            {k: None if v != v else int(v) if k in counts else v for k, v in r.items()}
            for r in records
        ]
        print(json.dumps(values, indent=1))
        return
    texts = {name: ["" if math.isnan(n) else f"{n:.0f}" for n in found[name]] for name in counts}
    if classes is not None and "positives" in texts:
        texts[f"positives ({classes[-1]})"] = texts.pop("positives")
    texts |= {
        m.word: [m.text(value) for value in found[name]]
        for name, m in run_metrics(task, chosen).items()
    }
    tables(["", *texts], list(zip(found.index, *texts.values(), strict=True)))


def _metrics(
    asked: list[str], config: dict[str, Any], task: Task, classes: list[str] | None
) -> RunMetrics:
    """The metrics that were asked for, else those of the run; a warning names those that only a program knows."""
    from unalike.metrics.named_metrics import read

    specs = asked or config.get("metric", ())
    found = {
        m.name: m.of(task, classes) for m in read([specs] if isinstance(specs, str) else specs)
    }
    unknown = [] if asked else [name for name in config.get("metrics", ()) if name not in found]
    if unknown:
        warn(f"the metrics {', '.join(unknown)} of the run came from a program and are left out")
    return found


def _other_samples(
    data: str, data_dir: Path | None, folder: Path, config: dict[str, Any], table: dict[str, Any]
) -> Samples:
    """All samples of a data set: one row, or with --group one for each group."""
    import numpy as np

    from unalike.cli.finished_run import fitting, labels, note_own_data

    note_own_data(data, folder, config)
    found = fitting(data, data_dir, folder, config, table)
    y = labels(found, folder, config)
    owner, rows = np.zeros(len(y), np.int64), [found.name if "(" in data else Path(data).name]
    if table.get("group"):
        columns = [found.groups[column].astype(str) for column in table["group"]]
        names, owner = np.unique(
            [", ".join(cells) for cells in zip(*columns, strict=True)], return_inverse=True
        )
        rows = names.tolist()
    return Samples(found.merged()[0], y, owner, rows)


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
    population = apply_plan(
        PartitionPlan.load(folder / "plan.json"), own_data(folder, config, data_dir)
    )
    chosen = range(len(population)) if client is None else [client_index(population, client)]
    test = Ragged.of(population.test[k] for k in chosen)
    owner = np.repeat(np.arange(len(chosen)), test.sizes)
    x, y = population.x[test.values], population.y[test.values]
    return Samples(x, y, owner, [population.names[k] for k in chosen])
