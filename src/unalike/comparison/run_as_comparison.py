"""A run as a comparison of one method under one seed: what `comparison.json` says of it, or would say."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike.comparison.comparison_json import COMPARISON_FILE, ComparisonFacts, read_facts
from unalike.core.option import written_config
from unalike.core.options import TrainingOptions, WorkOptions
from unalike.runtime.records.history import History
from unalike.runtime.records.run_directory import MAY_DIFFER, RunDirectory, plain

if TYPE_CHECKING:
    from unalike.data.partition_plan import PartitionPlan


def facts_of_run(folder: Path, history: History) -> ComparisonFacts:
    """The facts about a run: those that the command line saved, otherwise those that its directory implies."""
    directory = RunDirectory(folder)
    config = directory.config or {}
    if not directory.finished:
        progress = f"{history.last['round']} of {config['rounds']} rounds"
        facts = _facts_of_directory(directory, history)
        return _mark_unfinished(facts, progress, directory.diverged)
    if not (folder / COMPARISON_FILE).exists():
        return _facts_of_directory(directory, history)
    saved = read_facts(folder)
    saved_config = tomllib.loads(saved.config)
    was_continued_otherwise = any(saved_config.get(name) != config.get(name) for name in MAY_DIFFER)
    return _facts_of_directory(directory, history) if was_continued_otherwise else saved


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

    folder = directory.path
    config = directory.config or {}
    data = config["data"]
    label = directory.method_text
    plan = PartitionPlan.load(folder) if (folder / "plan.json").exists() else None
    names = directory.names or [client_name(k) for k in range(data["clients"])]
    if plan is not None:
        names = list(plan.names)
    counts = None
    if plan is not None and data.get("classes"):
        counts = {}
        for name, row in zip(names, plan.counts.tolist(), strict=True):
            counts[name] = dict(zip(data["classes"], row))
    partition = _data_facts(data, plan)
    if plan is not None:
        partition |= summary(plan.train.sizes, plan.counts)
    return ComparisonFacts(
        methods=[
            {"label": label, "spec": config["method"], "protocols": _scored_protocols(history)}
        ],
        baseline=label,
        config=tomli_w.dumps(plain(_flags(config))),
        command="# the run came from a program: call ua.run(...) there with the configuration below",
        partition=partition,
        label_counts=counts,
        notes=directory.notes,
        # the directory records no other version
        versions={"unalike": config["unalike"]},
        seed=config["seed"],
        clients=names,
        ends=_run_end(directory, history),
    )


def _scored_protocols(history: History) -> list[str]:
    """The protocols that have scores in a run's history."""
    protocols = []
    for column in history.columns.scores:
        if any(not math.isnan(column.value(row)) for row in history.rows):
            protocols.append(column.protocol)
    return protocols


def _run_end(directory: RunDirectory, history: History) -> list[dict[str, Any]]:
    """The entry of `ends` for a run; none for a run that has not ended."""
    if not directory.finished:
        return []
    ends = [event for event in directory.events if event["event"] == "finished"]
    last = ends[-1]
    seed = (directory.config or {})["seed"]
    return [
        {
            "method": directory.method_text,
            "seed": seed,
            "rounds": last["round"],
            "why": last["why"],
            "selected": history.final,
        }
    ]


def _flags(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a run with the keys of a comparison's configuration, so that the two can be compared."""
    data = config["data"]
    server_samples = {name: data[name] for name in ("val", "test", "proxy") if name in data}
    not_flags = ("unalike", "seed", "metrics", "work", "model", "data")
    flags = {name: value for name, value in config.items() if name not in not_flags}
    return {
        **server_samples,
        **flags,
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
