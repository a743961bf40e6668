"""The charts of a diagnosis: measures on their scales, heat maps of clients, the dendrogram, bars by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from unalike.diagnosis.clusters import Clusters
from unalike.diagnosis.measure import Measure
from unalike.reporting import wording
from unalike.reporting.charts.palette import COLORS
from unalike.reporting.charts.plotly_canvas import canvas, named_rows, numbers, text

BLUE, ORANGE, GREY = COLORS[0], COLORS[1], COLORS[6]
MOST_NAMED = 30
"""Most clients whose names stand beside a heat map."""


def scale(measures: Sequence[Measure], title: str) -> go.Figure:
    """One row per measure: its value with the interval, and the references as ticks with their names."""
    figure = named_rows([wording.capital(measure.title) for measure in measures], 84)
    for i, measure in enumerate(measures):
        y = len(measures) - 1 - i
        marks = sorted((value, name) for name, value in measure.scale.items())
        places = ["top center" if j % 2 else "bottom center" for j in range(len(marks))]
        figure.add_scatter(
            x=numbers(value for value, _ in marks),
            y=[y - 0.1] * len(marks),
            mode="markers+text",
            marker={"color": GREY, "symbol": "line-ns", "size": 13, "line": {"width": 2, "color": GREY}},
            text=[text(name) for _, name in marks],
            textposition=places,
            textfont={"size": 11},
            hovertemplate="%{text}: %{x:.3g}<extra></extra>",
            cliponaxis=False,
        )
        arms = {
            "type": "data",
            "symmetric": False,
            "color": BLUE,
            "thickness": 2.5,
            "width": 6,
            "visible": not math.isnan(measure.low),
            "array": numbers([measure.high - measure.value]),
            "arrayminus": numbers([measure.value - measure.low]),
        }
        figure.add_scatter(
            x=numbers([measure.value]),
            y=[y - 0.1],
            mode="markers",
            marker={"color": BLUE, "size": 12},
            error_x=arms,
            customdata=[numbers([measure.low, measure.high])],
            hovertemplate="these clients: %{x:.3g} (%{customdata[0]:.3g} to %{customdata[1]:.3g})<extra></extra>",
        )
    figure.update_xaxes(title_text=title, zeroline=False)
    return figure


def heat_map(
    values: np.ndarray, rows: Sequence[str], order: Sequence[int], title: str, least: float | None = None
) -> go.Figure:
    """A matrix of clients in the given order, so that clusters lie along the diagonal.

    `least`: the values have two signs, 0 has no color, and the colors reach at least so far to both sides.
    """
    place = list(order)
    shown, names = values[np.ix_(place, place)], [rows[k] for k in place]
    figure = canvas(int(min(760, max(300, 130 + 24 * len(place)))))
    colors: dict[str, object] = {"colorscale": [[0, "rgba(26,128,187,0)"], [1, "rgba(26,128,187,1)"]]}
    if least is not None:
        limit = max(least, float(np.nanmax(np.abs(shown))))
        colors = {
            "colorscale": [[0, BLUE], [0.5, "rgba(140,140,140,0.08)"], [1, ORANGE]],
            "zmin": -limit,
            "zmax": limit,
        }
    figure.add_heatmap(
        z=[numbers(row) for row in shown],
        text=[[text(f"{a}, {b}") for b in names] for a in names],
        hovertemplate="%{text}: %{z:.3g}<extra></extra>",
        colorbar={"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        xgap=1,
        ygap=1,
        **colors,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False, **_ticks(names))
    figure.update_xaxes(tickangle=-60, showgrid=False, zeroline=False, **_ticks(names))
    return figure


def dendrogram(found: Clusters) -> go.Figure:
    """The joins of the clients from left to right, with a color for each cluster."""
    from scipy.cluster.hierarchy import dendrogram as layout

    drawn = layout(found.linkage, no_plot=True)
    order, cut = drawn["leaves"], _cut_height(found)
    color = {k: COLORS[int(found.members[k]) % len(COLORS)] for k in order}
    figure = canvas(int(min(1400, 110 + 22 * len(order))))
    for ys, xs in zip(drawn["icoord"], drawn["dcoord"]):
        own = GREY if max(xs) > cut else color[order[int((ys[1] - 5) // 10)]]
        figure.add_scatter(
            x=numbers(xs), y=numbers(ys), mode="lines", line={"color": own, "width": 2}, hoverinfo="skip"
        )
    figure.add_scatter(
        x=[0.0] * len(order),
        y=[5 + 10 * i for i in range(len(order))],
        mode="markers",
        marker={"color": [color[k] for k in order], "size": 9},
        text=[text(f"{found.names[k]}: cluster {found.members[k] + 1}") for k in order],
        hovertemplate="%{text}<extra></extra>",
        cliponaxis=False,
    )
    figure.add_vline(x=cut, line={"width": 1.5, "dash": "dot", "color": "#888888"})
    names = [text(wording.short(found.names[k], 18)) for k in order]
    figure.update_yaxes(
        tickvals=[5 + 10 * i for i in range(len(order))], ticktext=names, showgrid=False, zeroline=False
    )
    figure.update_xaxes(title_text=f"distance by {found.basis} at which clients are joined", zeroline=False)
    return figure


def bars(layers: Sequence[Measure]) -> go.Figure:
    """The drift of each layer with its interval, and the references as ticks."""
    figure = canvas(int(min(1400, 120 + 46 * len(layers))), bargap=0.45)
    rows = list(range(len(layers)))[::-1]
    figure.add_bar(
        x=numbers(m.value for m in layers),
        y=rows,
        orientation="h",
        marker={"color": BLUE},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": numbers(m.high - m.value for m in layers),
            "arrayminus": numbers(m.value - m.low for m in layers),
            "color": GREY,
            "thickness": 1.5,
            "width": 4,
        },
        hovertemplate="%{x:.3g}<extra></extra>",
    )
    for i, reference in enumerate(layers[0].scale):
        figure.add_scatter(
            x=numbers(m.scale[reference] for m in layers),
            y=rows,
            mode="markers",
            name=text(reference),
            marker={"symbol": ("circle-open", "diamond-open", "square-open", "triangle-up-open")[i % 4], "size": 11}
            | {"color": COLORS[1 + i % 6], "line": {"width": 2}},
            hovertemplate=text(reference) + ": %{x:.3g}<extra></extra>",
            showlegend=True,
        )
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    figure.update_traces(showlegend=False, selector={"type": "bar"})
    names = [text(wording.short(m.name.removesuffix(".weight"), 18)) for m in layers]
    figure.update_yaxes(tickvals=rows, ticktext=names, showgrid=False, zeroline=False)
    figure.update_xaxes(title_text="share of the movement that cancels", range=[0, 1.02], zeroline=False)
    return figure


def _cut_height(found: Clusters) -> float:
    """The middle between the highest join within clusters and the lowest one between them."""
    heights = found.linkage[:, 2]
    at = len(heights) - found.count + 1
    below = heights[at - 1] if at else 0.0
    return float((below + heights[at]) / 2) if at < len(heights) else float(heights[-1] * 1.05)


def _ticks(names: Sequence[str]) -> dict[str, object]:
    if len(names) > MOST_NAMED:
        return {"showticklabels": False}
    return {"tickvals": list(range(len(names))), "ticktext": [text(wording.short(name, 14)) for name in names]}
