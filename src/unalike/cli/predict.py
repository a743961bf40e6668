"""`unalike predict`: predict new samples with the model of a finished run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli.flags import Client, Recalibrated, data_dir, path, uses_flags, values_of
from unalike.core.options import TableOptions

if TYPE_CHECKING:
    import numpy as np

    from unalike.core.tasks.task import Task

NAME = "predict"


@uses_flags(
    data_dir=data_dir, columns=values_of(TableOptions, only=("sep", "decimal", "charset", "date"))
)
def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of `unalike run --out`, of a federation, or of a site.")
    ],
    data: Annotated[str, typer.Option(help="Data set or file with the samples.")],
    *,
    data_dir: Path | None,
    columns: dict[str, Any],
    client: Client = None,
    keep: Annotated[
        list[str],
        typer.Option(
            help="Column of the table to copy, such as an id; repeat for several.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Risk from which on the prediction is the second of two classes; 0.5 unless given.",
            min=0,
            max=1,
            show_default=False,
        ),
    ] = None,
    recalibration: Recalibrated = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="New CSV file to write, or .tsv; of masks and texts .npz. predictions.csv or predictions.npz unless given.",
            parser=path,
            metavar="PATH",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Predict every sample of a data set with a run's shared model, or with the model of one of its clients.

    The file has one row per sample, in the order of the data: its number, the columns to keep, the prediction, and the probability
    of each class. A table needs no target column; it is encoded as in the run. Categories that no training row had are named.

    With two classes --threshold says how large a risk has to be for the second class to be predicted, and --recalibration corrects
    risks for the place that they are used at.

    \b
    unalike predict runs/prox --data new.npz --out predictions.csv
    unalike predict runs/ward --data new_patients.csv --keep patient_id
    unalike predict runs/ward --data new_patients.csv --threshold 0.3
    unalike predict runs/ditto --data new_patients.csv --client north
    """
    import pandas as pd

    from unalike._utils.tensor_files import write_bytes
    from unalike.cli.finished_run import (
        load_model,
        model_folder,
        note_shared_model,
        recalibrated,
        samples,
    )
    from unalike.core.tasks.registry import find_task

    folder = model_folder(folder)
    predict, config = load_model(folder, client)
    classes = config["data"].get("classes")
    task = find_task(config["data"]["task"]).of(classes)
    if recalibration is not None:
        predict = recalibrated(predict, recalibration, task, config, client)
    out = _new_file(out, task)
    new_samples = samples(data, data_dir, folder, config, keep, columns)
    predicted = new_samples.predictions(predict, task, classes, threshold)
    if isinstance(predicted, pd.DataFrame):
        separator = "\t" if out.suffix == ".tsv" else ","
        content = predicted.to_csv(sep=separator).encode()
    else:
        content = _archive(predicted)
    write_bytes(out, content)
    note_shared_model(config, client)
    owner = client or config.get("site")
    whose = "the shared model" if owner is None else f"the model of {owner}"
    print(f"{len(predicted)} predictions of {whose}: {out.resolve()}")


def _new_file(out: Path | None, task: Task) -> Path:
    """The file to write. Raises `UnalikeError` for one that exists, or that cannot hold predictions of the task."""
    if out is None:
        out = Path("predictions.npz" if task.predicts_arrays else "predictions.csv")
    if out.exists():
        raise UnalikeError(
            f"{out} exists, and predictions are written over nothing; remove it, or give another --out"
        )
    if task.predicts_arrays != (out.suffix == ".npz"):
        expected = ".npz: each is an array" if task.predicts_arrays else ".csv or .tsv"
        raise UnalikeError(
            f"--out {out} cannot hold predictions of a task of {task.name}; expected a file {expected}"
        )
    return out


def _archive(predicted: np.ndarray) -> bytes:
    """A NumPy archive with the array `prediction` [n, ...]."""
    import numpy as np

    file = io.BytesIO()
    np.savez_compressed(file, prediction=predicted)
    return file.getvalue()
