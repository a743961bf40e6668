"""Draws figures with Plotly, for pages and notebooks."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import singledispatch
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.subplots import make_subplots

from unalike.reporting import wording
from unalike.reporting.charts.figure import (
    AnyMark,
    Axis,
    Bars,
    Box,
    Bubbles,
    Figure,
    HeatMap,
    Line,
    Mark,
    Note,
    Plot,
    Points,
    Rule,
    with_shared_colors,
)
from unalike.reporting.charts.palette import BLUE, ORANGE

CLEAR = "rgba(0,0,0,0)"
RULE = "#888888"
LONGEST_TICK, MOST_TICKS = 14, 30
"""Most letters of a name at an axis, and most names there."""
TITLE_LETTERS = 34
"""Letters of a line of a plot's title."""
BLUES = [[0, "rgba(26,128,187,0)"], [1, "rgba(26,128,187,1)"]]
"""From the background, light or dark, to blue."""
BLUE_TO_ORANGE = [[0, BLUE], [0.5, "rgba(140,140,140,0.08)"], [1, ORANGE]]
STEPS = {"": "linear", "x": "hv", "y": "vh"}
BESIDE: dict[str, dict[str, Any]] = {
    "left": {"xanchor": "right", "xshift": -8},
    "right": {"xanchor": "left", "xshift": 8},
    "above": {"yanchor": "bottom", "yshift": 1},
}


