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
from unalike.reporting.charts.palette import Look, Looks, look_of_color
from unalike.statistics.ranks import Ranks

INK = "#808080"
"""Color of axis, bars and ticks: a grey that is visible on light and dark backgrounds."""
BAR_DISTANCE = 0.45
"""Distance between two bars, in rows of names."""
MAX_NAME_LETTERS = 26
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
        return self.y(max(method.row for method in self.methods))

    def y(self, row: int) -> float:
        return -BAR_DISTANCE * (self.levels + 1) - 0.35 - row

    def line(self, method: PlacedMethod) -> tuple[list[float], list[float]]:
        """x and y of the line from the axis down to the method's row and out to its side."""
        side = 0.9 if method.left else self.end + 0.1
        y = self.y(method.row)
        return [method.rank, method.rank, side], [0, y, y]


def diagram(ranks: Ranks) -> Diagram:
    """Lay out the diagram so that no two lines cross.

    The better half is on the left with the best on top, the other half on the right with the worst on top.
    """
    mean = ranks.mean.sort_values(kind="stable")
    names = [str(name) for name in mean.index]
    half = (len(names) + 1) // 2
    methods = []
    for i, name in enumerate(names):
        is_left = i < half
        row = i if is_left else len(names) - 1 - i
        methods.append(PlacedMethod(name, float(mean.iloc[i]), row, is_left))
    bars: list[Bar] = []
    for group in ranks.groups:
        low = float(mean[group[0]])
        high = float(mean[group[-1]])
        # bars that would touch lie on different levels
        occupied = {bar.level for bar in bars if bar.high >= low - 0.15}
        level = next(level for level in range(len(names)) if level not in occupied)
        bars.append(Bar(group, low, high, level))
    return Diagram(methods, bars, ranks.critical)


def description(ranks: Ranks) -> str:
    """The diagram in words, for readers who cannot see it."""
    mean = ranks.mean.sort_values(kind="stable")
    listed = ", ".join(f"{name} {rank:.2f}" for name, rank in mean.items())
    shown = "All methods differ."
    if ranks.groups:
        groups = "; ".join(wording.listing(group) for group in ranks.groups)
        shown = f"No difference shown within: {groups}."
    return f"Critical-difference diagram. Mean ranks, best first: {listed}. Critical difference {ranks.critical:.2f}. {shown}"


def wide(ranks: Ranks, looks: Looks) -> Figure:
    """The usual diagram: names on both sides, bars below the axis, the critical difference above it."""
    layout = diagram(ranks)
    marks: list[AnyMark] = []

    # the axis with its ticks
    marks.append(_segment([1, len(layout.methods)], [0, 0], 1.5))
    for place in layout.places:
        marks.append(_segment([place, place], [0, 0.14], 1.5))
        marks.append(Note(place, 0.2, str(place), "above"))

    marks += _critical(layout.critical, 1.0)
    for bar in layout.bars:
        y = -BAR_DISTANCE * (bar.level + 1)
        marks.append(_segment([bar.low - 0.04, bar.high + 0.04], [y, y], 5))
    for method in layout.methods:
        xs, ys = layout.line(method)
        marks += _method(method, looks[method.name], xs, ys)
        side = "left" if method.left else "right"
        marks.append(Note(xs[-1], ys[-1], _name_and_rank(method), side))

    top = 1.5
    longest = max(len(_name_and_rank(method)) for method in layout.methods)
    # a point on the edge would not be drawn
    x_axis = Axis(limits=(0.88, layout.end + 0.12), visible=False)
    y_axis = Axis(limits=(layout.bottom - 0.5, top), visible=False)
    height = int(30 * (top - layout.bottom) + 24)
    return Figure([Plot(marks, x_axis, y_axis)], height, legend=False, room=longest)


def narrow(ranks: Ranks, looks: Looks) -> Figure:
    """For narrow screens: a list from best to worst with the ranks, and vertical bars beside it."""
    layout = diagram(ranks)
    ordered = sorted(layout.methods, key=lambda method: method.rank)
    names = [method.name for method in ordered]
    marks: list[AnyMark] = []
    for i, method in enumerate(ordered):
        marks += _method(method, looks[method.name], [1, method.rank], [i, i])
    for bar in layout.bars:
        x = layout.end * (1.06 + 0.05 * bar.level)
        first = names.index(bar.names[0])
        last = names.index(bar.names[-1])
        marks.append(_segment([x, x], [first - 0.15, last + 0.15], 5))
    marks += _critical(layout.critical, len(names))
    ticks = {float(place): str(place) for place in layout.places}
    limits = (0.85, layout.end * (1.05 + 0.05 * layout.levels))
    x_axis = Axis("← better · mean rank · worse →", ticks, limits)
    return rows_plot([*names, ""], marks, x_axis, row_height=46)


def _name_and_rank(method: PlacedMethod) -> str:
    return f"{wording.short(method.name, MAX_NAME_LETTERS)}  {method.rank:.2f}"


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
    return Line(look=look_of_color(INK), x=x, y=y, markers=False, width=width)
