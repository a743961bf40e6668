"""Results as tables and charts of characters on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unalike._utils.printable import without_controls
from unalike._utils.progress import ProgressCallback, progress_bar
from unalike.metrics.columns import TIMES

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table

    from unalike.comparison.comparison import Comparison
    from unalike.comparison.cost_estimate import Estimate
    from unalike.comparison.standings import Standing, Standings
    from unalike.reporting.decision import KeyFact
    from unalike.runtime.records.profiling import Profile
    from unalike.runtime.run_recorder import Run

GAP_SPACES = 2
"""Spaces between columns."""


def console() -> Console:
    """A console with the width of the terminal; without a terminal, of $COLUMNS, or 160 characters."""
    from rich.console import Console

    # brackets are part of names and formulas, not markup
    screen = Console(markup=False)
    if screen.is_terminal or "COLUMNS" in os.environ:
        return screen
    return Console(width=160, markup=False)


def sentences(texts: Iterable[str], notes: Iterable[str] = ()) -> None:
    """Print texts and notes, each on lines of its own that are broken between words."""
    screen = console()
    for text in (*texts, *(f"note: {note}" for note in notes)):
        for line in text.split("\n"):
            screen.print(without_controls(line), highlight=False)


def tables(
    heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", words: int = 1
) -> None:
    """Print rows with headings; the first `words` columns are text, the others numbers.

    Where they do not fit the terminal, headings are broken between words, a text column takes at most a third of the width, and
    columns that still do not fit follow in further tables, which repeat the first column.
    """
    from rich.table import Table

    screen = console()
    widths = _widths(heads, rows, words, screen.width)
    for group in _groups(widths, screen.width):
        table = Table(
            title=title or None,
            title_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, GAP_SPACES, 0, 0),
        )
        for i in group:
            side: JustifyMethod = "left" if i < words else "right"
            table.add_column(
                heads[i], justify=side, overflow="fold", max_width=widths[i] - GAP_SPACES
            )
        for row in rows:
            # names of classes and columns come from files
            cells = [without_controls(row[i]) for i in group]
            table.add_row(*cells)
        screen.print(table)
        title = ""


def _widths(
    heads: Sequence[str], rows: Sequence[Sequence[str]], words: int, room: int
) -> list[int]:
    """The widths of columns with their gaps; with broken headings where they would not fit the room."""
    from rich.cells import cell_len

    cells = []
    for i in range(len(heads)):
        cells.append(GAP_SPACES + max((cell_len(row[i]) for row in rows), default=0))
    widths = [
        max(cell, GAP_SPACES + cell_len(head)) for cell, head in zip(cells, heads, strict=True)
    ]
    if sum(widths) <= room + GAP_SPACES:
        return widths
    narrow = []
    for i, (cell, head) in enumerate(zip(cells, heads, strict=True)):
        longest_word = max(cell_len(word) for word in ("", *head.split(" ")))
        width = max(cell, GAP_SPACES + longest_word)
        narrow.append(min(width, room // 3) if i < words else width)
    return narrow


def _groups(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each table, so that every table fits the room; each begins with the first column."""
    groups = [[0]]
    for i in range(1, len(widths)):
        width = sum(widths[j] for j in (*groups[-1], i))
        if len(groups[-1]) > 1 and width > room + GAP_SPACES:
            groups.append([0])
        groups[-1].append(i)
    return groups


def profile_table(profile: Profile) -> None:
    """Print the time that each part of the profiled rounds took. The profiler slows small operations down."""
    from unalike.reporting.wording import plural

    rounds = profile.rounds
    whole = sum(profile.seconds.values())
    rows = [
        (name, f"{seconds / rounds:.4f}", f"{seconds / whole:.1%}")
        for name, seconds in profile.seconds.items()
        if seconds
    ]
    rows.append(("whole", f"{whole / max(1, rounds):.4f}", "100.0%"))
    heads = ("part of a round", "seconds each", "share")
    tables(heads, rows, title=plural(rounds, "round"))


def _answer_table(answer: str, facts: Sequence[KeyFact]) -> None:
    """Print an answer and the facts that carry it."""
    from unalike.reporting.findings import fact_table

    sentences([answer, ""])
    if facts:
        table = fact_table(facts)
        tables(table.columns, table.texts, words=table.words)
        sentences([""])


