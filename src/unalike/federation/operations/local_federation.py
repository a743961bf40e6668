"""A whole federation on this machine, with real processes, sockets and certificates."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from unalike._utils.errors import UnalikeError
from unalike._utils.system.supervisor import Supervisor, child_environment
from unalike._utils.tensor_files import write_bytes
from unalike.data.array_checks import Pair
from unalike.data.client_data import ClientData
from unalike.data.population import Population
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.flower.flower_processes import free_port
from unalike.federation.operations.run_coordinator import coordinate
from unalike.federation.protocol.federation_file import Schema

JOIN = "from unalike.cli import main; main()"


def locally(
    out: Path,
    population: Population,
    terms: dict[str, Any],
    log: Callable[[str], None],
    own: Mapping[str, Pair | None] = MappingProxyType({}),
    *,
    wait: bool = False,
) -> None:
    """Train on `population`: each client becomes a site with its own processes. History, model and report are written to `out`.

    `own` are the coordinator's samples, "test" and "proxy". `wait`: begin when the operator says `unalike federation run`.
    """
    port = free_port()
    folder = _folder(out, population, terms, own, port)
    nodes = list(folder.nodes)

    def sites(supervisor: Supervisor) -> None:
        for name in nodes:
            home = out / "sites" / name
            command = [sys.executable, "-c", JOIN, "join", str(folder.bundles[name]), "--folder", str(home)]
            command += ["--data", str((home / "data.npz").resolve()), "--address", f"127.0.0.1:{port}"]
            supervisor.start(name, command, child_environment(OMP_NUM_THREADS="1"))

    again = f"unalike federation up --local {len(population)} ... --out {out}"
    coordinate(folder, log, wait=wait, port=port, beside=sites, again=again)


def _folder(
    out: Path, population: Population, terms: dict[str, Any], own: Mapping[str, Pair | None], port: int
) -> FederationFolder:
    """The federation's folder, new or from an earlier start. Raises `UnalikeError` if it holds another federation."""
    sizes = {f"site-{k + 1}": int(size) for k, size in enumerate(population.sizes)}
    classes = None if population.outputs is None else tuple(population.classes or ())
    tokens, task = not population.x.is_floating_point(), cast(Any, population.task.name)
    terms = terms | {"data": Schema(population.input_shape, classes, task, tokens, population.encoding)}
    if (out / "federation.toml").exists():
        folder = FederationFolder(out)
        federation = folder.federation
        if (
            replace(federation, **terms) != federation
            or {site.name: site.samples for site in federation.sites} != sizes
        ):
            raise _another_federation(out)
    else:
        folder = FederationFolder.create(
            out, sizes, host="127.0.0.1", port=port, listen="127.0.0.1", own=own, name="local", **terms
        )
    for name, client in zip(sizes, population):
        file = out / "sites" / name / "data.npz"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # private data
            write_site(file, client, population.classes)
        elif file.read_bytes() != archive(client, population.classes):
            raise _another_federation(out)
    return folder


def _another_federation(out: Path) -> UnalikeError:
    return UnalikeError(f"{out} holds another federation; repeat its flags to continue it, or choose another folder")


def write_site(path: Path, client: ClientData, classes: list[str] | None) -> None:
    """Write a client's samples as a file for `unalike join`. Raises `UnalikeError` if it cannot be written."""
    write_bytes(path, archive(client, classes))


def archive(client: ClientData, classes: list[str] | None) -> bytes:
    """The content of that file; equal samples give equal bytes."""
    arrays: dict[str, Any] = {"train_x": client.train[0], "train_y": client.train[1]}
    if client.test is not None:
        arrays |= {"test_x": client.test[0], "test_y": client.test[1]}
    arrays |= {} if classes is None else {"classes": np.array(classes)}
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(t) for name, t in arrays.items()})  # type: ignore[arg-type]
    return file.getvalue()
