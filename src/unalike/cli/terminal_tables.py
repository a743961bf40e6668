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

from unalike._utils.progress import ProgressCallback, progress_bar
from unalike.metrics.columns import TIMES

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table

    from unalike.comparison.comparison import Comparison
    from unalike.comparison.cost_estimate import Estimate
    from unalike.comparison.standings import Standing, Standings
    from unalike.runtime.records.profiling import Profile
    from unalike.runtime.run_recorder import Run

GAP = 2
"""Spaces between columns."""


def console() -> Console:
    """A console with the width of the terminal; without a terminal, of $COLUMNS, or 160 characters."""
    from rich.console import Console

    made = Console(markup=False)  # brackets are part of names and formulas, not markup
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(width=160, markup=False)


def sentences(texts: Iterable[str], notes: Iterable[str] = ()) -> None:
    """Print texts and notes, each on lines of its own that are broken between words."""
    screen = console()
    for text in (*texts, *(f"note: {note}" for note in notes)):
        screen.print(text, highlight=False)


def tables(
    heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", words: int = 1
) -> None:
    """Print rows with headings; the first `words` columns are text, the others numbers.

    Where they do not fit the terminal, headings are broken between words, a text column takes at most a third of the width, and
    columns that still do not fit follow in further tables, which repeat the first column.
    """
    from rich.cells import cell_len
    from rich.table import Table

    screen = console()
    cells = [
        GAP + max(cell_len(row[i]) for row in rows) if rows else GAP for i in range(len(heads))
    ]
    widths = [max(cell, GAP + cell_len(head)) for cell, head in zip(cells, heads, strict=True)]
    if sum(widths) > screen.width + GAP:
        widths = [
            max(cell, *(GAP + cell_len(word) for word in ("", *head.split(" "))))
            for cell, head in zip(cells, heads)
        ]
        widths = [min(w, screen.width // 3) if i < words else w for i, w in enumerate(widths)]
    room, groups = screen.width + GAP - widths[0], [list[int]()]
    for i in range(1, len(heads)):
        if groups[-1] and sum(widths[j] for j in (*groups[-1], i)) > room:
            groups.append([])
        groups[-1].append(i)
    for group in groups:
        table = Table(
            title=title or None,
            title_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, GAP, 0, 0),
        )
        for i in (0, *group):
            side: JustifyMethod = "left" if i < words else "right"
            table.add_column(heads[i], justify=side, overflow="fold", max_width=widths[i] - GAP)
        for row in rows:
            table.add_row(*(row[i] for i in (0, *group)))
        screen.print(table)
        title = ""


def profile_table(profile: Profile) -> None:
    """Print the time that each part of the profiled rounds took. The profiler slows small operations down."""
    rounds, whole = profile.rounds, sum(profile.seconds.values())
    rows = [
        (name, f"{seconds / rounds:.4f}", f"{seconds / whole:.1%}")
        for name, seconds in profile.seconds.items()
        if seconds
    ]
    rows.append(("whole", f"{whole / max(1, rounds):.4f}", "100.0%"))
    tables(
        ("part of a round", "seconds each", "share"), rows, f"{rounds} round{'s' * (rounds != 1)}"
    )


def summary_table(comparison: Comparison) -> None:
    """Print what the intervals are about, one row per method and protocol, then the decision and its limits."""
    from unalike.reporting.client_tables import clients_of_best
    from unalike.reporting.summary_columns import summary_tables
    from unalike.reporting.tables import race as race_table
    from unalike.reporting.wording import capital
    from unalike.runtime.setup.stopping import ended_early
    from unalike.statistics.scores import scoring_rule

    facts, content = comparison.facts, comparison.content()
    rule = f"{scoring_rule(content.rounds, content.columns)}, compared with {facts.baseline}"
    texts = comparison.findings
    sentences([texts.about])
    for table in summary_tables(content):
        title = f"{table.caption}: {rule}" if table.caption else capital(rule)
        tables(table.columns, table.texts, title, table.words)
    for table in clients_of_best(content):
        tables(table.columns, table.texts, table.caption, table.words)
    left = race_table(content, {})
    if left is not None:
        tables(left.columns, left.texts, left.caption, left.words)
    found = (
        texts.answer,
        texts.race,
        texts.shared,
        texts.models,
        *texts.cautions,
        texts.standing,
        *texts.limits,
    )
    ended = {
        f"{end['method']} {why}": None for end in facts.ends if (why := ended_early(end["why"]))
    }
    sentences(filter(None, (*found, *ended)), facts.notes)


def comparison_json(comparison: Comparison) -> str:
    """The decision and the summary as JSON, as `unalike report --format json` writes them."""
    from unalike.comparison.joining.joined import join
    from unalike.reporting.export import export

    (block,) = join([("", comparison)]).blocks
    return export([(block.name, comparison.content())], "json")


def estimate_table(estimate: Estimate) -> None:
    """Print the estimated cost of a comparison, one row per method."""
    from unalike.reporting.wording import megabytes

    rows = [
        (
            c.method,
            str(c.rounds),
            duration(c.seconds),
            duration(c.seconds_in_all),
            megabytes(c.mb_down),
            megabytes(c.mb_up),
        )
        for c in estimate.costs
    ]
    tables(
        ("method", "rounds", "training", "in all", "MB down", "MB up"),
        rows,
        "Estimated cost of one run of each method",
    )
    runs = (
        f"{len(estimate.costs) * estimate.seeds} runs"
        if len(estimate.costs) * estimate.seeds > 1
        else "one run"
    )
    load = f"on this machine under its present load, and {estimate.memory_mb:,.0f} MB of memory"
    sentences(
        [
            f"{runs} will take at most about {duration(estimate.seconds)} {load}. Stop rules are not taken into account."
        ]
    )


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
    spent = {
        name: float(rows[name].sum()) for name in ("bytes_down", "bytes_up", *TIMES) if name in rows
    }
    row = {name: None if value != value else value for name, value in _shown_row(run).items()}
    facts = {
        "method": run.method,
        "executor": run.executor,
        "rounds": int(rows["round"].max()),
        "ended": run.ended,
        "selected": run.selected,
    }
    return json.dumps(
        facts | {"row": row, "all rounds": spent, "notes": list(run.notes)}, indent=1, default=float
    )


def _shown_row(run: Run) -> dict[str, Any]:
    """The row of the round that was selected, or of the last one."""
    return next((row for row in run.history.rows if row["round"] == run.selected), run.history.last)


def run_table(run: Run) -> None:
    """Print the last round of a run, or the selected one, and the notes of the run."""
    from unalike.methods.plan import method_of
    from unalike.metrics.named_metrics import significant
    from unalike.reporting.wording import megabytes
    from unalike.runtime.setup.stopping import ended_early

    rows, row = run.history.rounds, _shown_row(run)
    scores = [
        column.text(row) for column in run.history.columns.all if not math.isnan(column.value(row))
    ]
    trained = (
        [] if math.isnan(row["train_loss"]) else [f"training loss {significant(row['train_loss'])}"]
    )
    part = method_of(run.run_config.plan).privacy
    private = [] if part is None else [f"epsilon {significant(row['epsilon'])} {part.protects}"]
    text = ", ".join([f"round {row['round']}", *scores, *private, *trained])
    traffic = megabytes((rows["bytes_down"] + rows["bytes_up"]).sum() / 1e6)
    spent = [
        f"{rows[name].sum():.1f} s of {what}"
        for name, what in zip(TIMES, ("training", "evaluation"))
        if name in rows
    ]
    cost = ", ".join([f"{traffic} MB", *spent])
    selected = "" if run.selected is None else f"selected of {rows['round'].max()} rounds: "
    sentences(
        filter(None, [f"{selected}{text}; {cost} ({run.executor})", ended_early(run.ended)]),
        run.notes,
    )


SIZES = " ·∘○●⬤"
"""Characters by increasing count."""

WIDEST, HIGHEST = 60, 40
"""Most clients and classes that fit on a terminal."""


def bubbles(counts: np.ndarray, classes: Sequence[str], room: int = 160) -> str:
    """One row per class and one column per client for counts [K, C]; the largest character is the largest count.

    Lines have at most `room` characters; further clients follow in further charts below.

    >>> print(bubbles(np.array([[9, 0], [1, 4]]), ["a", "b"]))
    a  ⬤ ·
    b    ○
    <BLANKLINE>
    clients 0..1, largest ⬤ 9 samples
    """
    if not counts.size or len(counts) > WIDEST or counts.shape[1] > HIGHEST:
        return ""
    place = np.ceil((len(SIZES) - 1) * counts / counts.max()).astype(int)
    width = max(map(len, classes))
    fit = max(1, (room - width - 1) // 2)
    parts = []
    for first in range(0, len(place), fit):
        shown = place[first : first + fit]
        rows = [
            f"{name:{width}}  " + " ".join(SIZES[p] for p in column)
            for name, column in zip(classes, shown.T, strict=True)
        ]
        parts.append(
            "\n".join(
                [*(row.rstrip() for row in rows), "", f"clients {first}..{first + len(shown) - 1}"]
            )
        )
    return "\n\n".join(parts) + f", largest {SIZES[-1]} {counts.max()} samples"


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
        board: list[Any] = ["", ""]

        def update(row: dict[str, Any], what: str = "") -> None:
            if what != board[0]:  # a new cell has begun, so the one before is on disk
                board[:] = what, _standings_table(standings(folder))
            live.update(Group(board[1], Text(f"{what}: round {row['round']}, {row['headline']}")))

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
    texts = [
        f"{row.method} {row.column.metric.text(row.score)}{row.epsilon_text and f' at epsilon {row.epsilon_text}'} "
        f"({row.seeds_done} of {row.seeds})"
        for row in board.methods
        if row.column is not None
    ]
    left = (
        f"; {duration(board.seconds_left)} left" if board.seconds_left == board.seconds_left else ""
    )
    return f"standings after seeds: {', '.join(texts) or 'no run has ended'}{left}"


def _texts(row: Standing, baseline: str) -> tuple[str, str]:
    """The score of a method and its difference to the baseline."""
    if row.column is None:
        return "", ""
    metric = row.column.metric
    return metric.text(row.score), "" if row.method == baseline else metric.difference(
        row.difference
    )


def _standings_table(board: Standings) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    private = any(row.epsilon_text for row in board.methods)
    heads = (
        "method",
        "seeds done",
        "score",
        f"to {board.baseline}",
        *["epsilon"] * private,
        "time left",
    )
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i == 0 else "right")
    for row in board.methods:
        left = duration(row.seconds_left) if row.seconds_left == row.seconds_left else ""
        numbers = (*_texts(row, board.baseline), *[row.epsilon_text] * private)
        table.add_row(row.method, f"{row.seeds_done} of {row.seeds}", *numbers, left)
    return table
