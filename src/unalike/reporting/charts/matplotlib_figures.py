"""Draws figures with Matplotlib, for papers and slides, with the colors, markers and dashes of the page."""

from collections.abc import Mapping, Sequence
from functools import singledispatch
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import figure as matplotlib_figure
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator

from unalike.reporting import wording
from unalike.reporting.charts.figure import (
    PIXELS_PER_INCH,
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
from unalike.reporting.charts.palette import BLUE, ORANGE, Look

INK = "#1f2733"
"""Color of text."""
MUTED = "#5c6675"
"""Color of labels."""
GRID = "#d9d7d0"
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
    "triangle-down": "v",
    "line-ns": "|",
    "circle-open": "o",
    "diamond-open": "D",
    "square-open": "s",
    "triangle-up-open": "^",
}
"""Plotly's name of a marker -> Matplotlib's."""
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": "-.",
    "longdash": (0, (9, 2)),
}
DRAW_STYLES = {"": "default", "x": "steps-post", "y": "steps-pre"}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    # a method's name may contain $
    "text.parse_math": False,
    # the same figure gives the same bytes
    "svg.hashsalt": "unalike",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}
PLOT_INCHES = 5.2
"""Width of a plot alone."""
PLOT_BESIDE_INCHES = 3.1
"""Width of one of several plots beside each other."""
LEGEND_LINE_INCHES = 0.2
"""Height of a line of the legend."""
LEGEND_HANDLE_INCHES = 0.55
"""Width of a line's sample in the legend."""
LETTER_INCHES = 0.066
"""Width of a letter."""
TITLE_LETTERS = 30
"""Letters of a line of a title or of a y axis's label, where several plots are beside each other."""
MAX_TICK_LETTERS = 24
"""Most letters of a name at an axis."""
TICK_LINE_INCHES = 0.11
"""Height of a line of names at an axis."""
POINTS_PER_PIXEL = 72 / PIXELS_PER_INCH
"""Points on paper of a pixel on a page."""
BLUES = LinearSegmentedColormap.from_list("blues", ["#FFFFFF", BLUE])
BLUE_TO_ORANGE = LinearSegmentedColormap.from_list("blue to orange", [BLUE, "#FFFFFF", ORANGE])