def draw(figure: Figure) -> go.Figure:
    """The figure as a Plotly figure without a theme; a page's script gives it the colors of light or dark."""
    figure, listed = with_shared_colors(figure), bool(figure.listed)
    several, side = len(figure.plots) > 1, 20 + 7 * figure.room if figure.room else 12
    drawn = _subplots(figure) if several or figure.plots[0].title else go.Figure()
    names, colored = set[str](), False
    for place, plot in enumerate(figure.plots):
        at: dict[str, Any] = {}
        if several:
            at = {"row": place // figure.columns + 1, "col": place % figure.columns + 1}
        if not figure.says_y(place):
            plot = replace(plot, y=replace(plot.y, title=""))
        _draw_axes(drawn, plot, figure.height, at)
        for mark in plot.marks:
            for trace in _traces(mark, plot):
                if isinstance(mark, HeatMap):
                    trace.showscale, colored = (
                        not colored,
                        True,
                    )  # several heat maps share one color bar
                else:
                    trace.showlegend = bool(listed and trace.name and trace.name not in names)
                    names.add(trace.name or "")
                drawn.add_trace(trace, **at)
            if isinstance(mark, Rule):
                drawn.add_vline(x=mark.x, line={"width": 1.5, "dash": "dot", "color": RULE}, **at)
            if isinstance(mark, Note):
                beside = BESIDE[mark.side] | at
                drawn.add_annotation(
                    x=mark.x, y=mark.y, text=text(mark.text), showarrow=False, borderpad=0, **beside
                )
    drawn.update_layout(
        template="none",
        height=figure.height * figure.lines,
        margin={
            "l": side,
            "r": side if figure.room else 14,
            "t": 60 if several else 36 if figure.plots[0].title else 12,
            "b": 8 if figure.room else 48,
        },
        showlegend=any(trace.showlegend for trace in drawn.data),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    return drawn


def _subplots(figure: Figure) -> go.Figure:
    """Empty axes for several plots, with room between them for the names at their y axes."""
    titles = ["<br>".join(map(text, wrap(plot.title, TITLE_LETTERS))) for plot in figure.plots]
    gap = 0.14 if any(plot.y.ticks for plot in figure.plots) else 0.07
    drawn = make_subplots(
        figure.lines, figure.columns, subplot_titles=titles, horizontal_spacing=gap
    )
    return drawn.update_annotations(font={"size": 13})


def page_json(figure: Figure) -> Markup:
    """The figure as JSON for a script element; `<` is escaped so that no text can end the element."""
    return Markup(draw(figure).to_json(engine="json").replace("<", "\\u003c"))


def text(raw: object) -> str:
    """Escape text for Plotly, which interprets some tags such as `<a>` and `<b>`; it breaks lines at one."""
    return html.escape(str(raw), quote=False).replace("\n", "<br>")


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers rounded to six digits, more than a chart can show; NaN becomes null, a gap."""
    return [None if pd.isna(value) else float(f"{value:.6g}") for value in values]


def _draw_axes(drawn: go.Figure, plot: Plot, height: int, at: dict[str, Any]) -> None:
    grid = not any(isinstance(mark, HeatMap) for mark in plot.marks)
    drawn.update_xaxes(**_axis(plot.x, grid), **at)
    if not plot.rows:
        drawn.update_yaxes(**_axis(plot.y, grid), **at)
        return
    count = len(plot.rows)
    drawn.update_yaxes(
        range=[count - 0.45, -0.65], tickvals=[], showgrid=False, zeroline=False, **at
    )
    for i, name in enumerate(
        plot.rows
    ):  # above its row and not beside it, so that a long name does not narrow the plot
        label = {"text": text(wording.short(name)), "x": 0, "xref": "x domain", "xanchor": "left"}
        drawn.add_annotation(
            **label, y=i, yshift=0.4 * (height - 56) / count, showarrow=False, **at
        )


def _axis(axis: Axis, grid: bool) -> dict[str, Any]:
    """The properties of an axis for Plotly."""
    if not axis.visible:
        return {"range": axis.limits, "visible": False, "fixedrange": True}
    found: dict[str, Any] = {"title_text": text(axis.title), "zeroline": False, "automargin": True}
    if axis.log:
        found |= {"type": "log", "dtick": 1}
    if axis.from_zero:
        found |= {"rangemode": "tozero", "zeroline": True}
    if axis.limits:
        low, high = np.log10(axis.limits) if axis.log else axis.limits
        found |= {"range": [high, low] if axis.reverse else [low, high]}
    elif axis.reverse:
        found |= {"autorange": "reversed"}
    if axis.ticks is not None:
        shown = list(axis.ticks.items())[:: -(-len(axis.ticks) // MOST_TICKS) or 1]
        names = [text(wording.short(name, LONGEST_TICK)) for _, name in shown]
        found |= {"tickvals": [place for place, _ in shown], "ticktext": names, "showgrid": grid}
    return found


@singledispatch
def _traces(mark: AnyMark, plot: Plot) -> Sequence[Any]:
    """The traces of a mark; none for rules and notes, which are no data for Plotly."""
    return ()


@_traces.register
def _(mark: Line, plot: Plot) -> Sequence[Any]:
    look = mark.look
    line = go.Scatter(
        x=numbers(mark.x),
        y=numbers(mark.y),
        mode="lines+markers" if mark.markers else "lines",
        line={
            "color": look.color,
            "dash": look.dash,
            "width": mark.width,
            "shape": STEPS[mark.step],
        },
        marker={"color": look.color, "symbol": look.marker, "size": 7, "maxdisplayed": 9}
        if mark.markers
        else None,
        **_named(mark, plot),
    )
    if not len(mark.low):
        return (line,)
    outline = np.array([mark.x, mark.low, mark.high], dtype=float)
    x, low, high = outline[:, np.isfinite(outline).all(0)]  # a gap would break the outline
    band = go.Scatter(
        x=numbers([*x, *x[::-1]]),
        y=numbers([*high, *low[::-1]]),
        fill="toself",
        fillcolor=look.faded(0.13),
        line={"width": 0},
        mode="lines",
        legendgroup=look.key or None,
        hoverinfo="skip",
    )
    return band, line


@_traces.register
def _(mark: Points, plot: Plot) -> Sequence[Any]:
    look, middles = mark.look, mark.x if mark.along == "x" else mark.y
    marker: dict[str, Any] = {"color": look.color, "symbol": look.marker, "size": mark.size}
    if len(mark.hollow):
        colors = [CLEAR if hollow else look.color for hollow in mark.hollow]
        marker |= {"color": colors, "line": {"width": 2, "color": look.color}}
    if look.marker.startswith("line-") or look.marker.endswith("-open"):  # there is only an outline
        marker |= {"line": {"width": 2, "color": look.color}}
    found: dict[str, Any] = {}
    if len(mark.low):
        found[f"error_{mark.along}"] = _arms(middles, mark.low, mark.high) | {"color": look.color}
        found["customdata"] = [numbers(ends) for ends in zip(mark.low, mark.high)]
    if len(mark.captions):
        places = ["top center" if i % 2 else "bottom center" for i in range(len(mark.captions))]
        found |= {
            "text": list(map(text, mark.captions)),
            "textposition": places,
            "textfont": {"size": 11},
        }
    return (
        go.Scatter(
            x=numbers(mark.x),
            y=numbers(mark.y),
            mode="markers+text" if len(mark.captions) else "markers",
            marker=marker,
            cliponaxis=False,
            **(found | _named(mark, plot, mark.along if len(mark.low) else "")),
        ),
    )


@_traces.register
def _(mark: Box, plot: Plot) -> Sequence[Any]:
    look = mark.look
    return (
        go.Box(
            x=numbers(mark.values),
            y0=mark.row,
            orientation="h",
            width=0.36,
            boxpoints="all" if mark.dots else "outliers",
            jitter=0.7,
            pointpos=0,
            line={"color": look.color, "width": 1.5},
            fillcolor=look.faded(0.12),
            marker={"color": look.faded(0.55), "size": 5, "symbol": look.marker},
            hoveron="points",
            **_named(mark, plot),
        ),
    )


@_traces.register
def _(mark: Bars, plot: Plot) -> Sequence[Any]:
    return (
        go.Bar(
            x=numbers(mark.values),
            y=numbers(mark.y),
            orientation="h",
            width=0.55,
            marker={"color": mark.look.color},
            textposition="none",  # the texts are for the pointer
            error_x=_arms(mark.values, mark.low, mark.high)
            | {"color": RULE, "thickness": 1.5, "width": 4},
            **_named(mark, plot),
        ),
    )


@_traces.register
def _(mark: Bubbles, plot: Plot) -> Sequence[Any]:
    size = {
        "sizemode": "area",
        "sizeref": 2 * max(mark.counts, default=1) / mark.widest**2,
        "sizemin": 1.5,
    }
    look = {"color": mark.look.color, "opacity": 0.8, "line": {"width": 0}}
    marker = {"size": list(mark.counts)} | look | size
    return (
        go.Scatter(
            x=numbers(mark.x),
            y=numbers(mark.y),
            mode="markers",
            marker=marker,
            **_named(mark, plot),
        ),
    )


@_traces.register
def _(mark: HeatMap, plot: Plot) -> Sequence[Any]:
    values = np.asarray(mark.values, dtype=float)
    colors, (low, high) = np.sqrt(values) if mark.root else values, mark.ends
    ends = (low**0.5, high**0.5) if mark.root else (low, high)
    return (
        go.Heatmap(
            z=[numbers(row) for row in colors],
            customdata=[numbers(row) for row in values] if mark.root else None,
            text=[[text(entry) for entry in row] for row in mark.texts] or None,
            texttemplate="%{text}" if mark.written else None,
            hovertemplate=("%{text}: " if mark.texts else "")
            + _value("customdata" if mark.root else "z", mark.form)
            + "<extra></extra>",
            zmin=ends[0],
            zmax=ends[1],
            colorscale=BLUE_TO_ORANGE if mark.diverging else BLUES,
            colorbar=_color_bar(mark),
            xgap=1,
            ygap=1,
        ),
    )


def _color_bar(mark: HeatMap) -> dict[str, Any]:
    bar = {"title": {"text": text(mark.bar), "side": "right"}, "thickness": 12, "outlinewidth": 0}
    if not mark.root:
        return bar
    low, high = mark.ends
    values = np.linspace(low**0.5, high**0.5, 5)
    return bar | {"tickvals": list(values), "ticktext": [f"{value**2:.3g}" for value in values]}


def _named(mark: Mark, plot: Plot, interval_along: str = "") -> dict[str, Any]:
    """Name, group and texts of a trace, and what the pointer shows of it."""
    said = [
        *(["%{fullData.name}"] if mark.label else []),
        *(["%{text}"] if len(mark.texts) else []),
    ]
    group = mark.look.key or mark.label
    found: dict[str, Any] = {"name": text(mark.label) or None, "legendgroup": text(group) or None}
    if not said:
        return found | {"hoverinfo": "skip"}
    for letter, axis in (("x", plot.x), ("y", plot.y)):
        if axis.ticks is None and axis.visible and not (letter == "y" and plot.rows):
            low, high = (_value(f"customdata[{i}]", axis.form) for i in (0, 1))
            ends = f" ({low} to {high})" if letter == interval_along else ""
            said.append(axis.word + _value(letter, axis.form) + ends)
    if len(mark.texts):
        found["text"] = list(map(text, mark.texts))
    return found | {"hovertemplate": "<br>".join(said) + "<extra></extra>"}


def _value(name: str, form: str) -> str:
    """A number of a trace for the pointer, in Plotly's spelling, whose formats are Python's."""
    return f"%{{{name}:{form}}}" if form else f"%{{{name}}}"


def _arms(middles: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": numbers(end - middle for middle, end in zip(middles, high)),
        "arrayminus": numbers(middle - end for middle, end in zip(middles, low)),
        "thickness": 2.25,
        "width": 6,
    }
