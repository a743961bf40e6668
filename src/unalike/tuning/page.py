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
    _, *others = tuning.findings
    trials = [trial for of_method in tuning.trials.values() for trial in of_method]
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
        answer=tuning.decision.answer,
        facts=tuning.decision.key_facts,
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
    metric = tuning.metric
    score = f"{metric.word}{metric.axis_unit}"
    validated = f"{metric.word} on validation samples{metric.axis_unit}"
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
        f"{wording.capital(score)} on test samples that no trial saw, mean over seeds on "
        "which nothing was tuned; bars: 95 % intervals. Left: values as given, right: "
        "values of the best trial. Lines that cross are methods that change places."
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
        "Scores of all trials, on validation samples. Hollow: stopped early, with the "
        "score until then. Ring: the values that the method was given with. The wider the "
        "spread, the more the method needs tuning."
    )
    return Panel("spread", caption, [View("Spread", figure, alt)], [])


def _value_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    names = dict.fromkeys(name for one in tuning.methods.values() for name in one.spaces)
    views = []
    for name in names:
        title = wording.capital(charts.LOCAL_RATE_TITLE) if name == LOCAL_RATE else name
        figure = charts.by_value(
            name, tuning.methods, tuning.trials, score, looks, tuning.metric.scale
        )
        views.append(View(title, figure, f"{wording.capital(score)} of the trials by {name}."))
    caption = "One marker per trial. Hollow: stopped early, with the score until then. Diverged trials have no score."
    return Panel("values", caption, views, list(looks.items()))


def _budget(tuning: Tuning) -> str:
    """The budget of the search and the samples it was scored on, in sentences."""
    trials = wording.plural(tuning.budget.trials, "trial")
    rounds = wording.plural(tuning.rounds, "round")
    less = ""
    if tuning.budget.seconds is not None:
        less = f", or fewer once they have taken {wording.duration(tuning.budget.seconds)}"
    seeds = wording.listing(map(str, tuning.after.rounds["seed"].unique()))
    return (
        f"Each method had {trials} of up to {rounds}{less}. The first trial has the values "
        f"that the method was given with. Trials train under seed {tuning.seed} and are "
        f"scored on validation samples by {tuning.metric.word}. The comparison uses the "
        f"seeds {seeds}."
    )


def _trials(tuning: Tuning) -> Table:
    """The cost of the search, by method."""

    def count(end: str) -> Callable[[Item], int]:
        return lambda item: sum(trial.end == end for trial in item[1])

    def rounds_saved(item: Item) -> TableCell:
        _, trials = item
        saved = sum(tuning.rounds - trial.rounds for trial in trials if trial.end == PRUNED)
        share = saved / max(1, len(trials) * tuning.rounds)
        return TableCell(f"{saved} ({wording.share(share)})", saved)

    columns = [
        words("Method", lambda item: item[0], _looks(tuning)),
        number("Trials", lambda item: len(item[1])),
        number("Finished", count(FINISHED)),
        number("Stopped early", count(PRUNED)),
        number("Diverged", count(DIVERGED)),
        number("Rounds", lambda item: sum(trial.rounds for trial in item[1])),
        TableColumn("Rounds saved", rounds_saved),
        number("Time", lambda item: sum(trial.seconds for trial in item[1]), wording.duration),
    ]
    return Table.of("What the search cost", columns, tuning.trials.items())


def _sensitivity(tuning: Tuning) -> Table:
    """The spread of the scores of each method: its sensitivity to its values."""
    metric = tuning.metric
    distance = _near(tuning)

    def scores(item: Item) -> list[float]:
        """The scores of a method's trials, best first."""
        values = [trial.score for trial in item[1] if trial.score is not None]
        return sorted(values, key=lambda score: -metric.sign * score)

    def best(item: Item) -> float | None:
        trial = best_of(item[1], metric.sign)
        return None if trial is None else trial.score

    def as_given(item: Item) -> float | None:
        return next((trial.score for trial in item[1] if trial.number == 0), None)

    def median(item: Item) -> float:
        values = scores(item)
        return values[len(values) // 2] if values else math.nan

    def worst(item: Item) -> float:
        values = scores(item)
        return values[-1] if values else math.nan

    def near(item: Item) -> TableCell:
        top = best(item)
        close = 0
        if top is not None:
            close = sum(abs(score - top) <= distance for score in scores(item))
        return TableCell(f"{close} of {len(item[1])}", close)

    columns = [
        words("Method", lambda item: item[0], _looks(tuning)),
        number("Best", best, metric.text),
        number("As given", as_given, metric.text),
        number("Median", median, metric.text),
        number("Worst", worst, metric.text),
        TableColumn(f"Trials within {metric.text(distance)} of the best", near),
    ]
    return Table.of("Scores of the trials on validation samples", columns, tuning.trials.items())


def _near(tuning: Tuning) -> float:
    """Two points of a bounded metric, 2 % of the best score of others."""
    if tuning.metric.bounded:
        return 0.02
    bests = [best_of(trials, tuning.metric.sign) for trials in tuning.trials.values()]
    sizes = [abs(best.score or 0.0) for best in bests if best is not None]
    return 0.02 * max(sizes, default=0.0)


def _looks(tuning: Tuning) -> dict[str, Look]:
    return looks_of(list(tuning.methods))


def _place(rank: int | None) -> str:
    return MISSING if rank is None else str(rank)


pages.register("tuning")(Page(render, panels))
