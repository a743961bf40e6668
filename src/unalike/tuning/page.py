"""The page of a tuning: one HTML file in the looks of the report."""

import math
from collections.abc import Callable, Sequence

from unalike.metrics.named_metrics import MISSING
from unalike.reporting import panels as report_panels
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look
from unalike.reporting.charts.palette import looks as looks_of
from unalike.reporting.html import fill
from unalike.reporting.pages import Page, pages
from unalike.reporting.panels import Panel, View
from unalike.reporting.table import Table, TableCell, TableColumn, number, words
from unalike.tuning import charts
from unalike.tuning.trial import DIVERGED, FINISHED, PRUNED, Trial, best_of
from unalike.tuning.tunable import LOCAL_RATE
from unalike.tuning.tuning import Tuning

Item = tuple[str, Sequence[Trial]]
"""A method and its trials."""


def render(tuning: Tuning) -> str:
    """Render the page as one HTML document. The same tuning gives the same text."""
    answer, *others = tuning.findings
    trials = [trial for own in tuning.trials.values() for trial in own]
    return fill(
        "tuning.html.j2",
        title=f"Tuned methods on {tuning.name}",
        warnings=tuning.notes,
        scale={
            "method": len(tuning.methods),
            "trial": len(trials),
            "round": sum(trial.rounds for trial in trials),
            "seed": int(tuning.after.rounds["seed"].nunique()),
        },
        answer=answer,
        others=others,
        budget=_budget(tuning),
        panels=panels(tuning),
        tables={
            "ranking": tuning.before_and_after(_looks(tuning)),
            "budget": _trials(tuning),
            "sensitivity": _sensitivity(tuning),
        },
        command=tuning.command,
    )


def panels(tuning: Tuning) -> dict[str, Panel | None]:
    """The panels of the page by kind of figure; None where there is nothing to draw."""
    looks = _looks(tuning)
    score, validated = (
        f"{tuning.metric.word}{where}{tuning.metric.axis_unit}"
        for where in ("", " on validation samples")
    )
    after = tuning.after.content()
    return {
        "ranking": _ranking_panel(tuning, score, looks),
        "search": _search_panel(tuning, validated, looks),
        "rates": _value_panel(tuning, validated, looks),
        "spread": _spread_panel(tuning, validated, looks),
        "pareto": report_panels.pareto(after, {name: looks[name] for name in after.labels}),
    }


def _ranking_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    figure = charts.slopes(tuning.ranking, tuning.metric, score, looks, tuning.metric.scale)
    alt = "; ".join(
        f"{one.method} {_place(one.rank_before)} before, {_place(one.rank_after)} after"
        for one in tuning.ranking
    )
    caption = (
        f"{wording.capital(score)} on test samples that no trial saw, mean over seeds on which nothing was tuned; bars: 95 % "
        "intervals. Left: values as given, right: values of the best trial. Lines that cross are methods that change places."
    )
    return Panel(
        "ranking", caption, [View("Ranking", figure, f"Ranking: {alt}.")], list(looks.items())
    )


def _search_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    figure = charts.best_so_far(
        tuning.trials, tuning.metric.sign, f"best {score}", looks, tuning.metric.scale
    )
    alt = f"Best {score} by number of trials for {wording.listing(tuning.methods)}."
    caption = "The best score among the first trials of a method, on validation samples. All methods have the same budget."
    return Panel("search", caption, [View("Best score", figure, alt)], list(looks.items()))


def _spread_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    figure = charts.spreads(tuning.trials, score, looks, tuning.metric.scale)
    alt = f"{score} of every trial of {wording.listing(tuning.methods)}."
    caption = (
        "Scores of all trials, on validation samples. Hollow: stopped early, with the score until then. Ring: the values that "
        "the method was given with. The wider the spread, the more the method needs tuning."
    )
    return Panel("spread", caption, [View("Spread", figure, alt)], [])