def summary_table(comparison: Comparison) -> None:
    """Print whether to train together, the answer and its key facts, a row per method and protocol, and all that qualifies it."""
    from unalike.reporting.client_tables import MAX_LISTED_CLIENTS, clients_of_best
    from unalike.reporting.summary_columns import summary_tables
    from unalike.reporting.tables import race as race_table
    from unalike.reporting.together_or_alone import tables_of_answer, together_or_alone
    from unalike.reporting.wording import capital
    from unalike.runtime.setup.stopping import ended_early
    from unalike.statistics.scores import scoring_rule

    facts = comparison.facts
    content = comparison.content()
    findings = comparison.findings
    rule = f"{scoring_rule(content.rounds, content.columns)}, compared with {facts.baseline}"
    together = together_or_alone(content)
    if together is not None:
        _answer_table(together.answer, together.key_facts)
    _answer_table(findings.answer, findings.key_facts)
    for table in summary_tables(content):
        title = f"{table.caption}: {rule}" if table.caption else capital(rule)
        tables(table.columns, table.texts, title, table.words)
    for table in clients_of_best(content):
        tables(table.columns, table.texts, table.caption, table.words)
    further = [race_table(content, {})]
    if together is not None:
        further = [*tables_of_answer(content, together), *further]
    for found in further:
        if found is not None and len(found.rows) <= MAX_LISTED_CLIENTS:
            tables(found.columns, found.texts, found.caption, found.words)
    texts = [
        findings.shared,
        *map(str, findings.shared_facts),
        findings.race,
        *findings.cautions,
        *findings.basis,
    ]
    # runs of several seeds may have ended for the same reason
    ends: dict[str, None] = {}
    for end in facts.ends:
        why = ended_early(end["why"])
        if why:
            ends[f"{end['method']} {why}"] = None
    sentences(filter(None, [*texts, *ends]), facts.notes)


def comparison_json(comparison: Comparison) -> str:
    """The decision and the summary as JSON, as `unalike report --format json` writes them."""
    from unalike.comparison.joining.joined import join
    from unalike.reporting.export import export

    (block,) = join([("", comparison)]).blocks
    return export([(block.name, comparison.content())], "json")


def estimate_table(estimate: Estimate) -> None:
    """Print the estimated cost of a comparison, one row per method."""
    from unalike.reporting.wording import megabytes

    heads = ("method", "rounds", "training", "in all", "MB down", "MB up")
    rows = []
    for cost in estimate.costs:
        row = (
            cost.method,
            str(cost.rounds),
            duration(cost.seconds),
            duration(cost.seconds_in_all),
            megabytes(cost.mb_down),
            megabytes(cost.mb_up),
        )
        rows.append(row)
    tables(heads, rows, "Estimated cost of one run of each method")
    count = len(estimate.costs) * estimate.seeds
    runs = f"{count} runs" if count > 1 else "one run"
    text = (
        f"{runs} will take at most about {duration(estimate.seconds)} on this machine under its present load, and "
        f"{estimate.memory_mb:,.0f} MB of memory. Stop rules are not taken into account."
    )
    sentences([text])


def duration(seconds: float) -> str:
    """`45 s`, `3.2 min`, `1.5 h`, `2.1 days`."""
    for unit, size, until in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < until * size:
            value = seconds / size
            return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.1f} days"


def run_json(run: Run) -> str:
    """The last round of a run, or the selected one, the traffic and time of all its rounds, and its notes, as JSON."""
    rows = run.history.rounds
    costs = ("bytes_down", "bytes_up", *TIMES)
    # NaN is not equal to itself, and JSON has no NaN
    row = {name: None if value != value else value for name, value in _shown_row(run).items()}
    values = {
        "method": run.method,
        "executor": run.executor,
        "rounds": int(rows["round"].max()),
        "ended": run.ended,
        "selected": run.selected,
        "row": row,
        "all rounds": {name: float(rows[name].sum()) for name in costs if name in rows},
        "notes": list(run.notes),
    }
    return json.dumps(values, indent=1, default=float)


def _shown_row(run: Run) -> dict[str, Any]:
    """The row of the round that was selected, or of the last one."""
    selected = [row for row in run.history.rows if row["round"] == run.selected]
    return selected[0] if selected else run.history.last


def run_table(run: Run) -> None:
    """Print the last round of a run, or the selected one, and the notes of the run."""
    from unalike.methods.plan import method_of
    from unalike.metrics.named_metrics import significant
    from unalike.reporting.wording import megabytes
    from unalike.runtime.setup.stopping import ended_early

    rows = run.history.rounds
    row = _shown_row(run)

    # the scores, epsilon and the training loss of the round
    parts = [f"round {row['round']}"]
    for column in run.history.columns.all:
        if not math.isnan(column.value(row)):
            parts.append(column.text(row))
    if "epsilon" in row:
        protects = method_of(run.run_config.plan).protects
        parts.append(f"epsilon {significant(row['epsilon'])} {protects}")
    if not math.isnan(row["train_loss"]):
        parts.append(f"training loss {significant(row['train_loss'])}")

    # what all rounds have cost
    costs = [f"{megabytes((rows['bytes_down'] + rows['bytes_up']).sum() / 1e6)} MB"]
    for name, what in zip(TIMES, ("training", "evaluation")):
        if name in rows:
            costs.append(f"{rows[name].sum():.1f} s of {what}")

    selected = ""
    if run.selected is not None:
        selected = f"selected of {rows['round'].max()} rounds: "
    text = f"{selected}{', '.join(parts)}; {', '.join(costs)} ({run.executor})"
    sentences(filter(None, [text, ended_early(run.ended)]), run.notes)


