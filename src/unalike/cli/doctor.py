"""`unalike doctor`: what this machine has, and whether the installation works."""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli import flags as f
from unalike.engine.compiled.layer_chain import chain_or_reason

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "doctor"

LISTED = 12
"""Names of data files that are listed."""

Facts = dict[str, Any]

AskedModel = Annotated[
    str | None,
    typer.Option(
        "--model", help="A model of the catalogue, or module:Class of your own.", show_default=False
    ),
]

MODULES = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "tomli-w": "tomli_w",
    "annotated-types": "annotated_types",
}
"""Library -> its module, where the names differ."""


@f.uses_flags(data_dir=f.data_dir)
def command(*, data_dir: Path | None, model: AskedModel = None, as_json: f.AsJson = False) -> None:
    """Say what this machine has, and whether the installation works.

    Cores, memory, GPUs, versions, compiled loops (by a run of one round), extras and how to install them, data files. With
    --model also whether compiled loops train a network, and what keeps them from it.

    \b
    unalike doctor
    unalike doctor --json
    unalike doctor --model resnet20
    unalike doctor --model networks:Net    # the class Net of networks.py

    The exit status is 1 if something that a default installation needs is missing or broken.
    """
    facts = examined(data_dir) | ({} if model is None else {"model": _path_of(model)})
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        _print(facts)
    raise typer.Exit(1 if facts["broken"] else 0)


def _print(facts: dict[str, Any]) -> None:
    """Print the facts as lines of a name and what was found."""
    from rich.table import Table

    from unalike.cli.terminal_tables import console

    machine, trial, data = facts["machine"], facts["trial"], facts["data"]
    memory = machine.get("memory_mb")
    lines = [
        ("unalike", f"{facts['unalike']}, Python {facts['python']}, {facts['platform']}"),
        (
            "cores",
            f"{machine.get('cores', '?')}, torch uses {machine.get('threads', 'none')}, vectors {machine.get('vectors', '?')}",
        ),
        ("memory", "unknown" if memory is None else f"{memory / 1000:,.1f} GB"),
        ("GPU", ", ".join(machine.get("gpus", ())) or "none that torch can use"),
        (
            "libraries",
            ", ".join(
                f"{name} {version or 'MISSING'}" for name, version in facts["libraries"].items()
            ),
        ),
        (
            "training",
            trial.get("training", "not tried")
            + (f" ({trial['seconds']} s)" if "seconds" in trial else ""),
        ),
        ("compiled loops", trial.get("compiled loops", "not available: numba is not installed")),
    ]
    lines += [("model", facts["model"])] if "model" in facts else []
    for name, extra in facts["extras"].items():
        lacking = ", ".join(extra["missing"])
        lines.append(
            (f"extra {name}", f"lacks {lacking}; {extra['install']}" if lacking else "installed")
        )
    lines += [
        ("data", _where(data)),
        ("verdict", "everything that a default installation needs works"),
    ]
    if facts["broken"]:
        lines[-1:] = [("broken", what) for what in facts["broken"]]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=18)
    for line in lines:
        table.add_row(*line)
    console().print(table, highlight=False)


def _where(data: dict[str, Any]) -> str:
    """The folder of data files, and its contents, as a line."""
    embedded = f"embedded: {', '.join(data['embedded'])}"
    if data["folder"] is None:
        return f"{embedded}; no folder of data files: set {data['variable']}, or use --data-dir"
    names = data["files"]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{embedded}; in {data['folder']}: {', '.join(names[:LISTED]) or 'nothing that can be read'}{more}"


def examined(data_dir: Path | None = None) -> Facts:
    """The facts, as plain values. `broken` lists what a default installation needs and does not have."""
    from unalike._utils.version import __version__

    libraries, broken = _libraries()
    trial = {} if any(line.startswith("torch") for line in broken) else _trial()
    outcomes = {name: trial.get(name, "works") for name in ("training", "compiled loops")}
    broken += [f"{name}: {outcome}" for name, outcome in outcomes.items() if outcome != "works"]
    return {
        "unalike": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "machine": _machine(),
        "libraries": libraries,
        "trial": trial,
        "extras": _extras(),
        "data": _data(data_dir),
        "broken": broken,
    }


def _machine() -> Facts:
    """Cores, memory and accelerators, as this process can use them."""
    facts: Facts = {}
    try:
        from unalike._utils.system.machine import cores, memory_mb

        facts |= {"cores": cores(), "memory_mb": memory_mb()}
        import torch
    except (ImportError, OSError):  # `broken` says so
        return facts
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    gpus += ["Apple GPU (mps)"] if torch.backends.mps.is_available() else []
    return facts | {
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
        "threads": torch.get_num_threads(),
    }