def _value_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    names = dict.fromkeys(name for one in tuning.methods.values() for name in one.spaces)
    views = [
        View(
            wording.capital(charts.LOCAL_RATE_TITLE) if name == LOCAL_RATE else name,
            charts.by_value(name, tuning.methods, tuning.trials, score, looks, tuning.metric.scale),
            f"{wording.capital(score)} of the trials by {name}.",
        )
        for name in names
    ]
    caption = "One marker per trial. Hollow: stopped early, with the score until then. Diverged trials have no score."
    return Panel("values", caption, views, list(looks.items()))


def _budget(tuning: Tuning) -> str:
    limit = tuning.budget.seconds
    less = "" if limit is None else f", or fewer once they have taken {wording.duration(limit)}"
    return (
        f"Each method had {wording.plural(tuning.budget.trials, 'trial')} of up to {wording.plural(tuning.rounds, 'round')}{less}. "
        f"The first trial has the values that the method was given with. Trials train under seed {tuning.seed} and are scored on "
        "validation samples by "
        f"{tuning.metric.word}. The comparison uses the seeds {wording.listing(map(str, tuning.after.rounds['seed'].unique()))}."
    )


def _trials(tuning: Tuning) -> Table:
    def count(end: str) -> Callable[[Item], int]:
        return lambda item: sum(trial.end == end for trial in item[1])

    def saved(item: Item) -> int:
        return sum(tuning.rounds - trial.rounds for trial in item[1] if trial.end == PRUNED)

    def saved_text(item: Item) -> TableCell:
        share = saved(item) / max(1, len(item[1]) * tuning.rounds)
        return TableCell(f"{saved(item)} ({wording.share(share)})", saved(item))

    columns = [
        words("Method", lambda item: item[0], _looks(tuning)),
        number("Trials", lambda item: len(item[1])),
        *(
            number(title, count(end))
            for title, end in (
                ("Finished", FINISHED),
                ("Stopped early", PRUNED),
                ("Diverged", DIVERGED),
            )
        ),
        number("Rounds", lambda item: sum(trial.rounds for trial in item[1])),
        TableColumn("Rounds saved", saved_text),
        number("Time", lambda item: sum(trial.seconds for trial in item[1]), wording.duration),
    ]
    return Table.of("What the search cost", columns, tuning.trials.items())


def _sensitivity(tuning: Tuning) -> Table:
    """The spread of the scores of each method: its sensitivity to its values."""
    metric = tuning.metric

    def scores(item: Item) -> list[float]:
        found = [trial.score for trial in item[1] if trial.score is not None]
        return sorted(found, key=lambda score: -metric.sign * score)

    def score(item: Item, place: int) -> float:
        return scores(item)[place] if scores(item) else math.nan

    def best(item: Item) -> float | None:
        found = best_of(item[1], metric.sign)
        return None if found is None else found.score

    def near(item: Item) -> TableCell:
        top = best(item)
        close = [
            score for score in scores(item) if top is not None and abs(score - top) <= _near(tuning)
        ]
        return TableCell(f"{len(close)} of {len(item[1])}", len(close))

    columns = [
        words("Method", lambda item: item[0], _looks(tuning)),
        number("Best", best, metric.text),
        number(
            "As given",
            lambda item: next((t.score for t in item[1] if t.number == 0), None),
            metric.text,
        ),
        number("Median", lambda item: score(item, len(scores(item)) // 2), metric.text),
        number("Worst", lambda item: score(item, -1), metric.text),
        TableColumn(f"Trials within {metric.text(_near(tuning))} of the best", near),
    ]
    return Table.of("Scores of the trials on validation samples", columns, tuning.trials.items())


def _near(tuning: Tuning) -> float:
    """Two points of a bounded metric, 2 % of the best score of others."""
    if tuning.metric.bounded:
        return 0.02
    bests = [best_of(own, tuning.metric.sign) for own in tuning.trials.values()]
    return 0.02 * max((abs(best.score or 0.0) for best in bests if best), default=0.0)


def _looks(tuning: Tuning) -> dict[str, Look]:
    return looks_of(list(tuning.methods))


def _place(rank: int | None) -> str:
    return MISSING if rank is None else str(rank)


pages.register("tuning")(Page(render, panels))
