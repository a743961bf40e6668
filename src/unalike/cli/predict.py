"""`unalike predict`: predict new samples with the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unalike.cli.flags import Client, data_dir, uses_flags

NAME = "predict"


@uses_flags(data_dir=data_dir)
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of `unalike run --out`, or of a site.")],
    data: Annotated[str, typer.Option(help="Data set or file with the samples.")],
    *,
    data_dir: Path | None,
    client: Client = None,
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("predictions.csv"),
) -> None:
    """Predict every sample of a data set with a run's shared model, or with the model of one of its clients.

    The CSV file has one row per sample, in the order of the data, and for classes the probability of the prediction. A table needs
    no target column; it is encoded as in the run.

    \b
    unalike predict runs/prox --data new.npz --out predictions.csv
    unalike predict runs/ward --data new_patients.csv
    unalike predict runs/ditto --data new_patients.csv --client north
    """
    import pandas as pd
    import torch

    from unalike._utils.tensor_files import write_bytes
    from unalike.cli.finished_run import load_model, model_folder, note_shared_model, samples
    from unalike.core.tasks import find_task
    from unalike.metrics.scoring import outputs

    folder = model_folder(folder)
    predict, config = load_model(folder, client)
    logits = torch.cat([*outputs(predict, samples(data, data_dir, folder, config))])
    task = find_task(config["data"]["task"])
    predicted = task.predict(logits).numpy()
    names = config["data"].get("classes")
    table = pd.DataFrame(
        {"prediction": [names[p] for p in predicted] if names and task.name == "classification" else predicted}
    )
    if task.name == "classification":
        table["probability"] = logits.softmax(1).amax(1).numpy()
    elif task.name == "binary":
        table["probability"] = logits.reshape(len(logits)).abs().sigmoid().numpy()
    write_bytes(out, table.to_csv(index_label="sample").encode())
    note_shared_model(config, client)
    print(f"{len(table)} predictions: {out.resolve()}")
