"""`unalike study ledger`: write the page with the verdict on every claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unalike.cli.study import arguments as a

NAME = "ledger"


def command(
    out: a.Results = None,
    file: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/reproduction.md"),
) -> None:
    """Write the ledger: every claim with the verdict that the stored results give.

    \b
    unalike study ledger --file ledger.md
    """
    from unalike._utils.tensor_files import write_bytes
    from unalike.studies.catalogue import STUDIES
    from unalike.studies.ledger import page
    from unalike.studies.results import FOLDER

    write_bytes(file, page(STUDIES.values(), out or FOLDER).encode())
    print(f"ledger: {file.resolve()}")
