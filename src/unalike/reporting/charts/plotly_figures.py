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

TRANSPARENT = "rgba(0,0,0,0)"
RULE_COLOR = "#888888"
MAX_TICK_LETTERS = 14
"""Most letters of a name at an axis."""
MAX_TICKS = 30
"""Most names at an axis."""
TITLE_LETTERS = 34
"""Letters of a line of a plot's title."""
BLUES = [[0, "rgba(26,128,187,0)"], [1, "rgba(26,128,187,1)"]]
"""From the background, light or dark, to blue."""
BLUE_TO_ORANGE = [[0, BLUE], [0.5, "rgba(140,140,140,0.08)"], [1, ORANGE]]
LINE_SHAPES = {"": "linear", "x": "hv", "y": "vh"}
"""`Line.step` -> Plotly's name."""
NOTE_PLACES: dict[str, dict[str, Any]] = {
    "left": {"xanchor": "right", "xshift": -8},
    "right": {"xanchor": "left", "xshift": 8},
    "above": {"yanchor": "bottom", "yshift": 1},
}


def draw(figure: Figure) -> go.Figure:
    """The figure as a Plotly figure without a theme; a page's script gives it the colors of light or dark."""
    has_legend = bool(figure.listed)
    figure = with_shared_colors(figure)
    several = len(figure.plots) > 1
    has_title = bool(figure.plots[0].title)
    drawn = _subplots(figure) if several or has_title else go.Figure()
    drawn_names: set[str] = set()
    for place, plot in enumerate(figure.plots):
        cell: dict[str, Any] = {}
        if several:
            cell = {"row": place // figure.columns + 1, "col": place % figure.columns + 1}
        if not figure.says_y(place):
            plot = replace(plot, y=replace(plot.y, title=""))
        _draw_axes(drawn, plot, figure.height, cell)
        for mark in plot.marks:
            for trace in _traces(mark, plot):
                if isinstance(mark, HeatMap):
                    # several heat maps share one color bar
                    trace.showscale = not any(isinstance(t, go.Heatmap) for t in drawn.data)
                else:
                    is_new = trace.name not in drawn_names
                    trace.showlegend = bool(has_legend and trace.name and is_new)
                    drawn_names.add(trace.name or "")
                drawn.add_trace(trace, **cell)
            _draw_beside_data(drawn, mark, cell)

    # room for the longest note beside the axes, and for titles above them
    side = 20 + 7 * figure.room if figure.room else 12
    top = 12
    if several:
        top = 60
    elif has_title:
        top = 36
    drawn.update_layout(
        template="none",
        height=figure.height * figure.lines,
        margin={
            "l": side,
            "r": side if figure.room else 14,
            "t": top,
            "b": 8 if figure.room else 48,
        },
        showlegend=any(trace.showlegend for trace in drawn.data),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    return drawn


def _draw_beside_data(drawn: go.Figure, mark: AnyMark, cell: dict[str, Any]) -> None:
    """Draw a rule or a note, which are no data for Plotly."""
    if isinstance(mark, Rule):
        line = {"width": 1.5, "dash": "dot", "color": RULE_COLOR}
        drawn.add_vline(x=mark.x, line=line, **cell)
    if isinstance(mark, Note):
        drawn.add_annotation(
            x=mark.x,
            y=mark.y,
            text=text(mark.text),
            showarrow=False,
            borderpad=0,
            **NOTE_PLACES[mark.side],
            **cell,
        )


def _subplots(figure: Figure) -> go.Figure:
    """Empty axes for several plots, with room between them for the names at their y axes."""
    titles = []
    for plot in figure.plots:
        lines = wrap(plot.title, TITLE_LETTERS)
        titles.append("<br>".join(map(text, lines)))
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


def _draw_axes(drawn: go.Figure, plot: Plot, height: int, cell: dict[str, Any]) -> None:
    has_grid = not any(isinstance(mark, HeatMap) for mark in plot.marks)
    drawn.update_xaxes(**_axis(plot.x, has_grid), **cell)
    if not plot.rows:
        drawn.update_yaxes(**_axis(plot.y, has_grid), **cell)
        return
    count = len(plot.rows)
    drawn.update_yaxes(
        range=[count - 0.45, -0.65], tickvals=[], showgrid=False, zeroline=False, **cell
    )
    # a name is above its row and not beside it, so that a long one does not narrow the plot
    for i, name in enumerate(plot.rows):
        drawn.add_annotation(
            text=text(wording.short(name)),
            x=0,
            xref="x domain",
            xanchor="left",
            y=i,
            yshift=0.4 * (height - 56) / count,
            showarrow=False,
            **cell,
        )


def _axis(axis: Axis, has_grid: bool) -> dict[str, Any]:
    """The properties of an axis for Plotly."""
    if not axis.visible:
        return {"range": axis.limits, "visible": False, "fixedrange": True}
    properties: dict[str, Any] = {
        "title_text": text(axis.title),
        "zeroline": False,
        "automargin": True,
    }
    if axis.log:
        properties |= {"type": "log", "dtick": 1}
    if axis.from_zero:
        properties |= {"rangemode": "tozero", "zeroline": True}
    if axis.limits:
        # Plotly wants the powers of ten
        low, high = np.log10(axis.limits) if axis.log else axis.limits
        properties["range"] = [high, low] if axis.reverse else [low, high]
    elif axis.reverse:
        properties["autorange"] = "reversed"
    if axis.ticks is not None:
        every = max(1, -(-len(axis.ticks) // MAX_TICKS))
        ticks = list(axis.ticks.items())[::every]
        properties["tickvals"] = [place for place, _ in ticks]
        properties["ticktext"] = [text(wording.short(name, MAX_TICK_LETTERS)) for _, name in ticks]
        properties["showgrid"] = has_grid
    return properties


@singledispatch
def _traces(mark: AnyMark, plot: Plot) -> Sequence[Any]:
    """The traces of a mark; none for rules and notes, which are no data for Plotly."""
    return ()


@_traces.register
def _(mark: Line, plot: Plot) -> Sequence[Any]:
    look = mark.look
    marker = None
    if mark.markers:
        marker = {"color": look.color, "symbol": look.marker, "size": 7, "maxdisplayed": 9}
    line = go.Scatter(
        x=numbers(mark.x),
        y=numbers(mark.y),
        mode="lines+markers" if mark.markers else "lines",
        line={
            "color": look.color,
            "dash": look.dash,
            "width": mark.width,
            "shape": LINE_SHAPES[mark.step],
        },
        marker=marker,
        **_name_and_pointer(mark, plot),
    )
    if not len(mark.low):
        return (line,)
    # a gap would break the outline of the band
    outline = np.array([mark.x, mark.low, mark.high], dtype=float)
    x, low, high = outline[:, np.isfinite(outline).all(0)]
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
    look = mark.look
    marker: dict[str, Any] = {"color": look.color, "symbol": look.marker, "size": mark.size}
    outline = {"width": 2, "color": look.color}
    if len(mark.hollow):
        marker["color"] = [TRANSPARENT if hollow else look.color for hollow in mark.hollow]
        marker["line"] = outline
    # of these symbols there is only an outline
    if look.marker.startswith("line-") or look.marker.endswith("-open"):
        marker["line"] = outline
    properties: dict[str, Any] = {}
    if len(mark.low):
        middles = mark.x if mark.along == "x" else mark.y
        arms = _arms(middles, mark.low, mark.high) | {"color": look.color}
        properties[f"error_{mark.along}"] = arms
        properties["customdata"] = [numbers(ends) for ends in zip(mark.low, mark.high)]
    if len(mark.captions):
        # below and above in turn, so that captions of neighbors do not meet
        places = ["top center" if i % 2 else "bottom center" for i in range(len(mark.captions))]
        properties["text"] = list(map(text, mark.captions))
        properties["textposition"] = places
        properties["textfont"] = {"size": 11}
    properties |= _name_and_pointer(mark, plot, mark.along if len(mark.low) else "")
    points = go.Scatter(
        x=numbers(mark.x),
        y=numbers(mark.y),
        mode="markers+text" if len(mark.captions) else "markers",
        marker=marker,
        cliponaxis=False,
        **properties,
    )
    return (points,)


@_traces.register
def _(mark: Box, plot: Plot) -> Sequence[Any]:
    look = mark.look
    box = go.Box(
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
        **_name_and_pointer(mark, plot),
    )
    return (box,)


@_traces.register
def _(mark: Bars, plot: Plot) -> Sequence[Any]:
    arms = _arms(mark.values, mark.low, mark.high)
    arms |= {"color": RULE_COLOR, "thickness": 1.5, "width": 4}
    bars = go.Bar(
        x=numbers(mark.values),
        y=numbers(mark.y),
        orientation="h",
        width=0.55,
        marker={"color": mark.look.color},
        # the texts are for the pointer
        textposition="none",
        error_x=arms,
        **_name_and_pointer(mark, plot),
    )
    return (bars,)


@_traces.register
def _(mark: Bubbles, plot: Plot) -> Sequence[Any]:
    marker = {
        "size": list(mark.counts),
        "color": mark.look.color,
        "opacity": 0.8,
        "line": {"width": 0},
        "sizemode": "area",
        "sizeref": 2 * max(mark.counts, default=1) / mark.widest**2,
        "sizemin": 1.5,
    }
    circles = go.Scatter(
        x=numbers(mark.x),
        y=numbers(mark.y),
        mode="markers",
        marker=marker,
        **_name_and_pointer(mark, plot),
    )
    return (circles,)


@_traces.register
def _(mark: HeatMap, plot: Plot) -> Sequence[Any]:
    values = np.asarray(mark.values, dtype=float)
    low, high = mark.ends
    colors = values
    if mark.root:
        colors = np.sqrt(values)
        low, high = low**0.5, high**0.5
    texts = []
    for row in mark.texts:
        texts.append([text(entry) for entry in row])
    # the pointer says the number itself, not its root
    said = "%{text}: " if mark.texts else ""
    said += _value("customdata" if mark.root else "z", mark.form)
    squares = go.Heatmap(
        z=[numbers(row) for row in colors],
        customdata=[numbers(row) for row in values] if mark.root else None,
        text=texts or None,
        texttemplate="%{text}" if mark.written else None,
        hovertemplate=f"{said}<extra></extra>",
        zmin=low,
        zmax=high,
        colorscale=BLUE_TO_ORANGE if mark.diverging else BLUES,
        colorbar=_color_bar(mark),
        xgap=1,
        ygap=1,
    )
    return (squares,)


def _color_bar(mark: HeatMap) -> dict[str, Any]:
    bar = {"title": {"text": text(mark.bar), "side": "right"}, "thickness": 12, "outlinewidth": 0}
    if not mark.root:
        return bar
    low, high = mark.ends
    values = np.linspace(low**0.5, high**0.5, 5)
    return bar | {"tickvals": list(values), "ticktext": [f"{value**2:.3g}" for value in values]}


def _name_and_pointer(mark: Mark, plot: Plot, interval_along: str = "") -> dict[str, Any]:
    """Name, group and texts of a trace, and what the pointer shows of it."""
    said = []
    if mark.label:
        said.append("%{fullData.name}")
    if len(mark.texts):
        said.append("%{text}")
    group = mark.look.key or mark.label
    properties: dict[str, Any] = {
        "name": text(mark.label) or None,
        "legendgroup": text(group) or None,
    }
    if not said:
        return properties | {"hoverinfo": "skip"}
    for letter, axis in (("x", plot.x), ("y", plot.y)):
        is_row = letter == "y" and plot.rows
        if axis.ticks is None and axis.visible and not is_row:
            words = axis.word + _value(letter, axis.form)
            if letter == interval_along:
                low = _value("customdata[0]", axis.form)
                high = _value("customdata[1]", axis.form)
                words += f" ({low} to {high})"
            said.append(words)
    if len(mark.texts):
        properties["text"] = list(map(text, mark.texts))
    properties["hovertemplate"] = "<br>".join(said) + "<extra></extra>"
    return properties


def _value(name: str, form: str) -> str:
    """A number of a trace for the pointer, in Plotly's spelling, whose formats are Python's."""
    return f"%{{{name}:{form}}}" if form else f"%{{{name}}}"


def _arms(middles: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """The arms of intervals around these middles, with their lengths."""
    return {
        "type": "data",
        "symmetric": False,
        "array": numbers(end - middle for middle, end in zip(middles, high)),
        "arrayminus": numbers(middle - end for middle, end in zip(middles, low)),
        "thickness": 2.25,
        "width": 6,
    }
