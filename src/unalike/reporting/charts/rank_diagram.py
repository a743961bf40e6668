"""The critical-difference diagram (Demsar, 2006): mean ranks on an axis, and bars over methods that do not differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from unalike.reporting import wording
from unalike.reporting.charts.figure import (
    AnyMark,
    Axis,
    Figure,
    Line,
    Note,
    Plot,
    Points,
    rows_plot,
)
from unalike.reporting.charts.palette import Look, Looks, plain
from unalike.statistics.ranks import Ranks

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
        bars.append(
            Bar(group, low, high, next(level for level in range(len(names)) if level not in taken))
        )
    return Diagram(methods, bars, found.critical)


def description(found: Ranks) -> str:
    mean = found.mean.sort_values(kind="stable")
    ranks = ", ".join(f"{name} {rank:.2f}" for name, rank in mean.items())
    groups = "; ".join(wording.listing(group) for group in found.groups)
    return (
        f"Critical-difference diagram. Mean ranks, best first: {ranks}. Critical difference {found.critical:.2f}. "
        + (f"No difference shown within: {groups}." if groups else "All methods differ.")
    )


def wide(found: Ranks, looks: Looks) -> Figure:
    """The usual diagram: names on both sides, bars below the axis, the critical difference above it."""
    drawn, marks = diagram(found), list[AnyMark]()
    marks.append(_segment([1, len(drawn.methods)], [0, 0], 1.5))
    for place in drawn.places:
        marks += [_segment([place, place], [0, 0.14], 1.5), Note(place, 0.2, str(place), "above")]
    marks += _critical(drawn.critical, 1.0)
    marks += [
        _segment([bar.low - 0.04, bar.high + 0.04], [-STEP * (bar.level + 1)] * 2, 5)
        for bar in drawn.bars
    ]
    for method in drawn.methods:
        x, y = drawn.line(method)
        marks += _method(method, looks[method.name], x, y)
        marks.append(Note(x[-1], y[-1], _named(method), "left" if method.left else "right"))
    top, longest = 1.5, max(len(_named(method)) for method in drawn.methods)
    ends = (drawn.bottom - 0.5, top)
    x_axis = Axis(
        limits=(0.88, drawn.end + 0.12), visible=False
    )  # a point on the edge would not be drawn
    plot = Plot(marks, x_axis, Axis(limits=ends, visible=False))
    return Figure([plot], int(30 * (top - drawn.bottom) + 24), legend=False, room=longest)


def narrow(found: Ranks, looks: Looks) -> Figure:
    """For narrow screens: a list from best to worst with the ranks, and vertical bars beside it."""
    drawn = diagram(found)
    ordered = sorted(drawn.methods, key=lambda method: method.rank)
    names, marks = [method.name for method in ordered], list[AnyMark]()
    for i, method in enumerate(ordered):
        marks += _method(method, looks[method.name], [1, method.rank], [i, i])
    for bar in drawn.bars:
        x = drawn.end * (1.06 + 0.05 * bar.level)
        marks.append(
            _segment(
                [x, x], [names.index(bar.names[0]) - 0.15, names.index(bar.names[-1]) + 0.15], 5
            )
        )
    ticks = {float(place): str(place) for place in drawn.places}
    limits = (0.85, drawn.end * (1.05 + 0.05 * drawn.levels))
    marks += _critical(drawn.critical, len(names))
    return rows_plot([*names, ""], marks, Axis("← better · mean rank · worse →", ticks, limits), 46)


def _named(method: PlacedMethod) -> str:
    return f"{wording.short(method.name, LONGEST)}  {method.rank:.2f}"


def _method(method: PlacedMethod, look: Look, x: list[float], y: list[float]) -> list[AnyMark]:
    """The line of a method, with its marker at the end."""
    line = Line(look=look, x=x, y=y, markers=False, width=2)
    end = Points(
        look=look,
        label=method.name,
        x=x[-1:],
        y=y[-1:],
        size=10,
        texts=[f"mean rank {method.rank:.2f}"],
    )
    return [line, end]


def _critical(critical: float, y: float) -> list[AnyMark]:
    """A scale bar of the critical difference, starting at rank 1."""
    ends = [_segment([x, x], [y - 0.12, y + 0.12], 2) for x in (1, 1 + critical)]
    return [
        _segment([1, 1 + critical], [y, y], 2),
        *ends,
        Note(1 + critical / 2, y, f"CD = {critical:.2f}", "above"),
    ]


def _segment(x: list[float], y: list[float], width: float) -> Line:
    return Line(look=plain(INK), x=x, y=y, markers=False, width=width)
