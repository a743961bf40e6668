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
from unalike.reporting.charts.palette import BLUE, COLORS, GREY, look_of_color


def scale(measures: Sequence[Measure], title: str) -> Figure:
    """One row per measure: its value with the interval, and the references as ticks with their names."""
    marks: list[AnyMark] = []
    for i, measure in enumerate(measures):
        references = sorted((value, name) for name, value in measure.scale.items())
        names = [name for _, name in references]
        ticks = [value for value, _ in references]
        marks += [
            Points(
                look=look_of_color(GREY, "line-ns"),
                x=ticks,
                y=[i] * len(ticks),
                captions=names,
                texts=names,
                size=13,
            ),
            Points(
                look=look_of_color(BLUE),
                x=[measure.value],
                y=[i],
                low=[measure.low],
                high=[measure.high],
                texts=["these clients"],
                size=12,
            ),
        ]
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
    shown, names = values[np.ix_(place, place)], [rows[k] for k in place]
    squares = HeatMap(shown, title, texts=[[f"{a}, {b}" for b in names] for a in names])
    if least is not None:
        squares = replace(
            squares, limits=(-least, max(least, float(np.nanmax(np.abs(shown))))), diverging=True
        )
    x, y = Axis(axes[0], named(names)), Axis(axes[1], named(names), reverse=True)
    return plot([squares], x, y, int(min(760, max(300, 130 + 24 * len(place)))))


def dendrogram(found: Clusters) -> Figure:
    """The joins of the clients from left to right, with a color for each cluster."""
    from scipy.cluster.hierarchy import dendrogram as layout

    drawn = layout(found.linkage, no_plot=True)
    order, cut = drawn["leaves"], _cut_height(found)
    color = {k: COLORS[int(found.members[k]) % len(COLORS)] for k in order}
    marks: list[AnyMark] = [Rule(cut)]
    for ys, xs in zip(drawn["icoord"], drawn["dcoord"]):
        places = [(y - 5) / 10 for y in ys]  # SciPy's leaves are at 5, 15, ...
        branch = GREY if max(xs) > cut else color[order[int(places[1])]]
        marks.append(Line(look=look_of_color(branch), x=xs, y=places, markers=False, width=2))
    for i, k in enumerate(order):
        leaf = f"{found.names[k]}: cluster {found.members[k] + 1}"
        marks.append(Points(look=look_of_color(color[k]), x=[0.0], y=[i], texts=[leaf]))
    x = Axis(f"distance by {found.basis} at which clients are joined")
    return plot(
        marks,
        x,
        Axis(ticks=named(found.names[k] for k in order)),
        int(min(1400, 110 + 22 * len(order))),
    )


def bars(layers: Sequence[Measure]) -> Figure:
    """The drift of each layer with its interval, and the references as ticks."""
    places, names = (
        list(range(len(layers))),
        [layer.name.removesuffix(".weight") for layer in layers],
    )
    values, low, high = ([getattr(m, end) for m in layers] for end in ("value", "low", "high"))
    marks: list[AnyMark] = [
        Bars(look=look_of_color(BLUE), y=places, values=values, low=low, high=high, texts=names)
    ]
    for i, reference in enumerate(layers[0].scale):
        marker = ("circle-open", "diamond-open", "square-open", "triangle-up-open")[i % 4]
        look = look_of_color(COLORS[1 + i % 6], marker)
        x = [m.scale[reference] for m in layers]
        marks.append(Points(look=look, label=reference, x=x, y=places, size=11))
    x_axis = Axis("share of the movement that cancels", limits=(0, 1.02), form=".3g")
    return plot(
        marks,
        x_axis,
        Axis(ticks=named(names), reverse=True),
        int(min(1400, 120 + 46 * len(layers))),
    )


def _cut_height(found: Clusters) -> float:
    """The middle between the highest join within clusters and the lowest one between them."""
    heights = found.linkage[:, 2]
    at = len(heights) - found.count + 1
    below = heights[at - 1] if at else 0.0
    return float((below + heights[at]) / 2) if at < len(heights) else float(heights[-1] * 1.05)
