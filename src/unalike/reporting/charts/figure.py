"""Figures as data: marks on axes. `plotly_figures.py` draws them for pages, `matplotlib_figures.py` for papers.

A mark has a look and, if readers shall tell it from others, a label; marks with the same label are one entry of the legend.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unalike.reporting.charts.palette import BLUE_CIRCLE, Look

Numbers = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that is drawn on axes.

    `look` is color, dash and marker, `label` the name in the legend and under the pointer, `texts` what each point is; a mark
    without label and texts does not answer to the pointer.
    """

    look: Look = BLUE_CIRCLE
    label: str = ""
    texts: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Line(Mark):
    """Points that are joined, with a band from `low` to `high` around them if these are not empty.

    `step`: from one point to the next the line goes along "x" first, or along "y" first; straight unless given.
    """

    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    markers: bool = True
    width: float = 2.25
    step: str = ""


@dataclass(frozen=True, kw_only=True)
class Points(Mark):
    """Points that are not joined. Intervals from `low` to `high` lie along the axis `along` if these are not empty.

    `hollow` says of each point whether only its outline is drawn; `captions` are written above and below the points in turn.
    """

    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    along: str = "x"
    hollow: Sequence[bool] = ()
    captions: Sequence[str] = ()
    size: float = 9


@dataclass(frozen=True, kw_only=True)
class Box(Mark):
    """The distribution of values in a row: a box over its middle half, a line at the median, and a dot for each value.

    Without `dots` only outliers have one.
    """

    row: float
    values: Numbers
    dots: bool = True


@dataclass(frozen=True, kw_only=True)
class Bars(Mark):
    """A horizontal bar from 0 to each value, with its interval."""

    y: Numbers
    values: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, kw_only=True)
class Bubbles(Mark):
    """Counts as circles: the area is the count, `widest` is the diameter of the largest circle in pixels."""

    x: Numbers
    y: Numbers
    counts: Sequence[int]
    widest: float


@dataclass(frozen=True)
class HeatMap:
    """Numbers [rows, columns] as colors; NaN has none.

    `bar` is the label of the color bar, `limits` are the numbers at its ends, those that the values need unless given. `texts`
    [rows, columns] are what each number is, and `form` is its format, under the pointer; with `written`, texts stand on the colors
    instead. `diverging`: colors go from blue over
    none to orange instead of from none to blue. `root`: they go by the square root, so that small counts can be told from 0.
    """

    values: np.ndarray
    bar: str
    limits: tuple[float, float] | None = None
    texts: Sequence[Sequence[str]] = ()
    form: str = ".3g"
    diverging: bool = False
    root: bool = False
    written: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """The numbers at the ends of the color bar: as far to both sides of 0 if colors diverge, from 0 by square roots."""
        if self.limits:
            low, high = self.limits
        else:
            low = float(np.nanmin(self.values))
            high = float(np.nanmax(self.values))
        if self.diverging:
            farthest = max(-low, high)
            return -farthest, farthest
        return (0.0 if self.root else low), high


@dataclass(frozen=True)
class Rule:
    """A dotted vertical line over the whole height."""

    x: float


@dataclass(frozen=True)
class Note:
    """Text beside a point: at its "left", its "right", or "above" it."""

    x: float
    y: float
    text: str
    side: str


AnyMark = Mark | HeatMap | Rule | Note


@dataclass(frozen=True)
class Axis:
    """An axis.

    `title` is what it shows, with the unit; `ticks`: place -> its name, numbers unless given; `limits` are its ends. `log` is a
    logarithmic axis, `from_zero` begins at 0, and with `reverse` numbers increase to the left, or downwards. Line, ticks and
    title are drawn if `visible`. `word` is what the pointer says before a number (`round `), `form` the format of the number.
    """

    title: str = ""
    ticks: Mapping[float, str] | None = None
    limits: tuple[float, float] | None = None
    log: bool = False
    from_zero: bool = False
    reverse: bool = False
    visible: bool = True
    word: str = ""
    form: str = ".4g"


@dataclass(frozen=True)
class Plot:
    """Marks on one pair of axes. With `rows`, y = 0, 1, ... are rows with these names, from top to bottom."""

    marks: Sequence[AnyMark]
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    rows: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """Plots side by side.

    At most `in_a_row` plots are beside each other. `height` is that of a plot on a page in pixels; on paper, `PIXELS_PER_INCH` of
    them are an inch. `legend` lists labels if there are several; not if rows name the marks. `room` is for the letters of the
    longest note beside the axes.
    """

    plots: Sequence[Plot]
    height: int = 430
    legend: bool = True
    room: int = 0
    in_a_row: int = 3

    @property
    def columns(self) -> int:
        """The number of plots beside each other."""
        return min(self.in_a_row, len(self.plots))

    @property
    def lines(self) -> int:
        """The number of lines of plots."""
        return -(-len(self.plots) // self.columns)

    @property
    def listed(self) -> dict[str, Mark]:
        """Label -> its first mark, if the labels are listed: with one plot, a single label needs no list."""
        return self.labelled if self.legend and len(self.labelled) + len(self.plots) > 2 else {}

    def says_y(self, place: int) -> bool:
        """Whether the plot at this place has the title of its y axis: all have, or the first of a line if all are the same."""
        titles = {plot.y.title for plot in self.plots}
        return place % self.columns == 0 or len(titles) > 1

    @property
    def labelled(self) -> dict[str, Mark]:
        """Label -> its first mark, for the legend."""
        first: dict[str, Mark] = {}
        for plot in self.plots:
            for mark in plot.marks:
                if isinstance(mark, Mark) and mark.label:
                    first.setdefault(mark.label, mark)
        return first


PIXELS_PER_INCH = 126
"""Pixels of a page that are an inch on paper."""


def plot(
    marks: Iterable[AnyMark],
    x: Axis,
    y: Axis,
    height: int = 430,
    legend: bool = True,
    title: str = "",
) -> Figure:
    """A figure with one plot."""
    return Figure((Plot(tuple(marks), x, y, title),), height, legend)


def rows_plot(names: Sequence[str], marks: Iterable[AnyMark], x: Axis, row_height: int) -> Figure:
    """A figure with one row per name, top to bottom at y = 0, 1, ...; `row_height` is in pixels."""
    rows = Plot(tuple(marks), x, rows=tuple(names))
    return Figure((rows,), height=56 + row_height * len(names), legend=False)


def named(names: Iterable[object]) -> dict[float, str]:
    """Ticks with these names at 0, 1, ..."""
    return {float(i): str(name) for i, name in enumerate(names)}


def with_shared_colors(figure: Figure) -> Figure:
    """The figure with the same ends of the color bar in all heat maps."""
    ends = [mark.ends for plot in figure.plots for mark in plot.marks if isinstance(mark, HeatMap)]
    if len(ends) < 2:
        return figure
    limits = min(low for low, _ in ends), max(high for _, high in ends)

    def with_limits(mark: AnyMark) -> AnyMark:
        return replace(mark, limits=limits) if isinstance(mark, HeatMap) else mark

    return with_marks(figure, with_limits)


def with_marks(figure: Figure, change: Callable[[AnyMark], AnyMark]) -> Figure:
    """The figure with what becomes of each mark."""
    plots = []
    for plot in figure.plots:
        marks = [change(mark) for mark in plot.marks]
        plots.append(replace(plot, marks=marks))
    return replace(figure, plots=plots)
