"""The facts that a report shows beside its tables, the file `comparison.json` with them, and the command that repeats a result."""

from __future__ import annotations

import json
import math
import platform
import shlex
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import explain_errors
from unalike._utils.version import __version__
from unalike.core.options import (
    TrainingOptions,
    TuningOptions,
    WorkOptions,
    options_of,
    written_config,
)
from unalike.runtime.records.history import History
from unalike.runtime.records.run_directory import MAY_DIFFER, RunDirectory, plain
from unalike.statistics.sampling import SharedDetails

if TYPE_CHECKING:
    from unalike.data.partition_plan import PartitionPlan

FILE = "comparison.json"
ENTRIES = {
    "methods": {"label", "spec", "protocols"},
    "ends": {"method", "seed", "rounds", "why", "selected"},
    "wire": {"method", "direction", "what", "bytes"},
    "confusions": {"method", "classes", "counts"},
}
"""Keys that each entry of a list of facts must have."""
FIRST = ("data", "partition", "clients", "method", "baseline", "model", "rounds", "seeds", "seed")
"""Flags that come first, in this order; the others keep the order of the configuration."""
ON = [name for name, option in options_of(TuningOptions).items() if option.default is True]
"""Options that are on unless a flag turns them off."""


@dataclass(frozen=True, kw_only=True)
class ComparisonFacts(SharedDetails):
    """Facts about a comparison: how its data differs, what crosses the wire, how to repeat it.

    Attributes:
        methods: one entry per method: its label, its spec with every field, the protocols that scored it, (`untuned`)
            what of it ran with default settings, and (`work`) how its local training differs from the baseline's.
        label_counts: client -> class -> training samples; None for regression.
        wire: what each method sends, as rows of `method direction what bytes`.
        notes: warnings to show above the results.
        clients: names of the clients.
    """

    methods: list[dict[str, Any]]
    label_counts: dict[str, dict[str, int]] | None = None
    wire: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write `comparison.json` into a folder."""
        write_bytes(folder / FILE, json.dumps(asdict(self), indent=1).encode())


def read_facts(folder: Path) -> ComparisonFacts:
    """Read `comparison.json` from a folder. Raises `ValueError` if its content is not valid."""
    return facts_from((folder / FILE).read_bytes(), FILE)


def facts_from(content: str | bytes, file: str) -> ComparisonFacts:
    """The facts in JSON. Raises `ValueError`, with the name of the file, if its content is not valid."""
    from pydantic import TypeAdapter, ValidationError

    try:
        facts: ComparisonFacts = TypeAdapter(ComparisonFacts).validate_json(content)
        tomllib.loads(facts.config)
    except ValidationError as error:
        raise ValueError(f"{file}: {explain_errors(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: config: {error}") from None
    for name, needed in ENTRIES.items():
        for entry in getattr(facts, name):
            if missing := sorted(needed - entry.keys()):
                raise ValueError(f"{file}: an entry of {name} lacks {', '.join(missing)}")
    if not facts.methods:
        raise ValueError(f"{file}: no methods")
    return facts


def versions() -> dict[str, str]:
    """Versions of the software that a result depends on."""
    import numpy as np
    import torch

    return {
        "unalike": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def command_line(command: str, config: dict[str, Any]) -> str:
    """The command line for a configuration with flags as keys; a list repeats its flag.

    Without `data` the clients came from a program, and no shell command can repeat the run. The result is then a comment
    that says how to repeat it.
    """
    if "data" not in config:
        return f"# the clients came from a program: call ua.{command}(...) there with the configuration below"
    known = [k for k in FIRST if k in config]
    words = ["unalike", command]
    for key in [*known, *(k for k in config if k not in known)]:
        values = config[key] if isinstance(config[key], list | tuple) else [config[key]]
        for value in values:
            words += flag(key, value)
    return shlex.join(words)


def flag(key: str, value: Any) -> list[str]:
    """The words of one flag. None is no flag; True is a flag without a value, and False one with `no` if True is the default."""
    name = key.replace("_", "-")
    if value is None or (value is False and key not in ON):
        return []
    return (
        [f"--{name}"]
        if value is True
        else [f"--no-{name}"]
        if value is False
        else [f"--{name}", str(value)]
    )


def facts_of_run(folder: Path, history: History) -> ComparisonFacts:
    """The facts about a run: those that the command line saved, otherwise those that its directory implies."""
    directory = RunDirectory(folder)
    config = directory.config or {}
    if not directory.finished:
        progress = f"{history.last['round']} of {config['rounds']} rounds"
        return _mark_unfinished(
            _facts_of_directory(directory, history), progress, directory.diverged
        )
    saved = read_facts(folder) if (folder / FILE).exists() else None
    kept = {} if saved is None else tomllib.loads(saved.config)
    if saved is None or any(
        kept.get(name) != config.get(name) for name in MAY_DIFFER
    ):  # it was continued otherwise
        return _facts_of_directory(directory, history)
    return saved


def _mark_unfinished(facts: ComparisonFacts, progress: str, diverged: str) -> ComparisonFacts:
    notes = [
        f"This run is unfinished: {progress} are done. All results below are those after these rounds."
    ]
    command = "# the run is unfinished: the command that started it, with the same folder, continues from here"
    if diverged:
        notes.append(f"The run cannot continue with its settings: {diverged}.")
        command = "# the run diverged: start it again, in another folder and with other settings"
    return replace(facts, unfinished=progress, notes=[*notes, *facts.notes], command=command)


def _facts_of_directory(directory: RunDirectory, history: History) -> ComparisonFacts:
    """The facts that a run directory implies without a `comparison.json`."""
    import tomli_w

    from unalike.data.heterogeneity import summary
    from unalike.data.partition_plan import PartitionPlan
    from unalike.data.ragged import client_name

    folder, config = directory.path, directory.config or {}
    data, label = config["data"], directory.method_text
    plan = PartitionPlan.load(folder) if (folder / "plan.json").exists() else None
    names = (
        list(plan.names)
        if plan
        else directory.names or list(map(client_name, range(data["clients"])))
    )
    counts = None
    if plan is not None and data.get("classes"):
        counts = {
            n: dict(zip(data["classes"], row))
            for n, row in zip(names, plan.counts.tolist(), strict=True)
        }
    return ComparisonFacts(
        methods=[
            {"label": label, "spec": config["method"], "protocols": _scored_protocols(history)}
        ],
        baseline=label,
        config=tomli_w.dumps(plain(_flags(config))),
        command="# the run came from a program: call ua.run(...) there with the configuration below",
        partition=_data_facts(data, plan)
        | (summary(plan.train.sizes, plan.counts) if plan else {}),
        label_counts=counts,
        notes=directory.notes,
        versions={"unalike": config["unalike"]},  # the directory records no other version
        seed=config["seed"],
        clients=names,
        ends=_run_end(directory, history),
    )


def _scored_protocols(history: History) -> list[str]:
    """The protocols that have scores in a run's history."""
    columns = history.columns.scores
    return [
        c.protocol for c in columns if any(not math.isnan(c.value(row)) for row in history.rows)
    ]


