"""The charts of a tuning: the ranking before and after, best scores by trial, scores by hyperparameter, spreads of scores."""

import math
from collections.abc import Mapping, Sequence

from unalike.methods.search_space import LogRange
from unalike.metrics.named_metrics import Metric
from unalike.reporting.charts.figure import AnyMark, Axis, Figure, Line, Points, plot, rows_plot
from unalike.reporting.charts.palette import Looks, plain
from unalike.reporting.wording import plural
from unalike.tuning.ranking import Ranked
from unalike.tuning.trial import FINISHED, Trial
from unalike.tuning.trials import Trials
from unalike.tuning.tunable import LOCAL_RATE, Tunable, Value

LOCAL_RATE_TITLE = "local learning rate"
METHOD_DISTANCE = 0.012
"""Distance between the intervals of two methods, so that none hides another."""


def slopes(
    ranked: Sequence[Ranked], metric: Metric, title: str, looks: Looks, scale: float
) -> Figure:
    """One line per method from its score before tuning to that after it, with 95 % intervals as far as scores are possible."""
    marks: list[AnyMark] = []
    middle = (len(ranked) - 1) / 2
    for i, one in enumerate(ranked):
        # The intervals of the methods lie side by side.
        shift = METHOD_DISTANCE * (i - middle)
        look = looks[one.method]
        ends = (one.before, one.after)
        x = [shift, 1 + shift]
        y = [scale * end.mean for end in ends]
        low = [scale * max(end.low, metric.low) for end in ends]
        high = [scale * min(end.high, metric.high) for end in ends]
        line = Line(look=look, label=one.method, x=x, y=y, markers=False, width=2.5)
        points = Points(
            look=look, label=one.method, x=x, y=y, low=low, high=high, along="y", size=10
        )
        marks += [line, points]
    x_axis = Axis(ticks={0: "as given", 1: "tuned"}, limits=(-0.18, 1.18))
    return plot(marks, x_axis, Axis(title), height=460)


def best_so_far(trials: Trials, sign: int, title: str, looks: Looks, scale: float) -> Figure:
    """The best validation score among the first trials of each method."""
    marks = []
    for label, of_method in trials.items():
        best = math.nan
        line = []
        for trial in of_method:
            if trial.end == FINISHED and trial.score is not None:
                is_better = math.isnan(best) or sign * trial.score > sign * best
                best = trial.score if is_better else best
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
    marks = []
    is_log = False
    choices: dict[str, float] = {}
    for label, of_method in trials.items():
        space = methods[label].spaces.get(name)
        shown = [trial for trial in of_method if trial.score is not None and name in trial.values]
        if space is None or not shown:
            continue
        is_log |= isinstance(space, LogRange)
        texts = []
        for trial in shown:
            rounds = plural(trial.rounds, "round")
            texts.append(f"trial {trial.number}, {trial.end} after {rounds}")
        points = Points(
            look=looks[label],
            label=label,
            x=[_place(trial.values[name], choices) for trial in shown],
            y=_scores(shown, scale),
            hollow=_stopped(shown),
            texts=texts,
        )
        marks.append(points)
    # Choices have names on the axis in place of numbers.
    ticks = {place: choice for choice, place in choices.items()} or None
    axis_title = LOCAL_RATE_TITLE if name == LOCAL_RATE else name
    x = Axis(axis_title, ticks, log=is_log, form=".3g")
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
        scores = Points(
            look=looks[label],
            label=label,
            x=_scores(shown, scale),
            y=[row] * len(shown),
            hollow=_stopped(shown),
            texts=[f"trial {trial.number}, {trial.end}" for trial in shown],
            size=10,
        )
        ring = Points(
            look=plain(looks[label].color),
            x=_scores(first, scale),
            y=[row] * len(first),
            hollow=[True] * len(first),
            size=20,
        )
        marks += [scores, ring]
    return rows_plot(list(trials), marks, Axis(title), 62)


def _scores(trials: Sequence[Trial], scale: float) -> list[float]:
    return [scale * (trial.score or 0.0) for trial in trials]


def _stopped(trials: Sequence[Trial]) -> list[bool]:
    return [trial.end != FINISHED for trial in trials]
