"""Results as tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from unalike.profiling import Profile
    from unalike.record import Run
    from unalike.study import Comparison, Estimate


def console() -> Console:
    """As wide as the terminal, and wide enough for a table where there is none."""
    from rich.console import Console

    made = Console(markup=False)  # what is in brackets are people's names and formulas
    return made if made.is_terminal else Console(width=160, markup=False)


def profile_table(profile: Profile) -> None:
    """Where the rounds that were looked at spent their time; the profiler slows small operations down."""
    from rich.table import Table

    rounds, whole = profile.rounds, sum(profile.seconds.values())
    title = f"{rounds} rounds"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("part of a round", "seconds each", "share"):
        table.add_column(head, justify="left" if head.startswith("part") else "right")
    for name, seconds in profile.seconds.items():
        if seconds:
            table.add_row(name, f"{seconds / rounds:.4f}", f"{seconds / whole:.1%}")
    table.add_row("whole", f"{whole / max(1, rounds):.4f}", "100.0%")
    console().print(table)


def summary_table(comparison: Comparison) -> None:
    """One row per method and protocol; no winner is named: p is corrected for the number of methods."""
    from rich.table import Table

    from unalike.report.findings import few_seeds

    summary, facts = comparison.summary, comparison.facts
    metric = "rmse" if "rmse" in summary else "accuracy"
    table = Table(
        title=f"{_counted(comparison)}, against {facts.baseline}", title_justify="left", box=None, pad_edge=False
    )
    heads = [
        "method",
        "model",
        metric,
        "sd",
        "difference",
        "95 % interval",
        "corrected p",
        "worst decile",
        "MB",
        "seconds",
    ]
    for i, name in enumerate(heads):
        table.add_column(name, justify="left" if i < 2 else "right", overflow="fold")
    for row in summary.to_dict("records"):
        interval = "" if row["ci_low"] != row["ci_low"] else f"{row['ci_low']:+.4f} .. {row['ci_high']:+.4f}"
        cells = [number(row[k]) for k in (metric, f"{metric}_sd")] + [number(row["difference"], "+")]
        cost = f"{row['mb_down'] + row['mb_up']:.1f}", f"{row['seconds']:.1f}"
        model = {"clients": "shared", "server": "shared, server's test"}.get(row["protocol"], row["protocol"])
        table.add_row(row["method"], model, *cells, interval, number(row["p_holm"]), number(row["worst_decile"]), *cost)
    screen = console()
    screen.print(table)
    if summary["seeds"].max() < 2:
        screen.print("One seed cannot show a difference: give --seeds 3 or more.")
    elif warning := few_seeds(
        int(summary["seeds"].max()), int(summary["p"].groupby(summary["protocol"]).count().max())
    ):
        screen.print(warning, highlight=False)
    for note in facts.notes:
        screen.print(f"note: {note}")


def estimate_table(estimate: Estimate) -> None:
    """What a comparison will cost, a row per method."""
    from rich.table import Table

    table = Table(title="One run of each method, estimated", title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(["method", "rounds", "training", "in all", "MB down", "MB up"]):
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for c in estimate.costs:
        times = duration(c.seconds), duration(c.seconds_in_all)
        table.add_row(c.method, str(c.rounds), *times, f"{c.mb_down:.1f}", f"{c.mb_up:.1f}")
    screen = console()
    screen.print(table)
    runs = f"{len(estimate.costs) * estimate.seeds} runs" if len(estimate.costs) * estimate.seeds > 1 else "one run"
    screen.print(
        f"{runs} will take about {duration(estimate.seconds)} at most on this machine as it is now, "
        f"and {estimate.memory_mb:,.0f} MB of memory. Rules that stop runs early are not foreseen.",
        highlight=False,
    )


def duration(seconds: float) -> str:
    """`45 s`, `3.2 min`, `1.5 h`, `2.1 days`."""
    for unit, size, until in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < until * size:
            value = seconds / size
            return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.1f} days"


def run_table(run: Run) -> None:
    """The last evaluated round of a run, and what it was warned of."""
    rows = run.history.rounds
    last = run.history.last
    hidden = ("stage", "seconds", "participants", "bytes_down", "bytes_up")
    shown = {k: v for k, v in last.items() if k not in hidden and not k.endswith("selected") and v == v}
    cost = f"{(rows['bytes_down'] + rows['bytes_up']).sum() / 1e6:.1f} MB, {rows['seconds'].sum():.1f} s of training"
    text = ", ".join(f"{str(k).replace('_', ' ')} {number(v) if k != 'round' else int(v)}" for k, v in shown.items())
    screen = console()
    screen.print(f"{text}; {cost} ({run.executor})", highlight=False)
    for note in run.notes:
        screen.print(f"note: {note}")


def number(value: Any, sign: str = "") -> str:
    """Four digits, nothing for NaN."""
    return "" if value is None or value != value else f"{value:{sign}.4f}"


def _counted(comparison: Comparison) -> str:
    chosen = any(str(c).endswith("selected") for c in comparison.rounds)
    return "The round with the best validation score" if chosen else "Mean of the last 10 rounds"
