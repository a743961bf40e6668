"""`unalike federation up`: run a federation's coordinator."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import data_flags
from unalike.cli import flags as f
from unalike.cli.config_file import Config
from unalike.cli.federation import init
from unalike.core.options import PartitionOptions, ServerSampleOptions

NAME = "up"


@f.uses_flags(
    source=data_flags.source,
    held_out=f.values_of(ServerSampleOptions),
    partition=f.value_of(PartitionOptions, "partition"),
    terms=init.terms,
)
def command(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder that `unalike federation init` made.", show_default=False),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait for `unalike federation run` before the first round."),
    ] = False,
    local: Annotated[
        int | None,
        typer.Option(help="Run this number of sites on this machine, on a partition of --data."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of a --local federation.")] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Stay up when all runs are done, for later ones.")
    ] = False,
    *,
    source: data_flags.DataFlags,
    held_out: dict[str, Any],
    partition: str | None,
    terms: dict[str, Any],
    config: Config = None,
) -> None:
    """Start a federation: wait for the sites, then train.

    The same command continues where the run stopped.

    \b
    unalike federation up hospitals
    unalike federation up --local 3 --data digits --method fedmix --rounds 2 --out fed

    With --local, all sites run on this machine, with real processes, sockets and certificates. The flags from --data on need
    --local; a folder of `init` has its own file of terms. All processes end with the command, also on Ctrl-C.
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder
    from unalike.federation.operations.run_coordinator import coordinate

    def print_line(line: str) -> None:
        print(line, flush=True)

    has_one_source = (folder is None) != (local is None)
    lacks_folder = local is not None and out is None
    if not has_one_source or lacks_folder:
        raise UnalikeError(
            "found no federation to start, or two; give either a folder of `unalike federation init`, or --local 3 --out DIR"
        )
    if folder is not None:
        coordinate(FederationFolder(folder), print_line, wait=wait, stay=stay)
        return

    # with --local the data is divided here, and each client becomes a site
    from unalike.data.partitioning.partition import partition as divide
    from unalike.data.partitioning.partition import usual_partition
    from unalike.data.sanity import listed
    from unalike.federation.operations.run_coordinator import locally

    assert local is not None and out is not None
    loaded = replace(source, **held_out).load(terms["protocol"])
    spec = partition or usual_partition(loaded.dataset, "dirichlet(alpha=0.5, min_size=2)")
    # samples that belong to owners are divided by these, unless a partition is given
    owners: set[str] = set()
    if partition is None and loaded.dataset.owners:
        column, *_ = loaded.dataset.owners
        owners = {str(name) for name in loaded.dataset.groups[column]}
    if owners and local > len(owners):
        raise UnalikeError(
            f"found --local {local}, and the data has {len(owners)} owners; expected --local up to that"
        )
    population = divide(loaded.dataset, spec, local, seed=terms["seed"])
    left_out = sorted(owners.difference(population.names))
    if left_out:
        print_line(
            f"note: {local} of {len(owners)} owners get a site (--local {local}); left out: {listed(left_out)}"
        )
    server_samples = {"test": loaded.test, "proxy": loaded.proxy}
    again = shlex.join(["unalike", *sys.argv[1:]])
    locally(out, population, terms, print_line, server_samples, again=again, wait=wait)