def write(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as `path`.svg and `path`.pdf, without a date: the same results give the same files. Returns the files."""
    svg = path.with_name(f"{path.name}.svg")
    pdf = path.with_name(f"{path.name}.pdf")
    with rc_context(STYLE):
        drawn = draw(figure)
        drawn.savefig(svg, metadata={"Date": None})
        drawn.savefig(pdf, metadata={"CreationDate": None, "ModDate": None})
    return [svg, pdf]


def png(figure: Figure) -> bytes:
    """The figure as an image, for screens."""
    image = BytesIO()
    with rc_context(STYLE):
        draw(figure).savefig(image, format="png", dpi=130)
    return image.getvalue()


def draw(figure: Figure) -> matplotlib_figure.Figure:
    """The figure as a Matplotlib figure; pyplot and its global state are not used."""
    figure = with_shared_colors(figure)
    labels = list(figure.listed)

    # the size: of the plots, of notes beside them, of the legend below
    width = PLOT_INCHES if len(figure.plots) == 1 else PLOT_BESIDE_INCHES * figure.columns
    if figure.room:
        width = 3.4 + 2.5 * LETTER_INCHES * figure.room
    beside = _labels_in_a_line(labels, width)
    legend_lines = -(-len(labels) // beside)
    height = figure.lines * figure.height / PIXELS_PER_INCH + LEGEND_LINE_INCHES * legend_lines

    with rc_context(STYLE):
        drawn = matplotlib_figure.Figure(figsize=(width, height), layout="constrained")
        grid = np.ravel(drawn.subplots(figure.lines, figure.columns, squeeze=False))
        for place, (axes, plot) in enumerate(zip(grid, figure.plots)):
            _draw_plot(axes, plot, width / figure.columns, figure.height / PIXELS_PER_INCH)
            axes.set_title(fill(plot.title, TITLE_LETTERS), fontsize=9, color=INK)
            if len(figure.plots) > 1:
                y_title = fill(plot.y.title, TITLE_LETTERS - 4) if figure.says_y(place) else ""
                axes.set_xlabel(fill(plot.x.title, TITLE_LETTERS + 6))
                axes.set_ylabel(y_title)
        # places of the last line without a plot
        for axes in grid[len(figure.plots) :]:
            axes.set_axis_off()
        _color_bar(drawn, figure)
        if labels:
            handles = [_handle(mark) for mark in figure.listed.values()]
            names = [wording.short(label) for label in labels]
            drawn.legend(
                handles, names, loc="outside lower center", ncols=beside, frameon=False, fontsize=8
            )
    return drawn


def _draw_plot(axes: Any, plot: Plot, width: float, height: float) -> None:
    """Draw marks and axes of a plot of this size in inches."""
    _style(axes)
    for mark in plot.marks:
        _draw(mark, axes, plot)
    _draw_axis(axes, axes.xaxis, plot.x, room=width)
    if not plot.rows:
        _draw_axis(axes, axes.yaxis, plot.y, room=height)
    else:
        names = [wording.short(name) for name in plot.rows]
        axes.set_yticks(range(len(names)), names, color=INK)
        axes.set_ylim(len(plot.rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    if not (plot.x.visible or plot.y.visible):
        axes.set_axis_off()


def _draw_axis(axes: Any, drawn: Any, axis: Axis, room: float) -> None:
    """Set scale, ends, names and title of one of the two axes, which has `room` inches."""
    is_x = drawn is axes.xaxis
    set_scale = axes.set_xscale if is_x else axes.set_yscale
    set_limits = axes.set_xlim if is_x else axes.set_ylim
    set_label = axes.set_xlabel if is_x else axes.set_ylabel
    if axis.log:
        set_scale("log")
        drawn.set_major_formatter("{x:g}")
        # the default writes TeX, which SVG shows as it is
        drawn.set_minor_formatter(LogFormatter())
    elif axis.ticks is None:
        bins = 8 if room > PLOT_BESIDE_INCHES else 5
        whole_numbers = axis.form == ""
        drawn.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10], integer=whole_numbers))
    if axis.limits:
        low, high = axis.limits
        set_limits(*((high, low) if axis.reverse else (low, high)))
    elif axis.reverse:
        drawn.set_inverted(True)
    if axis.from_zero and not axis.limits:
        # a marker at 0 is not cut
        least = -0.02 * drawn.get_view_interval()[1]
        set_limits(least, None)
    if axis.ticks is not None:
        _draw_names(drawn, axis.ticks, is_x, room)
    set_label(axis.title)


def _draw_names(drawn: Any, ticks: Mapping[float, str], is_x: bool, room: float) -> None:
    """Write names at an axis, as many as there is room for; long names below an axis are turned."""
    names = [wording.short(name, MAX_TICK_LETTERS) for name in ticks.values()]
    longest = max(map(len, names), default=1)
    letters_width = LETTER_INCHES * (longest + 1)
    are_turned = is_x and longest > 2 and len(names) * letters_width > room
    inches_each = TICK_LINE_INCHES if are_turned or not is_x else letters_width
    every = max(1, int(np.ceil(len(names) * inches_each / (0.8 * room))))
    drawn.set_ticks(
        list(ticks)[::every], names[::every], rotation=60 if are_turned else 0, fontsize=7
    )


def _color_bar(drawn: Any, figure: Figure) -> None:
    """One color bar for all heat maps."""
    images = [image for axes in drawn.axes for image in axes.images]
    maps = [mark for plot in figure.plots for mark in plot.marks if isinstance(mark, HeatMap)]
    if images:
        drawn.colorbar(images[-1], ax=drawn.axes, label=maps[-1].bar)


def _labels_in_a_line(labels: Sequence[str], width: float) -> int:
    """The number of columns of the legend for which its labels fit in the width."""
    longest = max((len(wording.short(label)) for label in labels), default=1)
    fitting = int(width / (LEGEND_HANDLE_INCHES + LETTER_INCHES * longest))
    return max(1, min(4, len(labels), fitting))


def _style(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _line_style(look: Look) -> dict[str, Any]:
    return {"color": look.color, "linestyle": DASHES[look.dash], "marker": MARKERS[look.marker]}


def _handle(mark: Mark) -> Line2D:
    """The sample of a mark in the legend."""
    line = {} if isinstance(mark, Line) else {"linestyle": "none"}
    return Line2D([], [], markersize=4, linewidth=1.6, **_line_style(mark.look) | line)


@singledispatch
def _draw(mark: AnyMark, axes: Any, plot: Plot) -> None:
    raise NotImplementedError(f"no drawing of {type(mark).__name__}")


@_draw.register
def _(mark: Line, axes: Any, plot: Plot) -> None:
    if len(mark.low):
        axes.fill_between(
            mark.x, mark.low, mark.high, color=mark.look.color, alpha=0.12, linewidth=0
        )
    style = _line_style(mark.look)
    style["linewidth"] = 0.7 * mark.width
    style["drawstyle"] = DRAW_STYLES[mark.step]
    if not mark.markers:
        style["marker"] = "none"
    every = max(1, len(mark.x) // 7)
    axes.plot(mark.x, mark.y, label=mark.label or None, markersize=4, markevery=every, **style)


@_draw.register
def _(mark: Points, axes: Any, plot: Plot) -> None:
    look = mark.look
    x = np.asarray(mark.x, dtype=float)
    y = np.asarray(mark.y, dtype=float)
    if len(mark.low):
        middles = x if mark.along == "x" else y
        arms = np.abs([middles - np.asarray(mark.low), np.asarray(mark.high) - middles])
        known = np.isfinite(arms).all(0)
        if known.any():
            errors = {f"{mark.along}err": arms[:, known]}
            axes.errorbar(
                x[known],
                y[known],
                **errors,
                fmt="none",
                color=look.color,
                capsize=3,
                elinewidth=1.8,
                capthick=1.8,
            )

    # a vertical stroke has no face; other markers are filled or hollow
    is_stroke = look.marker == "line-ns"
    hollow = list(mark.hollow) or [look.marker.endswith("-open")] * len(x)
    colors: dict[str, Any] = {"color": look.color}
    if not is_stroke:
        faces = ["none" if empty else look.color for empty in hollow]
        colors = {"facecolors": faces, "edgecolors": look.color}
    axes.scatter(
        x,
        y,
        s=(mark.size * POINTS_PER_PIXEL * 1.1) ** 2,
        marker=MARKERS[look.marker],
        zorder=3,
        clip_on=plot.y.limits is not None and plot.y.visible,
        linewidths=1.6 if any(hollow) or is_stroke else 0,
        **colors,
    )
    for i, caption in enumerate(mark.captions):
        # below and above in turn, so that captions of neighbors do not meet
        shift, side = ((0, 5), "bottom") if i % 2 else ((0, -5), "top")
        axes.annotate(
            caption,
            (x[i], y[i]),
            shift,
            textcoords="offset points",
            ha="center",
            va=side,
            fontsize=7,
            color=MUTED,
            annotation_clip=False,
        )


@_draw.register
def _(mark: Box, axes: Any, plot: Plot) -> None:
    """A box from the first to the third quartile, with whiskers to the last value within 1.5 times its width.

    Matplotlib's own `boxplot` is not used because its option for horizontal boxes has different names in different versions.
    """
    y = mark.row
    values = np.asarray(mark.values, dtype=float)
    # the model of a client may have diverged
    values = values[np.isfinite(values)]
    if not len(values):
        return
    heights = y + np.random.default_rng(0).uniform(-0.16, 0.16, len(values))
    axes.scatter(values, heights, s=9, color=mark.look.color, alpha=0.45, linewidths=0)
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    reach = 1.5 * (high - low)
    inside = values[(values >= low - reach) & (values <= high + reach)]
    line = {"color": mark.look.color, "linewidth": 1.4}
    top = y - 0.25
    bottom = y + 0.25
    axes.plot([low, high, high, low, low], [top, top, bottom, bottom, top], **line)
    axes.plot([middle, middle], [top, bottom], color=mark.look.color, linewidth=2.4)
    for end, edge in ((inside.min(), low), (inside.max(), high)):
        axes.plot([end, edge], [y, y], **line)


@_draw.register
def _(mark: Bars, axes: Any, plot: Plot) -> None:
    values = np.asarray(mark.values, dtype=float)
    arms = np.abs([values - np.asarray(mark.low), np.asarray(mark.high) - values])
    axes.barh(
        mark.y,
        values,
        height=0.55,
        xerr=arms,
        color=mark.look.color,
        ecolor=MUTED,
        error_kw={"elinewidth": 1.2, "capsize": 3},
    )


@_draw.register
def _(mark: Bubbles, axes: Any, plot: Plot) -> None:
    counts = np.asarray(mark.counts, dtype=float)
    largest_area = (0.9 * mark.widest * POINTS_PER_PIXEL) ** 2
    areas = largest_area * counts / max(counts.max(initial=1), 1)
    axes.scatter(mark.x, mark.y, s=areas, color=mark.look.color, alpha=0.85, linewidths=0)


@_draw.register
def _(mark: HeatMap, axes: Any, plot: Plot) -> None:
    axes.grid(visible=False)
    low, high = mark.ends
    norm = PowerNorm(0.5 if mark.root else 1, low, high)
    colors = BLUE_TO_ORANGE if mark.diverging else BLUES
    values = np.asarray(mark.values, dtype=float)
    axes.imshow(values, aspect="auto", cmap=colors, interpolation="nearest", norm=norm)
    if not mark.written:
        return
    for y, x in np.ndindex(*values.shape):
        axes.text(x, y, mark.texts[y][x], ha="center", va="center", fontsize=7, color=INK)


@_draw.register
def _(mark: Rule, axes: Any, plot: Plot) -> None:
    axes.axvline(mark.x, color=MUTED, linewidth=1, linestyle=":", zorder=0)


@_draw.register
def _(mark: Note, axes: Any, plot: Plot) -> None:
    beside: Mapping[str, tuple[tuple[float, float], str, str]] = {
        "left": ((-7, 0), "right", "center"),
        "right": ((7, 0), "left", "center"),
        "above": ((0, 1), "center", "bottom"),
    }
    shift, across, up = beside[mark.side]
    axes.annotate(
        mark.text,
        (mark.x, mark.y),
        shift,
        textcoords="offset points",
        ha=across,
        va=up,
        annotation_clip=False,
    )
