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

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "doctor"

MAX_LISTED_FILES = 12
"""Most data files whose names are printed."""

Findings = dict[str, Any]
"""What was found on this machine: name -> plain values."""

AskedModel = Annotated[
    str | None,
    typer.Option(
        "--model", help="A model of the catalogue, or module:Class of your own.", show_default=False
    ),
]

MODULE_OF_LIBRARY = {
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
    findings = examine(data_dir)
    if model is not None:
        findings["model"] = _executor_of(model)
    if as_json:
        print(json.dumps(findings, indent=1))
    else:
        _print(findings)
    raise typer.Exit(1 if findings["broken"] else 0)


def _print(findings: Findings) -> None:
    """Print the findings as lines of a name and what was found."""
    from rich.table import Table

    from unalike.cli.terminal_tables import console

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=18)
    for name, text in _lines(findings):
        table.add_row(name, text)
    console().print(table, highlight=False)


def _lines(findings: Findings) -> list[tuple[str, str]]:
    """The findings in words: name and text of each line."""
    # the machine
    machine = findings["machine"]
    cores = machine.get("cores", "?")
    threads = machine.get("threads", "none")
    vectors = machine.get("vectors", "?")
    memory = machine.get("memory_mb")
    lines = [
        ("unalike", f"{findings['unalike']}, Python {findings['python']}, {findings['platform']}"),
        ("cores", f"{cores}, torch uses {threads}, vectors {vectors}"),
        ("memory", "unknown" if memory is None else f"{memory / 1000:,.1f} GB"),
        ("GPU", ", ".join(machine.get("gpus", ())) or "none that torch can use"),
    ]

    # the installation, and the trial of it
    libraries = [
        f"{name} {version or 'MISSING'}" for name, version in findings["libraries"].items()
    ]
    trial = findings["trial"]
    training = trial.get("training", "not tried")
    if "seconds" in trial:
        training += f" ({trial['seconds']} s)"
    lines += [
        ("libraries", ", ".join(libraries)),
        ("training", training),
        ("compiled loops", trial.get("compiled loops", "not available: numba is not installed")),
    ]
    if "model" in findings:
        lines.append(("model", findings["model"]))
    for name, extra in findings["extras"].items():
        missing = ", ".join(extra["missing"])
        state = f"lacks {missing}; {extra['install']}" if missing else "installed"
        lines.append((f"extra {name}", state))
    lines.append(("data", _describe_data(findings["data"])))

    # the verdict comes last, where a reader looks first
    if findings["broken"]:
        lines += [("broken", fault) for fault in findings["broken"]]
    else:
        lines.append(("verdict", "everything that a default installation needs works"))
    return lines


def _describe_data(data: Findings) -> str:
    """The folder of data files, and its contents, as a line."""
    embedded = f"embedded: {', '.join(data['embedded'])}"
    if data["folder"] is None:
        return f"{embedded}; no folder of data files: set {data['variable']}, or use --data-dir"
    names = data["files"]
    listed = ", ".join(names[:MAX_LISTED_FILES]) or "nothing that can be read"
    if len(names) > MAX_LISTED_FILES:
        listed += f" and {len(names) - MAX_LISTED_FILES} more"
    return f"{embedded}; in {data['folder']}: {listed}"


def examine(data_dir: Path | None = None) -> Findings:
    """Look at machine, libraries and data. `broken` lists what a default installation needs and does not have."""
    from unalike._utils.version import __version__

    libraries, broken = _libraries()
    # without torch there is nothing to try
    torch_is_broken = any(line.startswith("torch") for line in broken)
    trial = {} if torch_is_broken else _trial()
    for name in ("training", "compiled loops"):
        outcome = trial.get(name, "works")
        if outcome != "works":
            broken.append(f"{name}: {outcome}")
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


def _machine() -> Findings:
    """Cores, memory and accelerators, as this process can use them."""
    findings: Findings = {}
    try:
        from unalike._utils.system.machine import cores, memory_mb

        findings["cores"] = cores()
        findings["memory_mb"] = memory_mb()
        import torch
    except (ImportError, OSError):
        # `broken` says so
        return findings
    gpus = []
    if torch.cuda.is_available():
        gpus += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        gpus.append("Apple GPU (mps)")
    findings["vectors"] = torch.backends.cpu.get_cpu_capability()
    findings["gpus"] = gpus
    findings["threads"] = torch.get_num_threads()
    return findings


