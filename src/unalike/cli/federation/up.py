"""`unalike federation up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unalike.cli import options as o
from unalike.cli.federation import init

NAME = "up"


@o.shares(terms=init.terms)
def command(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder that `unalike federation init` made.", show_default=False)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Begin the rounds at `unalike federation run`.")] = False,
    local: Annotated[
        int | None, typer.Option(help="Everything on this machine: so many sites, which share out --data.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of a --local federation.")] = None,
    data: o.Data = "digits",
    data_dir: o.DataDir = None,
    proxy: o.Proxy = None,
    test: o.Test = None,
    partition: o.Partition = "dirichlet(alpha=0.5, min_size=2)",
    rounds: o.Rounds = 3,
    *,
    terms: dict[str, Any],
    config: o.Config = None,
) -> None:
    """Bring a federation up: wait for the sites, then train.

    The same command goes on where it stopped.

    \b
    unalike federation up hospitals
    unalike federation up --local 3 --data digits --method fedmix --rounds 2 --out fed

    With --local it is all on this machine, with real processes, sockets and certificates; the flags from --data on are for that
    alone, a folder of `init` has its own file. It ends every process that it started, also on Ctrl-C.
    """
    from unalike._utils.errors import UnalikeError
    from unalike.federation.operations.extras import require_extra

    require_extra()
    from unalike.federation.operations.federation_folder import FederationFolder
    from unalike.federation.operations.run_coordinator import coordinate

    def tell(line: str) -> None:
        print(line, flush=True)

    if (folder is None) == (local is None) or (local is not None and out is None):
        raise UnalikeError(
            "what is to be brought up? Give a folder of `unalike federation init`, or --local 3 --out DIR"
        )
    if folder is not None:
        coordinate(FederationFolder(folder), tell, wait=wait)
        return
    from unalike.data.partitioning.partition import partition as divide
    from unalike.federation.operations.local_federation import locally

    found, learn, held = o.dataset(data, data_dir, proxy, test, terms["protocol"])
    people = divide(found, partition, local, seed=terms["seed"])
    assert out is not None
    locally(out, people, terms | {"rounds": rounds}, tell, {"test": held, "proxy": learn}, wait=wait)
