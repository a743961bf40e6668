"""The critical-difference diagram (Demsar, 2006): mean ranks on an axis, and bars over methods that do not differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from unalike.metrics.ranks import Ranks
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look
from unalike.reporting.charts.plotly_canvas import canvas, named_rows, numbers, text

INK = "#808080"
"""Color of axis, bars and ticks: a grey that is visible on light and dark backgrounds."""
STEP = 0.45
"""Distance between two bars, in rows of names."""
LONGEST = 26
"""Most letters of a name beside the diagram."""


@dataclass(frozen=True)
class PlacedMethod:
    """A method: its mean rank, the row of its name (from the top), and the side of the diagram."""

    name: str
    rank: float
    row: int
    left: bool


@dataclass(frozen=True)
class Bar:
    """A group of methods that do not differ: the ranks of its first and last method, and its level below the axis."""

    names: Sequence[str]
    low: float
    high: float
    level: int


@dataclass(frozen=True)
class Diagram:
    """The layout. x is the rank; y counts rows and is 0 on the axis, negative below."""

    methods: list[PlacedMethod]
    bars: list[Bar]
    critical: float

    @property
    def places(self) -> list[int]:
        """The ranks under the ticks."""
        return list(range(1, len(self.methods) + 1))

    @property
    def end(self) -> float:
        """The right edge: the critical difference can be longer than the axis."""
        return max(len(self.methods), 1 + self.critical)

    @property
    def levels(self) -> int:
        return 1 + max((bar.level for bar in self.bars), default=-1)

    @property
    def bottom(self) -> float:
        return self.y(max(h.row for h in self.methods))

    def y(self, row: int) -> float:
        return -STEP * (self.levels + 1) - 0.35 - row

    def line(self, method: PlacedMethod) -> tuple[list[float], list[float]]:
        """x and y of the line from the axis down to the method's row and out to its side."""
        side, y = (0.9 if method.left else self.end + 0.1), self.y(method.row)
        return [method.rank, method.rank, side], [0, y, y]


def diagram(found: Ranks) -> Diagram:
    """Lay out the diagram so that no two lines cross.

    The better half is on the left with the best on top, the other half on the right with the worst on top.
    """
    mean = found.mean.sort_values(kind="stable")
    names = [str(name) for name in mean.index]
    half = (len(names) + 1) // 2
    methods = [
        PlacedMethod(name, float(mean.iloc[i]), i if i < half else len(names) - 1 - i, i < half)
        for i, name in enumerate(names)
    ]
    bars: list[Bar] = []
    for group in found.groups:
        low, high = float(mean[group[0]]), float(mean[group[-1]])
        taken = {bar.level for bar in bars if bar.high >= low - 0.15}
        bars.append(Bar(group, low, high, next(level for level in range(len(names)) if level not in taken)))
    return Diagram(methods, bars, found.critical)


def description(found: Ranks) -> str:
    """The diagram as text."""
    mean = found.mean.sort_values(kind="stable")
    ranks = ", ".join(f"{name} {rank:.2f}" for name, rank in mean.items())
    groups = "; ".join(wording.listing(group) for group in found.groups)
    return (
        f"Critical-difference diagram. Mean ranks, best first: {ranks}. Critical difference {found.critical:.2f}. "
        + (f"No difference shown within: {groups}." if groups else "All methods differ.")
    )