def _requirements(extra: str = "") -> list[Requirement]:
    """The requirements of the default installation on this platform, or those that an extra adds."""
    from packaging.requirements import Requirement

    listed = [Requirement(line) for line in metadata.requires("unalike") or ()]
    default = [r for r in listed if r.marker is None or r.marker.evaluate({"extra": ""})]
    if not extra:
        return default
    return [
        r
        for r in listed
        if r not in default and r.marker is not None and r.marker.evaluate({"extra": extra})
    ]


def _version(name: str) -> str | None:
    """The installed version of a library; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _libraries() -> tuple[dict[str, str | None], list[str]]:
    """The libraries of the default installation with their versions, and what is wrong with them."""
    try:
        requirements = _requirements()
    except metadata.PackageNotFoundError:
        return {}, [
            "unalike: it is imported from a folder and not installed; install it: pip install unalike"
        ]
    versions = {r.name: _version(r.name) for r in requirements}
    broken = []
    for requirement in requirements:
        name, version = requirement.name, versions[requirement.name]
        if version is None:
            broken.append(f"{name}: not installed; pip install '{name}{requirement.specifier}'")
        elif not requirement.specifier.contains(version, prereleases=True):
            broken.append(f"{name}: found {version}, expected {requirement.specifier}")
        elif why := _import_error(MODULES.get(name, name)):
            broken.append(f"{name} {version}: {why}")
    return versions, broken


def _import_error(module: str) -> str:
    """The reason why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a broken library raises
        return f"cannot be imported ({type(error).__name__}: {error})"
    return ""


def _trial() -> Facts:
    """Train one round of a tiny dense model: whether training works, and with compiled loops."""
    import torch

    import unalike as ua

    started = time.perf_counter()
    labels = torch.arange(8) % 2
    sample = (torch.nn.functional.one_hot(labels, 4).float(), labels)
    clients = [ua.ClientData(train=sample, test=sample) for _ in range(2)]
    try:
        ua.run(
            "fedavg",
            clients,
            model="mlp(hidden=(4,))",
            rounds=1,
            executor="batched",
            progress=False,
        )
    except Exception as error:  # whatever a broken library raises
        return {"training": f"{type(error).__name__}: {error}"}
    facts: Facts = {"training": "works", "seconds": round(time.perf_counter() - started, 1)}
    if _version("numba") is not None:  # where the platform has no numba, nothing is broken
        facts["compiled loops"] = _import_error("unalike.loops.kernels") or "works"
    return facts


def _path_of(name: str) -> str:
    """The executor of a model of the catalogue or a class `module:Class`. Raises `UnalikeError` if there is none."""
    from unalike import model
    from unalike.core.model import Model

    sys.path.insert(0, "")  # a module in the working directory, as `python -m` would find it
    try:
        made = resolve_name(name)() if ":" in name else model(name)
    except (ImportError, AttributeError, TypeError) as error:
        raise UnalikeError(
            f"--model {name}: {error}; expected a class of networks without arguments"
        ) from None
    finally:
        sys.path.remove("")
    found = chain_or_reason(Model(made))
    if isinstance(found, str):
        return f"torch trains it, not the compiled loops: {found}"
    return "compiled loops train it, with SGD in float32 on a CPU"


def _extras() -> dict[str, Facts]:
    """Extra -> the libraries that it lacks, and the command that installs it."""
    try:
        names = metadata.metadata("unalike").get_all("Provides-Extra") or []
        missing = {
            n: [r.name for r in _requirements(n) if r.name != "unalike" and not _version(r.name)]
            for n in names
        }
    except metadata.PackageNotFoundError:
        return {}
    return {
        n: {"missing": lacking, "install": f"pip install 'unalike[{n}]'"}
        for n, lacking in missing.items()
    }


def _data(data_dir: Path | None) -> Facts:
    """The folder of data files, and what is in it that can be read."""
    from unalike.data.sources.registry import FOLDER, data_folder, ending
    from unalike.data.sources.registry import registry as names

    folder = data_folder(data_dir)
    embedded = [name for name in ("digits", "heart_disease", "glyphs") if name in names]
    facts: Facts = {
        "variable": FOLDER,
        "folder": folder and str(folder.resolve()),
        "embedded": embedded,
        "files": [],
    }
    if folder is None or not folder.is_dir():
        return facts
    return facts | {
        "files": sorted(
            p.name for p in folder.iterdir() if p.is_dir() or ending(p.name) is not None
        )
    }
