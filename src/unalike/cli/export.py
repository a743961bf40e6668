"""`unalike export`: write the model of a finished run as a folder that predicts without this library."""

from pathlib import Path
from typing import Annotated

import typer

from unalike.cli.flags import Client, path

NAME = "export"


def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of `unalike run --out`, of a federation, or of a site.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder to write; files of an earlier export are replaced.",
            parser=path,
            metavar="PATH",
        ),
    ],
    client: Client = None,
) -> None:
    """Write a run's shared model, or the model of one of its clients, as a folder that predicts without unalike.

    The folder holds model.pt2 (of torch.export), model.json (columns, categories, scaling, classes and the run), and predict.py,
    which reads a table and writes the probabilities of its rows; it needs torch alone.

    \b
    unalike export runs/ward --out model
    python model/predict.py new_patients.csv > predictions.csv
    """
    from unalike.cli.finished_run import encoding_of, load_model, model_folder, note_shared_model
    from unalike.runtime.results.exported_model import SCRIPT_FILE, export_model

    folder = model_folder(folder)
    predict, config = load_model(folder, client)
    encoding = encoding_of(folder, config)
    export_model(out, predict, config, encoding, client)
    note_shared_model(config, client)
    # without an encoding of a table the script reads samples as numbers
    example = "samples.json" if encoding is None else "new.csv"
    print(f"{out.resolve()}; try it: python {out / SCRIPT_FILE} {example}")
