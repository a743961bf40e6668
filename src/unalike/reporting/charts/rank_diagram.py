"""The critical-difference diagram (Demsar, 2006): mean ranks on an axis, and bars over methods that are not told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from unalike.metrics.inference import Ranks
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look
from unalike.reporting.charts.plotly_canvas import canvas, named_rows, numbers, text

INK = "#808080"
"""Axis, bars and ticks: a grey that both backgrounds carry."""
STEP = 0.45
"""Distance of two bars, in rows of names."""
LONGEST = 26
"""Letters of a name at the side of the diagram."""


@dataclass(frozen=True)
class Hung:
    """A method: its mean rank and the row, from the top, in which its line leaves the axis to the left or right."""

    name: str
    rank: float
    row: int
    left: bool


@dataclass(frozen=True)
class Bar:
    """A group that is not told apart: the ranks of its first and last method, and its level under the axis."""

    names: Sequence[str]
    low: float
    high: float
    level: int


@dataclass(frozen=True)
class Diagram:
    """Where everything stands. x is the rank; y counts rows, 0 on the axis, negative below."""

    hung: list[Hung]
    bars: list[Bar]
    critical: float

    @property
    def places(self) -> list[int]:
        """The ranks under the ticks."""
        return list(range(1, len(self.hung) + 1))

    @property
    def end(self) -> float:
        """Where the picture ends on the right: the critical difference can be longer than the axis."""
        return max(len(self.hung), 1 + self.critical)

    @property
    def levels(self) -> int:
        return 1 + max((bar.level for bar in self.bars), default=-1)

    @property
    def bottom(self) -> float:
        return self.y(max(h.row for h in self.hung))

    def y(self, row: int) -> float:
        return -STEP * (self.levels + 1) - 0.35 - row

    def line(self, hung: Hung) -> tuple[list[float], list[float]]:
        """From the axis down to the method's row and out to its side, as x and y."""
        side, y = (0.9 if hung.left else self.end + 0.1), self.y(hung.row)
        return [hung.rank, hung.rank, side], [0, y, y]


def diagram(found: Ranks) -> Diagram:
    """The better half hangs on the left, best on top, the others on the right, worst on top: no two lines cross."""
    mean = found.mean.sort_values(kind="stable")
    names = [str(name) for name in mean.index]
    half = (len(names) + 1) // 2
    hung = [
        Hung(name, float(mean.iloc[i]), i if i < half else len(names) - 1 - i, i < half) for i, name in enumerate(names)
    ]
    bars: list[Bar] = []
    for group in found.groups:
        low, high = float(mean[group[0]]), float(mean[group[-1]])
        taken = {bar.level for bar in bars if bar.high >= low - 0.15}
        bars.append(Bar(group, low, high, next(level for level in range(len(names)) if level not in taken)))
    return Diagram(hung, bars, found.critical)


def told(found: Ranks) -> str:
    """What the diagram shows, in words."""
    mean = found.mean.sort_values(kind="stable")
    ranks = ", ".join(f"{name} {rank:.2f}" for name, rank in mean.items())
    groups = "; ".join(wording.listing(group) for group in found.groups)
    return (
        f"Critical-difference diagram. Mean ranks, best first: {ranks}. Critical difference {found.critical:.2f}. "
        + (f"Not told apart: {groups}." if groups else "All methods are told apart.")
    )


def wide(found: Ranks, looks: dict[str, Look]) -> go.Figure:
    """The classic picture: names at both sides, bars under the axis, the critical difference above it."""
    drawn = diagram(found)
    longest = max(len(_named(h)) for h in drawn.hung)
    top, margin = 1.5, 20 + 7 * longest
    figure = canvas(int(30 * (top - drawn.bottom) + 24), margin={"l": margin, "r": margin, "t": 8, "b": 8})
    _segment(figure, [1, len(drawn.hung)], [0, 0], 1.5)
    for place in drawn.places:
        _segment(figure, [place, place], [0, 0.14], 1.5)
        _write(figure, place, 0.2, str(place), yanchor="bottom")
    _critical(figure, drawn.critical, 1.0)
    for bar in drawn.bars:
        _segment(figure, [bar.low - 0.04, bar.high + 0.04], [-STEP * (bar.level + 1)] * 2, 5)
    for hung in drawn.hung:
        x, y = drawn.line(hung)
        figure.add_scatter(**_hung(hung, looks[hung.name], x, y))
        _write(
            figure, x[-1], y[-1], _named(hung), xanchor="right" if hung.left else "left", xshift=-8 if hung.left else 8
        )
    figure.update_xaxes(range=[0.88, drawn.end + 0.12], **_BARE)  # a point on the very edge would not be drawn
    figure.update_yaxes(range=[drawn.bottom - 0.5, top], **_BARE)
    return figure


def narrow(found: Ranks, looks: dict[str, Look]) -> go.Figure:
    """For a phone: a list from the best to the worst with its ranks, and the bars upright beside it."""
    drawn = diagram(found)
    ordered = sorted(drawn.hung, key=lambda hung: hung.rank)
    names, top = [hung.name for hung in ordered], len(ordered) - 1
    figure = named_rows(names, 46)
    figure.update_layout(height=figure.layout.height + 40)
    for i, hung in enumerate(ordered):
        figure.add_scatter(**_hung(hung, looks[hung.name], [1, hung.rank], [top - i, top - i]))
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


def _named(hung: Hung) -> str:
    return f"{wording.short(hung.name, LONGEST)}  {hung.rank:.2f}"


def _hung(hung: Hung, look: Look, x: list[float], y: list[float]) -> dict[str, object]:
    return {
        "x": numbers(x),
        "y": numbers(y),
        "mode": "lines+markers",
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {
            "color": look.colour,
            "symbol": look.marker,
            "size": [0] * (len(x) - 1) + [10],
            "opacity": 1,
            "line": {"width": 0},
        },
        "meta": text(hung.name),
        "hovertemplate": f"%{{meta}}<br>mean rank {hung.rank:.2f}<extra></extra>",
        "cliponaxis": False,
    }


def _critical(figure: go.Figure, critical: float, y: float) -> None:
    """A measure of the critical difference, from rank 1 on."""
    _segment(figure, [1, 1 + critical], [y, y], 2)
    for x in (1, 1 + critical):
        _segment(figure, [x, x], [y - 0.12, y + 0.12], 2)
    _write(figure, 1 + critical / 2, y, f"CD = {critical:.2f}", yanchor="bottom", yshift=1)


def _segment(figure: go.Figure, x: list[float], y: list[float], width: float) -> None:
    line = {"color": INK, "width": width}
    figure.add_scatter(x=numbers(x), y=numbers(y), mode="lines", line=line, hoverinfo="skip")


def _write(figure: go.Figure, x: float, y: float, raw: str, **place: object) -> None:
    figure.add_annotation(x=x, y=y, text=text(raw), showarrow=False, borderpad=0, **place)
