"""The rounds of a federation over a transport, with the operator's commands, and the pages that are written at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unalike._utils.tensor_files import write_bytes
from unalike.federation.coordinator.coordinator import Coordinator
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.operator_commands import listening
from unalike.federation.coordinator.run_control import OperatorCommands, Stopped
from unalike.federation.protocol.federation_file import Federation
from unalike.federation.protocol.transport import Transport
from unalike.methods.plans.diagnosis_plan import DiagnosisPlan
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.run_recorder import Run

Log = Callable[[str], None]


def run_rounds(
    folder: FederationFolder,
    transport: Transport,
    log: Log,
    *,
    wait: bool = False,
    check: Callable[[], None] = lambda: None,
    again: str | None = None,
) -> Run | None:
    """Run the remaining rounds over a transport. None if the operator stopped the run before the end."""
    federation, operator = folder.federation, OperatorCommands(folder.federation, transport, wait)
    operator.round = RunDirectory(folder.run).round
    with listening(folder.socket, operator.commands):
        try:
            operator.wait_for_sites(log, check)

            def progress(row: dict[str, Any], what: str = "") -> None:
                check()
                operator.round = int(row["round"])
                log(
                    f"round {operator.round} of {federation.rounds}: {row['participants']} sites, {row['seconds']:.1f} s, "
                    f"{row['headline']}".rstrip(", ")
                )

            coordinator = Coordinator(
                *(federation, folder.key, transport, folder.run),
                test=folder.samples("test"),
                proxy=folder.samples("proxy"),
                start=folder.start,
                control=operator.control,
                tell=log,
            )
            run = coordinator.run(progress=progress)
        except Stopped:
            log(
                f"stopped after round {operator.round}; `{again or f'unalike federation up {folder.path}'}` continues from there"
            )
            return None
    if isinstance(run.run_config.plan, DiagnosisPlan):
        write_diagnosis(folder, run, log)
    if not _without_rounds(run):
        write_report(folder, run, again or f"unalike federation up {folder.path.name}")
    log(f"done: history and model in {folder.run}, report {last_page(folder, federation)}")
    return run


def is_over(folder: FederationFolder, federation: Federation) -> bool:
    """Whether the folder holds the complete run and its report."""
    directory, has_report = RunDirectory(folder.run), last_page(folder, federation).exists()
    config = directory.config
    return has_report and config is not None and directory.finished and config["rounds"] == federation.rounds


def last_page(folder: FederationFolder, federation: Federation) -> Path:
    """The page that is written last: the report, or without rounds that of a diagnosis."""
    return folder.path / ("report.html" if federation.rounds else "diagnosis.html")


def _without_rounds(run: Run) -> bool:
    """Whether the run is a diagnosis without rounds, which has no scores to report."""
    return isinstance(run.run_config.plan, DiagnosisPlan) and not run.run_config.options.rounds


def write_report(folder: FederationFolder, run: Run, command: str) -> None:
    """Write the report of a finished run, with the command that made it.

    Of the sites' samples only the numbers are known here.
    """
    from unalike.experiments.comparison import Comparison
    from unalike.experiments.experiment import Cell
    from unalike.experiments.experiment_facts import facts_of
    from unalike.experiments.joining import join
    from unalike.reporting.html import write_text

    name, method, seed = folder.federation.name, folder.federation.method, folder.federation.seed
    facts = facts_of([Cell(method, seed, run.run_config)], {method: method}, method, [seed], {"federation": name})
    known: dict[str, Any] = {k: facts.partition[k] for k in ("clients", "smallest", "largest") if k in facts.partition}
    facts = replace(facts, label_counts=None, partition=known, command=command, notes=[*facts.notes, *run.notes])
    write_bytes(folder.run / "comparison.json", json.dumps(asdict(facts), indent=1).encode())
    write_text(
        join([(name, Comparison.load(folder.run))]).page(f"Federation {name}", None), folder.path / "report.html"
    )


def write_diagnosis(folder: FederationFolder, run: Run, log: Log) -> None:
    """Write the page of a finished diagnosis, and log its findings."""
    from unalike.diagnosis.from_counts.run_diagnosis import run_diagnosis

    diagnosis = run_diagnosis(run, f"federation {folder.federation.name}")
    page = diagnosis.save(folder.path)
    for line in (*diagnosis.findings, *(f"note: {note}" for note in diagnosis.notes)):
        log(line)
    log(f"diagnosis: {page}")
