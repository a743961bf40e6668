"""The charts of a tuning: the ranking before and after, best scores by trial, scores by hyperparameter, spreads of scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from unalike.methods.search_space import LogRange
from unalike.metrics.named_metrics import Metric
from unalike.reporting.charts.palette import Look
from unalike.reporting.charts.plotly_canvas import canvas, named_rows, numbers, text
from unalike.tuning.ranking import Ranked, Score
from unalike.tuning.trial import FINISHED, Trial
from unalike.tuning.trials import Trials
from unalike.tuning.tunable import LOCAL_RATE, Tunable

Looks = Mapping[str, Look]
LOCAL_RATE_TITLE = "local learning rate"
HOLLOW = "rgba(0,0,0,0)"
APART = 0.012
"""Distance between the intervals of two methods, so that none hides another."""


def slopes(ranked: Sequence[Ranked], metric: Metric, title: str, looks: Looks, scale: float) -> go.Figure:
    """One line per method from its score before tuning to that after it, with 95 % intervals as far as scores are possible."""
    figure = canvas(460)
    for i, one in enumerate(ranked):
        look, shift = looks[one.method], APART * (i - (len(ranked) - 1) / 2)
        ends = (one.before, one.after)
        figure.add_scatter(
            x=[shift, 1 + shift],
            y=numbers(scale * end.mean for end in ends),
            mode="lines+markers",
            legendgroup=look.key,
            line={"color": look.color, "dash": look.dash, "width": 2.5},
            marker={"color": look.color, "symbol": look.marker, "size": 10},
            error_y=_arms(ends, metric, scale) | {"color": look.color},
            meta=text(one.method),
            customdata=[numbers([scale * end.low, scale * end.high]) for end in ends],
            hovertemplate="%{meta}<br>%{y:.4g} (%{customdata[0]:.4g} to %{customdata[1]:.4g})<extra></extra>",
            cliponaxis=False,
        )
    figure.update_xaxes(
        tickvals=[0, 1], ticktext=["as given", "tuned"], range=[-0.18, 1.18], showgrid=False, zeroline=False
    )
    figure.update_yaxes(title_text=title, zeroline=False)
    return figure


def best_so_far(trials: Trials, sign: int, title: str, looks: Looks, scale: float) -> go.Figure:
    """The best validation score among the first trials of each method."""
    figure = canvas(400)
    for label, own in trials.items():
        look, best, line = looks[label], math.nan, []
        for trial in own:
            if trial.end == FINISHED and trial.score is not None:
                best = trial.score if math.isnan(best) else sign * max(sign * best, sign * trial.score)
            line.append(best)
        figure.add_scatter(
            x=[trial.number + 1 for trial in own],
            y=numbers(scale * value for value in line),
            mode="lines+markers",
            legendgroup=look.key,
            line={"color": look.color, "dash": look.dash, "width": 2.25, "shape": "hv"},
            marker={"color": look.color, "symbol": look.marker, "size": 7, "maxdisplayed": 9},
            meta=text(label),
            hovertemplate="%{meta}<br>after trial %{x}: %{y:.4g}<extra></extra>",
        )
    figure.update_xaxes(title_text="trials", zeroline=False)
    figure.update_yaxes(title_text=title, zeroline=False)
    return figure


def by_value(
    name: str, methods: Mapping[str, Tunable], trials: Trials, title: str, looks: Looks, scale: float
) -> go.Figure:
    """The score of each trial by the value of one hyperparameter; hollow if the trial was stopped early."""
    figure, log = canvas(400), False
    for label, own in trials.items():
        space = methods[label].spaces.get(name)
        shown = [trial for trial in own if trial.score is not None and name in trial.values]
        if space is None or not shown:
            continue
        log |= isinstance(space, LogRange)
        figure.add_scatter(
            x=[trial.values[name] for trial in shown],
            y=numbers(scale * (trial.score or 0.0) for trial in shown),
            mode="markers",
            legendgroup=looks[label].key,
            marker=_filled(shown, looks[label]) | {"size": 9},
            meta=text(label),
            text=[text(f"trial {trial.number}, {trial.end} after {trial.rounds} rounds") for trial in shown],
            hovertemplate="%{meta}<br>%{text}<br>%{x:.3g} → %{y:.4g}<extra></extra>",
        )
    figure.update_xaxes(title_text=LOCAL_RATE_TITLE if name == LOCAL_RATE else name, zeroline=False)
    if log:
        figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(title_text=title, zeroline=False)
    return figure


def spreads(trials: Trials, title: str, looks: Looks, scale: float) -> go.Figure:
    """The scores of all trials, one row per method; a ring around the values that the method was given with."""
    figure = named_rows(list(trials), 62)
    for i, (label, own) in enumerate(trials.items()):
        look, y = looks[label], len(trials) - 1 - i - 0.1
        shown = [trial for trial in own if trial.score is not None]
        figure.add_scatter(
            x=numbers(scale * (trial.score or 0.0) for trial in shown),
            y=[y] * len(shown),
            mode="markers",
            marker=_filled(shown, look) | {"size": 10},
            meta=text(label),
            text=[text(f"trial {trial.number}, {trial.end}") for trial in shown],
            hovertemplate="%{meta}<br>%{text}: %{x:.4g}<extra></extra>",
            cliponaxis=False,
        )
        given = [trial for trial in shown if trial.number == 0]
        figure.add_scatter(
            x=numbers(scale * (trial.score or 0.0) for trial in given),
            y=[y] * len(given),
            mode="markers",
            marker={"color": HOLLOW, "symbol": "circle", "size": 20, "line": {"width": 1.75, "color": look.color}},
            hoverinfo="skip",
            cliponaxis=False,
        )
    figure.update_xaxes(title_text=title, zeroline=False)
    return figure


def _filled(trials: Sequence[Trial], look: Look) -> dict[str, object]:
    """Filled markers for finished trials, hollow ones for those that were stopped early."""
    colors = [look.color if trial.end == FINISHED else HOLLOW for trial in trials]
    return {"color": colors, "symbol": look.marker, "line": {"width": 1.75, "color": look.color}}


def _arms(ends: Sequence[Score], metric: Metric, scale: float) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": numbers(scale * (min(end.high, metric.high) - end.mean) for end in ends),
        "arrayminus": numbers(scale * (end.mean - max(end.low, metric.low)) for end in ends),
        "thickness": 1.75,
        "width": 6,
    }