def wide(found: Ranks, looks: dict[str, Look]) -> go.Figure:
    """The usual diagram: names on both sides, bars below the axis, the critical difference above it."""
    drawn = diagram(found)
    longest = max(len(_named(h)) for h in drawn.methods)
    top, margin = 1.5, 20 + 7 * longest
    figure = canvas(int(30 * (top - drawn.bottom) + 24), margin={"l": margin, "r": margin, "t": 8, "b": 8})
    _segment(figure, [1, len(drawn.methods)], [0, 0], 1.5)
    for place in drawn.places:
        _segment(figure, [place, place], [0, 0.14], 1.5)
        _write(figure, place, 0.2, str(place), yanchor="bottom")
    _critical(figure, drawn.critical, 1.0)
    for bar in drawn.bars:
        _segment(figure, [bar.low - 0.04, bar.high + 0.04], [-STEP * (bar.level + 1)] * 2, 5)
    for method in drawn.methods:
        x, y = drawn.line(method)
        figure.add_scatter(**_method_line(method, looks[method.name], x, y))
        _write(
            figure,
            x[-1],
            y[-1],
            _named(method),
            xanchor="right" if method.left else "left",
            xshift=-8 if method.left else 8,
        )
    figure.update_xaxes(range=[0.88, drawn.end + 0.12], **_BARE)  # a point on the edge would not be drawn
    figure.update_yaxes(range=[drawn.bottom - 0.5, top], **_BARE)
    return figure


def narrow(found: Ranks, looks: dict[str, Look]) -> go.Figure:
    """For narrow screens: a list from best to worst with the ranks, and vertical bars beside it."""
    drawn = diagram(found)
    ordered = sorted(drawn.methods, key=lambda method: method.rank)
    names, top = [method.name for method in ordered], len(ordered) - 1
    figure = named_rows(names, 46)
    figure.update_layout(height=figure.layout.height + 40)
    for i, method in enumerate(ordered):
        figure.add_scatter(**_method_line(method, looks[method.name], [1, method.rank], [top - i, top - i]))
    for bar in drawn.bars:
        x = drawn.end * (1.06 + 0.05 * bar.level)
        ends = [top - names.index(bar.names[0]) + 0.15, top - names.index(bar.names[-1]) - 0.15]
        _segment(figure, [x, x], ends, 5)
    _critical(figure, drawn.critical, -0.95)
    figure.update_xaxes(
        range=[0.85, drawn.end * (1.05 + 0.05 * drawn.levels)],
        title_text="← better · mean rank · worse →",
        tickvals=drawn.places[:: 1 + len(names) // 10],
        zeroline=False,
    )
    figure.update_yaxes(range=[-1.3, len(names) - 0.35])
    return figure


_BARE = {"visible": False, "fixedrange": True}


def _named(method: PlacedMethod) -> str:
    return f"{wording.short(method.name, LONGEST)}  {method.rank:.2f}"


def _method_line(method: PlacedMethod, look: Look, x: list[float], y: list[float]) -> dict[str, object]:
    return {
        "x": numbers(x),
        "y": numbers(y),
        "mode": "lines+markers",
        "line": {"color": look.color, "dash": look.dash, "width": 2},
        "marker": {
            "color": look.color,
            "symbol": look.marker,
            "size": [0] * (len(x) - 1) + [10],
            "opacity": 1,
            "line": {"width": 0},
        },
        "meta": text(method.name),
        "hovertemplate": f"%{{meta}}<br>mean rank {method.rank:.2f}<extra></extra>",
        "cliponaxis": False,
    }


def _critical(figure: go.Figure, critical: float, y: float) -> None:
    """A scale bar of the critical difference, starting at rank 1."""
    _segment(figure, [1, 1 + critical], [y, y], 2)
    for x in (1, 1 + critical):
        _segment(figure, [x, x], [y - 0.12, y + 0.12], 2)
    _write(figure, 1 + critical / 2, y, f"CD = {critical:.2f}", yanchor="bottom", yshift=1)


def _segment(figure: go.Figure, x: list[float], y: list[float], width: float) -> None:
    line = {"color": INK, "width": width}
    figure.add_scatter(x=numbers(x), y=numbers(y), mode="lines", line=line, hoverinfo="skip")


def _write(figure: go.Figure, x: float, y: float, raw: str, **place: object) -> None:
    figure.add_annotation(x=x, y=y, text=text(raw), showarrow=False, borderpad=0, **place)
