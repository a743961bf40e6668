"""The pages of finished runs: the report or the diagnosis of a run, and the comparison of all runs of a federation."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.run_queue import QueuedRun
from unalike.federation.coordinator.secure_aggregation import masked_wire
from unalike.methods.plans.diagnosis_plan import DiagnosisPlan
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.run_recorder import Run
from unalike.runtime.setup.stopping import ended_early

UNTESTED = (
    "no scores of {sites}: no {samples} samples there, or fewer than least_test in site.toml demands; such a site trains and keeps "
    "its model"
)
"""The sentence on sites that do not evaluate, from the facts of the run's event `untested`."""
JOINED = "{client} has joined with {train} training samples; it takes part from round {round} on"
"""The sentence on a site that came after the run had begun, from the facts of the run's event `joined`."""


def write_pages(
    folder: FederationFolder, queued: QueuedRun, run: Run, log: Callable[[str], None], up: str
) -> None:
    """Write the pages of a finished run, which the command `up` made; with the second run also the comparison of all."""
    try:
        _write_pages_of(folder, queued, run, log, up)
    except (UnalikeError, ArithmeticError, ValueError) as error:
        # Numbers that a site has sent may break a page. The run and its model are complete, and the queue goes on.
        log(f"no report of the run in {queued.path}: {error}")
        _write_missing(folder, queued, str(error))


def _write_pages_of(
    folder: FederationFolder, queued: QueuedRun, run: Run, log: Callable[[str], None], up: str
) -> None:
    """`write_pages`, where the numbers of the run can be shown."""
    config = run.run_config
    is_diagnosis = isinstance(config.plan, DiagnosisPlan)
    is_scored = any(config.columns.shown(row) is not None for row in run.history.rows)
    if is_diagnosis:
        _write_diagnosis(folder, queued, run, log)

    # A diagnosis without rounds has trained nothing to report.
    has_trained = config.options.rounds or not is_diagnosis
    if has_trained and is_scored:
        _write_report(folder, queued, run, up)
    elif has_trained:
        _write_unscored(folder, queued)
    early = ended_early(run.ended)
    if early:
        log(early)
    log(f"done: history and model in {queued.path}, report {queued.page}")

    # The comparison comes last: the run of this report is one of those that it compares.
    trained = [other for other in folder.queue if other.is_over and other.federation.rounds]
    if len(trained) > 1 and is_scored:
        page = folder.path / "comparison.html"
        _write_joined(folder, trained, page)
        log(f"comparison of {len(trained)} runs: {page}")


def _write_report(folder: FederationFolder, queued: QueuedRun, run: Run, up: str) -> None:
    """Write the report of one run. Of the sites' samples only the numbers are known here."""
    from unalike.comparison.comparison_json_of_cells import facts_of
    from unalike.comparison.experiment import Cell

    method, seed = queued.federation.method, queued.federation.seed
    cell = Cell(method, seed, run.run_config)
    facts = facts_of(
        [cell], {method: method}, method, [seed], {"federation": folder.federation.name}
    )

    # The command that repeats this run, for readers of the report.
    seeds = seed - folder.federation.seed + 1
    command = f"unalike federation run {folder.path} --method {quote(method)} --seeds {seeds} --again && {up}"

    partition: dict[str, Any] = {}
    for name in ("clients", "smallest", "largest"):
        if name in facts.partition:
            partition[name] = facts.partition[name]
    notes = [*facts.notes, *run.notes]
    told = {"untested": UNTESTED, "joined": JOINED}
    for event in RunDirectory(queued.path).events:
        if event["event"] in told:
            notes.append(told[event["event"]].format(**event))

    facts = replace(
        facts,
        label_counts=None,
        partition=partition,
        command=command,
        notes=notes,
        ends=[cell.end(run)],
    )
    if queued.federation.secure_aggregation:
        items = masked_wire(queued.federation, run.run_config)
        facts = replace(facts, wire=[{"method": method, **item._asdict()} for item in items])
    facts.save(queued.path)
    _write_joined(folder, [queued], queued.page)


def _write_missing(folder: FederationFolder, queued: QueuedRun, why: str) -> None:
    """A page that says why there is no report."""
    reading = [
        f"The run is complete: its history and its model are in {queued.path}.",
        f"Its numbers cannot be shown: {why}.",
    ]
    _write_without_scores(folder, queued, "There is no report", reading)


def _write_unscored(folder: FederationFolder, queued: QueuedRun) -> None:
    """A page without scores, which says what would give some."""
    rounds = queued.federation.rounds
    reading = [
        f"{rounds} rounds of {queued.federation.method} are done. No site has test samples, or as many as least_test in its "
        "site.toml demands, or secure aggregation keeps the scores of the sites' own models there.",
        "For scores, sites lower least_test in their site.toml, and the coordinator starts a new run: `unalike federation run`. "
        "Or it has test samples of its own: `unalike federation init --test FILE --protocol server`.",
        "The model is in the folder of the run. Each site keeps the model that it would use: there, "
        "`unalike evaluate SITE --data FILE` scores it on rows with known outcomes.",
    ]
    _write_without_scores(folder, queued, "There are no scores", reading)


def _write_without_scores(
    folder: FederationFolder, queued: QueuedRun, about: str, reading: list[str]
) -> None:
    """A page with sentences, and the sites with their samples."""
    from unalike.reporting.html import fill, write_text
    from unalike.reporting.table import Table, number, words

    admitted = []
    for event in RunDirectory(queued.path).events:
        if event["event"] == "admitted":
            admitted.append(event)
    columns = [
        words("Site", "client"),
        number("Training samples", "train"),
        number("Test samples that it uses", "test"),
    ]
    page = fill(
        "table_page.html.j2",
        kind="Run of a federation",
        title=f"Federation {folder.federation.name}",
        about=about,
        heading="What to do",
        reading=reading,
        table=Table.of("Sites of the run", columns, admitted),
    )
    write_text(page, queued.page)


def _write_joined(folder: FederationFolder, runs: list[QueuedRun], page: Path) -> None:
    """Write the page that compares these runs."""
    from unalike.comparison.comparison import Comparison
    from unalike.comparison.joining.joined import join
    from unalike.reporting.html import write_text

    comparison = join([(run.title, Comparison.load(run.path)) for run in runs])
    write_text(comparison.page(f"Federation {folder.federation.name}", None), page)


def _write_diagnosis(
    folder: FederationFolder, queued: QueuedRun, run: Run, log: Callable[[str], None]
) -> None:
    """Write the page of a finished diagnosis, and log its findings."""
    from unalike.diagnosis.from_counts.run_diagnosis import run_diagnosis

    diagnosis = run_diagnosis(run, f"federation {folder.federation.name}")
    page = diagnosis.save(queued.pages)
    for finding in diagnosis.findings:
        log(finding)
    for note in diagnosis.notes:
        log(f"note: {note}")
    log(f"diagnosis: {page}")