BUBBLES = " ·∘○●⬤"
"""Characters by increasing count."""

MAX_BUBBLE_CLIENTS = 60
"""Most clients that fit on a terminal."""
MAX_BUBBLE_CLASSES = 40
"""Most classes that fit on a terminal."""


def bubbles(counts: np.ndarray, classes: Sequence[str], room: int = 160) -> str:
    """One row per class and one column per client for counts [K, C]; the largest character is the largest count.

    Lines have at most `room` characters; further clients follow in further charts below.

    >>> print(bubbles(np.array([[9, 0], [1, 4]]), ["a", "b"]))
    a  ⬤ ·
    b    ○
    <BLANKLINE>
    clients 0..1, largest ⬤ 9 samples
    """
    if not counts.size or len(counts) > MAX_BUBBLE_CLIENTS or counts.shape[1] > MAX_BUBBLE_CLASSES:
        return ""
    size_of_cell = np.ceil((len(BUBBLES) - 1) * counts / counts.max()).astype(int)
    width = max(map(len, classes))
    clients_in_a_line = max(1, (room - width - 1) // 2)
    charts = []
    for first in range(0, len(counts), clients_in_a_line):
        shown = size_of_cell[first : first + clients_in_a_line]
        lines = []
        for name, sizes in zip(classes, shown.T, strict=True):
            circles = " ".join(BUBBLES[size] for size in sizes)
            lines.append(f"{name:{width}}  {circles}".rstrip())
        lines += ["", f"clients {first}..{first + len(shown) - 1}"]
        charts.append("\n".join(lines))
    return "\n\n".join(charts) + f", largest {BUBBLES[-1]} {counts.max()} samples"


@contextmanager
def live_standings(folder: Path | None, total: int) -> Iterator[ProgressCallback]:
    """Show how a comparison stands while it runs, from its folder: a live table on a terminal, otherwise lines.

    Without a folder there is only a progress bar. `total` is the number of rounds of all cells.
    """
    if folder is None or not sys.stderr.isatty():
        with progress_bar(total, "comparing", lines=True) as progress:
            yield progress if folder is None else _with_lines(progress, folder)
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from unalike.comparison.standings import standings

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        shown_cell = ""
        table: Any = ""

        def update(row: dict[str, Any], what: str = "") -> None:
            nonlocal shown_cell, table
            # a new cell has begun, so the one before is on disk
            if what != shown_cell:
                shown_cell = what
                table = _standings_table(standings(folder))
            line = Text(f"{what}: round {row['round']}, {row['headline']}")
            live.update(Group(table, line))

        yield update


def _with_lines(progress: ProgressCallback, folder: Path) -> ProgressCallback:
    """Also print a line with the standings when a seed is done for all methods."""
    from unalike.comparison.standings import standings

    seen = set[str]()

    def update(row: dict[str, Any], what: str = "") -> None:
        seed = what.rpartition("(")[2]
        if seen and seed not in seen:
            print(standings_line(standings(folder)), file=sys.stderr, flush=True)
        seen.add(seed)
        progress(row, what)

    return update


def standings_line(board: Standings) -> str:
    """The standings in one line: `feddyn 94.6 % (2 of 5), client_dp 84.7 % at epsilon 2.9 (2 of 5); 2.1 min left`."""
    texts = []
    for row in board.methods:
        if row.column is not None:
            score = row.column.metric.text(row.score)
            if row.epsilon_text:
                score += f" at epsilon {row.epsilon_text}"
            texts.append(f"{row.method} {score} ({row.seeds_done} of {row.seeds})")
    left = "" if math.isnan(board.seconds_left) else f"; {duration(board.seconds_left)} left"
    return f"standings after seeds: {', '.join(texts) or 'no run has ended'}{left}"


def _score_and_difference(row: Standing, baseline: str) -> tuple[str, str]:
    """The score of a method and its difference to the baseline."""
    if row.column is None:
        return "", ""
    metric = row.column.metric
    score = metric.text(row.score)
    if row.method == baseline:
        return score, ""
    return score, metric.difference(row.difference)


def _standings_table(board: Standings) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, GAP_SPACES, 0, 0))
    any_private = any(row.epsilon_text for row in board.methods)
    heads = ["method", "seeds done", "score", f"to {board.baseline}"]
    if any_private:
        heads.append("epsilon")
    heads.append("time left")
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i == 0 else "right")
    for row in board.methods:
        score, difference = _score_and_difference(row, board.baseline)
        cells = [row.method, f"{row.seeds_done} of {row.seeds}", score, difference]
        if any_private:
            cells.append(row.epsilon_text)
        cells.append("" if math.isnan(row.seconds_left) else duration(row.seconds_left))
        table.add_row(*cells)
    return table