def _requirements(extra: str = "") -> list[Requirement]:
    """The requirements of the default installation on this platform, or those that an extra adds."""
    from packaging.requirements import Requirement

    default = []
    conditional = []
    for line in metadata.requires("unalike") or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            default.append(requirement)
        elif requirement.marker.evaluate({"extra": extra}):
            conditional.append(requirement)
    return conditional if extra else default


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
        why = "it is imported from a folder and not installed; install it: pip install unalike"
        return {}, [f"unalike: {why}"]
    versions = {r.name: _version(r.name) for r in requirements}
    broken = []
    for requirement in requirements:
        name, version = requirement.name, versions[requirement.name]
        if version is None:
            broken.append(f"{name}: not installed; pip install '{name}{requirement.specifier}'")
        elif not requirement.specifier.contains(version, prereleases=True):
            broken.append(f"{name}: found {version}, expected {requirement.specifier}")
        elif why := _import_error(MODULE_OF_LIBRARY.get(name, name)):
            broken.append(f"{name} {version}: {why}")
    return versions, broken


def _import_error(module: str) -> str:
    """The reason why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:
        # whatever a broken library raises
        return f"cannot be imported ({type(error).__name__}: {error})"
    return ""


def _trial() -> Findings:
    """Train one round of a tiny dense model: whether training works, and with compiled loops."""
    import torch

    import unalike as ua

    started = time.perf_counter()
    labels = torch.arange(8) % 2
    inputs = torch.nn.functional.one_hot(labels, 4).float()
    samples = (inputs, labels)
    clients = [ua.ClientData(train=samples, test=samples) for _ in range(2)]
    try:
        ua.run(
            "fedavg",
            clients,
            model="mlp(hidden=(4,))",
            rounds=1,
            executor="batched",
            progress=False,
        )
    except Exception as error:
        # whatever a broken library raises
        return {"training": f"{type(error).__name__}: {error}"}
    seconds = round(time.perf_counter() - started, 1)
    findings: Findings = {"training": "works", "seconds": seconds}
    # where the platform has no numba, nothing is broken
    if _version("numba") is not None:
        findings["compiled loops"] = _import_error("unalike.loops.kernels") or "works"
    return findings


def _executor_of(name: str) -> str:
    """The executor that trains a model of the catalogue or a class `module:Class`, as a sentence. Raises `UnalikeError`."""
    from unalike import model
    from unalike.core.model import Model
    from unalike.engine.compiled.layer_chain import chain_or_reason

    # a module in the working directory is found, as by `python -m`
    sys.path.insert(0, "")
    try:
        network = resolve_name(name)() if ":" in name else model(name)
    except (ImportError, AttributeError, TypeError) as error:
        raise UnalikeError(
            f"--model {name}: {error}; expected a class of networks without arguments"
        ) from None
    finally:
        sys.path.remove("")
    chain = chain_or_reason(Model(network))
    if isinstance(chain, str):
        return f"torch trains it, not the compiled loops: {chain}"
    return "compiled loops train it, with SGD in float32 on a CPU"


def _extras() -> dict[str, Findings]:
    """Extra -> the libraries that it lacks, and the command that installs it."""
    try:
        names = metadata.metadata("unalike").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return {}
    extras = {}
    for extra in names:
        # an extra may consist of others of ours
        libraries = [r.name for r in _requirements(extra) if r.name != "unalike"]
        missing = [library for library in libraries if not _version(library)]
        extras[extra] = {"missing": missing, "install": f"pip install 'unalike[{extra}]'"}
    return extras


def _data(data_dir: Path | None) -> Findings:
    """The folder of data files, and what is in it that can be read."""
    from unalike.data.sources.registry import FOLDER, data_folder, ending
    from unalike.data.sources.registry import registry as names

    folder = data_folder(data_dir)
    embedded = [name for name in ("digits", "heart_disease", "emnist_sample") if name in names]
    files: list[str] = []
    if folder is not None and folder.is_dir():
        for file in folder.iterdir():
            if file.is_dir() or ending(file.name) is not None:
                files.append(file.name)
    return {
        "variable": FOLDER,
        "folder": folder and str(folder.resolve()),
        "embedded": embedded,
        "files": sorted(files),
    }
