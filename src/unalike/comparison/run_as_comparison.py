"""A run as a comparison of one method under one seed: what `comparison.json` says of it, or would say."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike.comparison.comparison_json import FILE, ComparisonFacts, read_facts
from unalike.core.options import TrainingOptions, WorkOptions, written_config
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
    data, label = config["data"], directory.asked
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
    run = {"method": directory.asked, "seed": (directory.config or {})["seed"]}
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
