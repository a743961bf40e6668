"""`unalike evaluate`: evaluate the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli.flags import Client, data_dir, uses_flags

NAME = "evaluate"


@uses_flags(data_dir=data_dir, table=data_flags.table)
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of `unalike run --out`, or of a site.")],
    data: Annotated[str | None, typer.Option(help="Data set or file; the run's own clients unless given.")] = None,
    client: Client = None,
    *,
    data_dir: Path | None,
    table: dict[str, Any],
) -> None:
    """Evaluate a run's shared model, or the model of one of its clients.

    The samples are the test samples of the run's clients (of the client named), or all samples of another data set. Tables
    are encoded as in the run; classes are identified by name.

    \b
    unalike evaluate runs/prox
    unalike evaluate runs/prox --data new.npz
    unalike evaluate runs/ward --data new_patients.csv
    unalike evaluate runs/ditto --client north
    """
    import numpy as np

    from unalike.cli.finished_run import (
        client_index,
        fitting,
        labels,
        load_model,
        model_folder,
        note_shared_model,
        own_data,
    )
    from unalike.cli.terminal_tables import tables
    from unalike.core.tasks import find_task
    from unalike.data.partition_plan import PartitionPlan
    from unalike.data.partitioning.apply_plan import apply_plan
    from unalike.data.ragged import Ragged
    from unalike.metrics.metrics import measure, per_client
    from unalike.metrics.named_metrics import KNOWN
    from unalike.metrics.scoring import score

    folder = model_folder(folder)
    predict, config = load_model(folder, client)
    if data is not None:
        other = fitting(data, data_dir, folder, config, table)
        x, y, task = other.merged()[0], labels(other, folder, config), find_task(config["data"]["task"])
        scores = score(task, predict, x, y, np.zeros(len(y), np.int64))
        rows = {data: measure(task, scores)}
    else:
        if not (folder / "plan.json").exists():
            raise UnalikeError(f"{folder} has no partition plan, so the clients' samples are unknown; give --data")
        population = apply_plan(PartitionPlan.load(folder / "plan.json"), own_data(folder, config, data_dir))
        chosen = range(len(population)) if client is None else [client_index(population, client)]
        test = Ragged.of(population.test[k] for k in chosen)
        owner = np.repeat(np.arange(len(chosen)), test.sizes)
        scores = score(population.task, predict, population.x[test.values], population.y[test.values], owner)
        by_client = per_client(population.task, scores, len(chosen))
        rows = dict(zip([population.names[k] for k in chosen], by_client, strict=True))
        if client is None:
            rows["all"] = measure(population.task, scores)
    metrics = [KNOWN[name] for name in next(iter(rows.values()))]
    note_shared_model(config, client)
    cells = [[name, *(metric.text(values[metric.name]) for metric in metrics)] for name, values in rows.items()]
    tables(["", *(metric.word for metric in metrics)], cells)
