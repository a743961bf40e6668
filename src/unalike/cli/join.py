"""`unalike join`: a site."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unalike.cli import options as o

NAME = "join"


def command(
    bundle: Annotated[Path, typer.Argument(help="The site's bundle, as the coordinator handed it over.")],
    data: Annotated[
        str, typer.Option(help="The site's samples: a file such as site.parquet or site.npz, or a folder.")
    ],
    target: o.Target = None,
    data_dir: o.DataDir = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the site keeps its memory and logs; beside the bundle unless given.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="host:port of the coordinator, where it is not the bundle's.")
    ] = None,
    device: Annotated[str, typer.Option(help="What the site trains on: cpu, cuda, cuda:1, ...")] = "cpu",
    trainer: Annotated[
        bool,
        typer.Option("--trainer", help="The trainer alone, on the socket FOLDER/trainer, for a SuperNode of your own."),
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Say what would leave this machine, and leave.")] = False,
) -> None:
    """Take part in a federation with this machine's data.

    It lasts until Ctrl-C; the data stay here.

    \b
    unalike join site-1.zip --data mine.npz --show     # what would leave this machine
    unalike join site-1.zip --data mine.npz
    unalike join site-1.zip --data mine.parquet --target outcome

    Started again, a site continues with its own memory. Nothing that the coordinator sends is executed.
    """
    from unalike.federation.operations.extras import require_extra

    require_extra()
    from unalike.federation.security.bundle import Bundle
    from unalike.federation.site.join import join, wire_lines

    found, data = Bundle.read(bundle), o.table(data, target)
    if show:
        print("\n".join(wire_lines(found.federation, data, data_dir, found.site)))
        return
    home = folder or bundle.with_suffix("")
    tell = partial(print, flush=True)
    join(found, data, data_dir, home, address or found.address, tell, node=not trainer, device=device)