def _run_end(directory: RunDirectory, history: History) -> list[dict[str, Any]]:
    """The entry of `ends` for a run; none for a run that has not ended."""
    if not directory.finished:
        return []
    last = next(event for event in reversed(directory.events) if event["event"] == "finished")
    run = {"method": directory.method_text, "seed": (directory.config or {})["seed"]}
    return [run | {"rounds": last["round"], "why": last["why"], "selected": history.final}]


def _flags(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a run with the keys of a comparison's configuration, so that the two can be compared."""
    data, asked = config["data"], ("unalike", "seed", "metrics", "work", "model", "data")
    return {
        **{k: data[k] for k in ("val", "test", "proxy") if k in data},
        **{k: v for k, v in config.items() if k not in asked},
        **written_config(config, TrainingOptions),
        "method": [config["method"]],
        "model": config["model"]["name"],
        "seeds": str(config["seed"]),
        **written_config(config["work"], WorkOptions),
    }


def _data_facts(data: dict[str, Any], plan: PartitionPlan | None) -> dict[str, Any]:
    """The data set and the partition with the plan's hash; without a plan, the fingerprint of the samples."""
    if plan is None:
        return {"clients": data["clients"], "hash": data["fingerprint"]}
    return {
        "data": plan.data,
        "partition": plan.spec,
        "clients": data["clients"],
        "hash": plan.hash,
    }
