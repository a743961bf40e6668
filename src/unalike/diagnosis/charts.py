"""The charts of a diagnosis: measures on their scales, heat maps of clients, the dendrogram, bars by layer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unalike.diagnosis.clusters import Clusters
from unalike.diagnosis.measure import Measure
from unalike.reporting import wording
from unalike.reporting.charts.figure import (
    AnyMark,
    Axis,
    Bars,
    Figure,
    HeatMap,
    Line,
    Points,
    Rule,
    named,
    plot,
    rows_plot,
)
from unalike.reporting.charts.palette import BLUE, COLORS, GREY, plain

REFERENCE_MARKERS = ("circle-open", "diamond-open", "square-open", "triangle-up-open")


def scale(measures: Sequence[Measure], title: str) -> Figure:
    """One row per measure: its value with the interval, and the references as ticks with their names."""
    marks: list[AnyMark] = []
    for i, measure in enumerate(measures):
        references = sorted((value, name) for name, value in measure.scale.items())
        names = [name for _, name in references]
        ticks = Points(
            look=plain(GREY, "line-ns"),
            x=[value for value, _ in references],
            y=[i] * len(references),
            captions=names,
            texts=names,
            size=13,
        )
        value = Points(
            look=plain(BLUE),
            x=[measure.value],
            y=[i],
            low=[measure.low],
            high=[measure.high],
            texts=["these clients"],
            size=12,
        )
        marks += [ticks, value]
    titles = [wording.capital(measure.title) for measure in measures]
    return rows_plot(titles, marks, Axis(title, form=".3g"), 84)


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    order: Sequence[int],
    title: str,
    least: float | None = None,
    axes: tuple[str, str] = ("", ""),
) -> Figure:
    """A matrix of clients in the given order, so that clusters lie along the diagonal.

    `least`: the values have two signs, 0 has no color, and the colors reach at least so far to both sides. `axes`: the titles of
    the x and the y axis.
    """
    place = list(order)
    shown = values[np.ix_(place, place)]
    names = [rows[k] for k in place]
    texts = []
    for row in names:
        texts.append([f"{row}, {column}" for column in names])
    squares = HeatMap(shown, title, texts=texts)
    if least is not None:
        most = max(least, float(np.nanmax(np.abs(shown))))
        squares = replace(squares, limits=(-least, most), diverging=True)
    x = Axis(axes[0], named(names))
    y = Axis(axes[1], named(names), reverse=True)
    height = min(760, max(300, 130 + 24 * len(place)))
    return plot([squares], x, y, int(height))


def dendrogram(clusters: Clusters) -> Figure:
    """The joins of the clients from left to right, with a color for each cluster."""
    from scipy.cluster.hierarchy import dendrogram as layout

    joins = layout(clusters.linkage, no_plot=True)
    order = joins["leaves"]
    cut = _cut_height(clusters)
    color = {k: COLORS[int(clusters.members[k]) % len(COLORS)] for k in order}
    marks: list[AnyMark] = [Rule(cut)]
    for ys, xs in zip(joins["icoord"], joins["dcoord"]):
        places = [(y - 5) / 10 for y in ys]  # SciPy's leaves are at 5, 15, ...
        # A branch below the cut has the color of its cluster.
        branch = GREY if max(xs) > cut else color[order[int(places[1])]]
        marks.append(Line(look=plain(branch), x=xs, y=places, markers=False, width=2))
    for i, k in enumerate(order):
        leaf = f"{clusters.names[k]}: cluster {clusters.members[k] + 1}"
        marks.append(Points(look=plain(color[k]), x=[0.0], y=[i], texts=[leaf]))
    x = Axis(f"distance by {clusters.basis} at which clients are joined")
    y = Axis(ticks=named(clusters.names[k] for k in order))
    return plot(marks, x, y, min(1400, 110 + 22 * len(order)))


def bars(layers: Sequence[Measure]) -> Figure:
    """The drift of each layer with its interval, and the references as ticks."""
    places = list(range(len(layers)))
    names = [layer.name.removesuffix(".weight") for layer in layers]
    bars_of_layers = Bars(
        look=plain(BLUE),
        y=places,
        values=[layer.value for layer in layers],
        low=[layer.low for layer in layers],
        high=[layer.high for layer in layers],
        texts=names,
    )
    marks: list[AnyMark] = [bars_of_layers]
    for i, reference in enumerate(layers[0].scale):
        marker = REFERENCE_MARKERS[i % len(REFERENCE_MARKERS)]
        look = plain(COLORS[1 + i % 6], marker)
        values = [layer.scale[reference] for layer in layers]
        marks.append(Points(look=look, label=reference, x=values, y=places, size=11))
    x = Axis("share of the movement that cancels", limits=(0, 1.02), form=".3g")
    y = Axis(ticks=named(names), reverse=True)
    return plot(marks, x, y, min(1400, 120 + 46 * len(layers)))


def _cut_height(clusters: Clusters) -> float:
    """The middle between the highest join within clusters and the lowest one between them."""
    heights = clusters.linkage[:, 2]
    first_above = len(heights) - clusters.count + 1
    if first_above >= len(heights):  # one cluster: above all joins
        return float(heights[-1] * 1.05)
    below = heights[first_above - 1] if first_above else 0.0
    return float((below + heights[first_above]) / 2)
