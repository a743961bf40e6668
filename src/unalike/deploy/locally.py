"""A whole federation on this machine: real processes, sockets and certificates, the sites' data in files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from unalike.core.errors import UnalikeError
from unalike.data import ClientData, Population
from unalike.data.check import Pair
from unalike.deploy.coordinate import coordinate
from unalike.deploy.federation import Federation, Schema
from unalike.deploy.flower.link import free_port
from unalike.deploy.folder import Folder
from unalike.deploy.processes import Supervisor, child_environment

JOIN = "from unalike.cli import main; main()"


def locally(
    out: Path,
    people: Population,
    terms: dict[str, Any],
    tell: Callable[[str], None],
    own: Mapping[str, Pair | None] = MappingProxyType({}),
) -> None:
    """Train on `people`, each of whom becomes a site of its own processes; history, model and report end up in `out`.

    `own` are the coordinator's samples, "test" and "proxy".
    """
    port = free_port()
    folder = _folder(out, people, terms, own, port)
    nodes = list(folder.nodes)

    def sites(supervisor: Supervisor) -> None:
        for name in nodes:
            home = out / "sites" / name
            command = [sys.executable, "-c", JOIN, "join", str(folder.bundles[name]), "--folder", str(home)]
            command += ["--data", str((home / "data.npz").resolve()), "--address", f"127.0.0.1:{port}"]
            supervisor.start(name, command, child_environment(OMP_NUM_THREADS="1"))

    coordinate(folder, tell, port=port, beside=sites)


def _folder(out: Path, people: Population, terms: dict[str, Any], own: Mapping[str, Pair | None], port: int) -> Folder:
    """The folder of this federation: a new one, or the one that was begun."""
    names = [f"site-{k + 1}" for k in range(len(people))]
    classes = None if people.outputs is None else tuple(people.classes or ())
    data = Schema(people.input_shape, classes, cast(Any, people.task.name), tokens=not people.x.is_floating_point())
    if (out / "federation.toml").exists():
        folder = Folder(out)
        _same(folder.federation, terms, len(people), out)
        return folder
    sizes = {name: int(size) for name, size in zip(names, people.sizes)}
    folder = Folder.create(
        out, sizes, host="127.0.0.1", port=port, listen="127.0.0.1", name="local", data=data, own=own, **terms
    )
    for name, person in zip(names, people):
        write_site(out / "sites" / name / "data.npz", person, people.classes)
    return folder


def write_site(path: Path, person: ClientData, classes: list[str] | None) -> None:
    """A client's samples as a file that `unalike join` reads."""
    arrays: dict[str, Any] = {"train_x": person.train[0], "train_y": person.train[1]}
    if person.test is not None:
        arrays |= {"test_x": person.test[0], "test_y": person.test[1]}
    arrays |= {} if classes is None else {"classes": np.array(classes)}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    np.savez(path, **{name: np.asarray(t) for name, t in arrays.items()})  # type: ignore[arg-type]


def _same(found: Federation, terms: dict[str, Any], sites: int, out: Path) -> None:
    wanted = replace(found, **terms)
    if (wanted.terms, wanted.rounds) != (found.terms, found.rounds) or len(found.sites) != sites:
        raise UnalikeError(
            f"{out} holds another federation; repeat its flags to go on with it, or choose another folder"
        )
