"""The page of a tuning: one HTML file in the looks of the report."""

from __future__ import annotations

import math

from unalike.metrics.named_metrics import MISSING
from unalike.reporting import panels as report_panels
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look
from unalike.reporting.charts.palette import looks as looks_of
from unalike.reporting.html import fill
from unalike.reporting.pages import Page, pages
from unalike.reporting.panels import Panel, View
from unalike.reporting.tables import Cell, Table
from unalike.tuning import charts
from unalike.tuning.ranking import Ranked
from unalike.tuning.trial import DIVERGED, FINISHED, PRUNED, best_of
from unalike.tuning.tunable import LOCAL_RATE
from unalike.tuning.tuning import Tuning


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
        tables={"ranking": _ranking(tuning), "budget": _trials(tuning), "sensitivity": _sensitivity(tuning)},
        command=tuning.command,
    )


def panels(tuning: Tuning) -> dict[str, Panel | None]:
    """The panels of the page by kind of figure; None where there is nothing to draw."""
    looks = _looks(tuning)
    score, validated = (f"{tuning.metric.word}{where}{_unit(tuning)}" for where in ("", " on validation samples"))
    after = tuning.after.content()
    return {
        "ranking": _ranking_panel(tuning, score, looks),
        "search": _search_panel(tuning, validated, looks),
        "rates": _value_panel(tuning, validated, looks),
        "spread": _spread_panel(tuning, validated, looks),
        "pareto": report_panels.pareto(after, after.summary, {name: looks[name] for name in after.labels}),
    }


def _ranking_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    figure = charts.slopes(tuning.ranking, tuning.metric, score, looks, _scale(tuning))
    alt = "; ".join(
        f"{one.method} {_place(one.rank_before)} before, {_place(one.rank_after)} after" for one in tuning.ranking
    )
    caption = (
        f"{wording.capital(score)} on test samples that no trial saw, mean over seeds on which nothing was tuned; bars: 95 % "
        "intervals. Left: values as given, right: values of the best trial. Lines that cross are methods that change places."
    )
    return Panel("ranking", caption, [View("Ranking", figure, f"Ranking: {alt}.")], list(looks.items()))


def _search_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    figure = charts.best_so_far(tuning.trials, tuning.metric.sign, f"best {score}", looks, _scale(tuning))
    alt = f"Best {score} by number of trials for {wording.listing(tuning.methods)}."
    caption = (
        "The best score among the first trials of a method, on validation samples. All methods have the same budget."
    )
    return Panel("search", caption, [View("Best score", figure, alt)], list(looks.items()))


def _spread_panel(tuning: Tuning, score: str, looks: dict[str, Look]) -> Panel:
    figure = charts.spreads(tuning.trials, score, looks, _scale(tuning))
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
            charts.by_value(name, tuning.methods, tuning.trials, score, looks, _scale(tuning)),
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


def _ranking(tuning: Tuning) -> Table:
    chosen, looks = tuning.table.set_index("method")["values"], _looks(tuning)
    rows = [
        [
            Cell(one.method, one.method, looks[one.method]),
            Cell(str(chosen[one.method]), str(chosen[one.method])),
            _score(tuning, one.before.mean),
            _score(tuning, one.after.mean),
            _gain(tuning, one),
            Cell(_place(one.rank_before), one.rank_before or math.inf),
            Cell(_place(one.rank_after), one.rank_after or math.inf),
        ]
        for one in tuning.ranking
    ]
    columns = ("Method", "Chosen values", "As given", "Tuned", "Gain (95 % interval)", "Rank as given", "Rank tuned")
    return Table("The methods before and after tuning", columns, rows)


def _trials(tuning: Tuning) -> Table:
    rows, looks = [], _looks(tuning)
    for label, own in tuning.trials.items():
        counts = [sum(trial.end == end for trial in own) for end in (FINISHED, PRUNED, DIVERGED)]
        full, made = len(own) * tuning.rounds, sum(trial.rounds for trial in own)
        saved = sum(tuning.rounds - trial.rounds for trial in own if trial.end == PRUNED)
        seconds = sum(trial.seconds for trial in own)
        rows.append(
            [
                Cell(label, label, looks[label]),
                *(Cell(str(count), count) for count in (len(own), *counts, made)),
                Cell(f"{saved} ({100 * saved / max(1, full):.0f} %)", saved),
                Cell(wording.duration(seconds), seconds),
            ]
        )
    columns = ("Method", "Trials", "Finished", "Stopped early", "Diverged", "Rounds", "Rounds saved", "Time")
    return Table("What the search cost", columns, rows)


def _sensitivity(tuning: Tuning) -> Table:
    """The spread of the scores of each method: its sensitivity to its values."""
    sign, looks, rows = tuning.metric.sign, _looks(tuning), []
    for label, own in tuning.trials.items():
        scores = sorted((trial.score for trial in own if trial.score is not None), key=lambda score: -sign * score)
        best, given = best_of(own, sign), next((trial.score for trial in own if trial.number == 0), None)
        near = [score for score in scores if best and abs(score - (best.score or 0.0)) <= _near(tuning)]
        rows.append(
            [
                Cell(label, label, looks[label]),
                _score(tuning, None if best is None else best.score),
                _score(tuning, given),
                _score(tuning, scores[len(scores) // 2] if scores else None),
                _score(tuning, scores[-1] if scores else None),
                Cell(f"{len(near)} of {len(own)}", len(near)),
            ]
        )
    near_text = f"Trials within {wording.score(_near(tuning), tuning.metric)} of the best"
    return Table(
        "Scores of the trials on validation samples", ("Method", "Best", "As given", "Median", "Worst", near_text), rows
    )


def _near(tuning: Tuning) -> float:
    """Two points of a bounded metric, 2 % of the best score of others."""
    if tuning.metric.bounded:
        return 0.02
    bests = [best_of(own, tuning.metric.sign) for own in tuning.trials.values()]
    return 0.02 * max((abs(best.score or 0.0) for best in bests if best), default=0.0)


def _score(tuning: Tuning, score: float | None) -> Cell:
    if score is None or math.isnan(score):
        return Cell(MISSING, math.nan)
    return Cell(wording.score(score, tuning.metric), score)


def _gain(tuning: Tuning, one: Ranked) -> Cell:
    if math.isnan(one.gain.mean):
        return Cell(MISSING, math.nan)
    gain, metric = one.gain, tuning.metric
    within = "" if math.isnan(gain.low) else f" ({wording.interval(gain.low, gain.high, metric)})"
    return Cell(f"{wording.change(gain.mean, metric)}{within}", gain.mean)


def _looks(tuning: Tuning) -> dict[str, Look]:
    return looks_of(list(tuning.methods))


def _place(rank: int | None) -> str:
    return MISSING if rank is None else str(rank)


def _unit(tuning: Tuning) -> str:
    return " (%)" if tuning.metric.percent else ""


def _scale(tuning: Tuning) -> float:
    return 100 if tuning.metric.percent else 1


pages.register("tuning")(Page(render, panels))
