"""`unalike join`: run a site of a federation."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike.cli import data_flags
from unalike.cli.flags import data_dir, needs_federation, uses_flags

NAME = "join"


@needs_federation
@uses_flags(data_dir=data_dir, table=data_flags.table)
def command(
    bundle: Annotated[
        Path, typer.Argument(help="The site's bundle, from the operator of the coordinator.")
    ],
    data: Annotated[
        str,
        typer.Option(
            help="The site's samples: a file such as site.parquet or site.npz, or a folder."
        ),
    ],
    *,
    table: dict[str, Any],
    data_dir: Path | None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for the site's state and logs; next to the bundle unless given."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="host:port of the coordinator, if it differs from the bundle's."),
    ] = None,
    device: Annotated[str, typer.Option(help="Device to train on: cpu, cuda, cuda:1, ...")] = "cpu",
    until_done: Annotated[
        bool, typer.Option("--until-done", help="End when all runs are done.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print what would leave this machine, and exit.")
    ] = False,
) -> None:
    """Take part in a federation with this machine's data.

    The command runs until Ctrl-C. The data stay on this machine.

    \b
    unalike join site-1.zip --data mine.npz --show     # print what would leave this machine
    unalike join site-1.zip --data mine.npz
    unalike join site-1.zip --data mine.parquet --target outcome

    A site that is started again continues with its state. Code from the coordinator is never executed.
    """
    from unalike.data.sources.load import table_at
    from unalike.federation.operations.run_site import join, wire_lines
    from unalike.federation.protocol.bundle import Bundle
    from unalike.federation.site.site_policy import SitePolicy

    home = folder or bundle.with_suffix("")
    contents = Bundle.read(bundle, home)
    # Only a reader of tables knows the flag; other samples are accepted by the site alone.
    accept = table.pop("accept", False)
    if accept and table_at(data, data_dir) is not None:
        table["accept"] = True
    data = data_flags.spec(data, table)
    if show:
        least_test = SitePolicy.read(home / "site.toml").least_test
        lines = wire_lines(
            contents.federation, data, data_dir, contents.site, least_test, contents.public
        )
        print("\n".join([*lines, f"fingerprint of the federation: {contents.fingerprint}"]))
        return
    join(
        contents,
        data,
        data_dir=data_dir,
        folder=home,
        address=address or contents.address,
        log=partial(print, flush=True),
        device=device,
        accept=accept,
        until_done=until_done,
    )
