"""Arguments that the commands of `unalike study` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Study = Annotated[str, typer.Argument(help="Name of a study (see `unalike study list`).")]
Studies = Annotated[
    list[str], typer.Argument(help="Names of studies (see `unalike study list`), or patterns such as 'fedlws-*'.")
]
ScaleName = Annotated[str, typer.Option(help="smoke (under a minute), small, or paper (the paper's settings).")]
Results = Annotated[
    Path | None, typer.Option(help="Folder of results; studies/results unless given.", show_default=False)
]
