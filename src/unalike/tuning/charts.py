"""The charts of a tuning: the ranking before and after, best scores by trial, scores by hyperparameter, spreads of scores."""

import math
from collections.abc import Mapping, Sequence

from unalike.methods.search_space import LogRange
from unalike.metrics.named_metrics import Metric
from unalike.reporting.charts.figure import AnyMark, Axis, Figure, Line, Points, plot, rows_plot
from unalike.reporting.charts.palette import Looks, look_of_color
from unalike.reporting.wording import plural
from unalike.tuning.ranking import Ranked
from unalike.tuning.trial import FINISHED, Trial
from unalike.tuning.trials import Trials
from unalike.tuning.tunable import LOCAL_RATE, Tunable, Value

LOCAL_RATE_TITLE = "local learning rate"
APART = 0.012
"""Distance between the intervals of two methods, so that none hides another."""


def slopes(
    ranked: Sequence[Ranked], metric: Metric, title: str, looks: Looks, scale: float
) -> Figure:
    """One line per method from its score before tuning to that after it, with 95 % intervals as far as scores are possible."""
    marks: list[AnyMark] = []
    for i, one in enumerate(ranked):
        look, shift = looks[one.method], APART * (i - (len(ranked) - 1) / 2)
        ends, x = (one.before, one.after), [shift, 1 + shift]
        y = [scale * end.mean for end in ends]
        low = [scale * max(end.low, metric.low) for end in ends]
        high = [scale * min(end.high, metric.high) for end in ends]
        marks += [
            Line(look=look, label=one.method, x=x, y=y, markers=False, width=2.5),
            Points(look=look, label=one.method, x=x, y=y, low=low, high=high, along="y", size=10),
        ]
    return plot(
        marks,
        Axis(ticks={0: "as given", 1: "tuned"}, limits=(-0.18, 1.18)),
        Axis(title),
        height=460,
    )


def best_so_far(trials: Trials, sign: int, title: str, looks: Looks, scale: float) -> Figure:
    """The best validation score among the first trials of each method."""
    marks = []
    for label, of_method in trials.items():
        best, line = math.nan, []
        for trial in of_method:
            if trial.end == FINISHED and trial.score is not None:
                best = (
                    trial.score if math.isnan(best) else sign * max(sign * best, sign * trial.score)
                )
            line.append(scale * best)
        numbers = [trial.number + 1 for trial in of_method]
        marks.append(Line(look=looks[label], label=label, x=numbers, y=line, step="x"))
    return plot(marks, Axis("trials", word="after trial ", form=""), Axis(title), height=400)


def by_value(
    name: str,
    methods: Mapping[str, Tunable],
    trials: Trials,
    title: str,
    looks: Looks,
    scale: float,
) -> Figure:
    """The score of each trial by the value of one hyperparameter; hollow if the trial was stopped early."""
    marks, log, choices = [], False, dict[str, float]()
    for label, of_method in trials.items():
        space = methods[label].spaces.get(name)
        shown = [trial for trial in of_method if trial.score is not None and name in trial.values]
        if space is None or not shown:
            continue
        log |= isinstance(space, LogRange)
        marks.append(
            Points(
                look=looks[label],
                label=label,
                x=[_place(trial.values[name], choices) for trial in shown],
                y=_scores(shown, scale),
                hollow=_stopped(shown),
                texts=[
                    f"trial {trial.number}, {trial.end} after {plural(trial.rounds, 'round')}"
                    for trial in shown
                ],
            )
        )
    ticks = {place: choice for choice, place in choices.items()} or None
    x = Axis(LOCAL_RATE_TITLE if name == LOCAL_RATE else name, ticks, log=log, form=".3g")
    return plot(marks, x, Axis(title), height=400)


def _place(value: Value, choices: dict[str, float]) -> float:
    """The place of a value on its axis: the number itself, or the place of a choice, which is added to `choices`."""
    if isinstance(value, str | bool):
        return choices.setdefault(str(value), float(len(choices)))
    return float(value)


def spreads(trials: Trials, title: str, looks: Looks, scale: float) -> Figure:
    """The scores of all trials, one row per method; a ring around the values that the method was given with."""
    marks: list[AnyMark] = []
    for row, (label, of_method) in enumerate(trials.items()):
        shown = [trial for trial in of_method if trial.score is not None]
        first = [trial for trial in shown if trial.number == 0]
        texts = [f"trial {trial.number}, {trial.end}" for trial in shown]
        ring = look_of_color(looks[label].color)
        marks += [
            Points(
                look=looks[label],
                label=label,
                x=_scores(shown, scale),
                y=[row] * len(shown),
                hollow=_stopped(shown),
                texts=texts,
                size=10,
            ),
            Points(
                look=ring,
                x=_scores(first, scale),
                y=[row] * len(first),
                hollow=[True] * len(first),
                size=20,
            ),
        ]
    return rows_plot(list(trials), marks, Axis(title), 62)


def _scores(trials: Sequence[Trial], scale: float) -> list[float]:
    return [scale * (trial.score or 0.0) for trial in trials]


def _stopped(trials: Sequence[Trial]) -> list[bool]:
    return [trial.end != FINISHED for trial in trials]
