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
    PIXELS,
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

INK, MUTED, RULED = "#1f2733", "#5c6675", "#d9d7d0"
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
}
MARKERS |= {
    "triangle-down": "v",
    "line-ns": "|",
    "circle-open": "o",
    "diamond-open": "D",
    "square-open": "s",
}
MARKERS |= {"triangle-up-open": "^"}
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
    "text.parse_math": False,  # a method's name may contain $
    "svg.hashsalt": "unalike",  # the same figure gives the same bytes
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}
WIDTH, WIDTH_BESIDE = 5.2, 3.1
"""Width in inches of a plot alone, and of one of several beside each other."""
LEGEND_LINE, LEGEND_HANDLE, LETTER = 0.2, 0.55, 0.066
"""Height of a line of the legend, width of a line's sample and of a letter, in inches."""
TITLE_LETTERS = 30
"""Letters of a line of a title or of a y axis's label, where several plots are beside each other."""
LONGEST_TICK, TICK_LINE = 24, 0.11
"""Most letters of a name at an axis, and the height of a line of names in inches."""
POINTS = 72 / PIXELS
"""Points on paper of a pixel on a page."""
BLUES = LinearSegmentedColormap.from_list("blues", ["#FFFFFF", BLUE])
BLUE_TO_ORANGE = LinearSegmentedColormap.from_list("blue to orange", [BLUE, "#FFFFFF", ORANGE])


def write(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as `path`.svg and `path`.pdf, without a date: the same results give the same files. Returns the files."""
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("svg", "pdf")]
    with rc_context(STYLE):
        drawn = draw(figure)
        drawn.savefig(files[0], metadata={"Date": None})
        drawn.savefig(files[1], metadata={"CreationDate": None, "ModDate": None})
    return files


def png(figure: Figure) -> bytes:
    """The figure as an image, for screens."""
    drawn = BytesIO()
    with rc_context(STYLE):
        draw(figure).savefig(drawn, format="png", dpi=130)
    return drawn.getvalue()


def draw(figure: Figure) -> matplotlib_figure.Figure:
    """The figure as a Matplotlib figure; pyplot and its global state are not used."""
    figure = with_shared_colors(figure)
    labels = list(figure.listed)
    width = WIDTH if len(figure.plots) == 1 else WIDTH_BESIDE * figure.columns
    if figure.room:
        width = 3.4 + 2.5 * LETTER * figure.room
    beside = _labels_in_a_line(labels, width)
    height = figure.lines * figure.height / PIXELS + LEGEND_LINE * -(-len(labels) // beside)
    with rc_context(STYLE):
        drawn = matplotlib_figure.Figure(figsize=(width, height), layout="constrained")
        grid = np.ravel(drawn.subplots(figure.lines, figure.columns, squeeze=False))
        for place, (axes, plot) in enumerate(zip(grid, figure.plots)):
            _draw_plot(axes, plot, width / figure.columns, figure.height / PIXELS)
            axes.set_title(fill(plot.title, TITLE_LETTERS), fontsize=9, color=INK)
            if len(figure.plots) > 1:
                axes.set_xlabel(fill(plot.x.title, TITLE_LETTERS + 6))
                axes.set_ylabel(
                    fill(plot.y.title, TITLE_LETTERS - 4) if figure.says_y(place) else ""
                )
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
    _style(axes)
    for mark in plot.marks:
        _draw(mark, axes, plot)
    for axis, other, place in ((axes.xaxis, plot.x, "x"), (axes.yaxis, plot.y, "y")):
        if not (place == "y" and plot.rows):
            _draw_axis(axes, axis, other, width if place == "x" else height)
    if plot.rows:
        axes.set_yticks(
            range(len(plot.rows)), [wording.short(name) for name in plot.rows], color=INK
        )
        axes.set_ylim(len(plot.rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    if not (plot.x.visible or plot.y.visible):
        axes.set_axis_off()


def _draw_axis(axes: Any, drawn: Any, axis: Axis, room: float) -> None:
    """Set scale, ends, names and title of one of the two axes, which has `room` inches."""
    is_x = drawn is axes.xaxis
    if axis.log:
        (axes.set_xscale if is_x else axes.set_yscale)("log")
        drawn.set_major_formatter("{x:g}")
        drawn.set_minor_formatter(
            LogFormatter()
        )  # the default writes TeX, which SVG shows as it is
    elif axis.ticks is None:
        bins, steps = (8 if room > WIDTH_BESIDE else 5), [1, 2, 2.5, 5, 10]
        drawn.set_major_locator(MaxNLocator(bins, steps=steps, integer=axis.form == ""))
    ends = axis.limits
    if ends:
        (axes.set_xlim if is_x else axes.set_ylim)(*(ends[::-1] if axis.reverse else ends))
    elif axis.reverse:
        drawn.set_inverted(True)
    if axis.from_zero and not ends:
        least = -0.02 * drawn.get_view_interval()[1]  # a marker at 0 is not cut
        (axes.set_xlim(left=least) if is_x else axes.set_ylim(bottom=least))
    if axis.ticks is not None:
        names = [wording.short(name, LONGEST_TICK) for name in axis.ticks.values()]
        longest = max(map(len, names), default=1)
        turned = is_x and longest > 2 and len(names) * LETTER * (longest + 1) > room
        each = TICK_LINE if turned or not is_x else LETTER * (longest + 1)
        every = max(1, int(np.ceil(len(names) * each / (0.8 * room))))
        places = list(axis.ticks)[::every]
        drawn.set_ticks(places, names[::every], rotation=60 if turned else 0, fontsize=7)
    (axes.set_xlabel if is_x else axes.set_ylabel)(axis.title)


def _color_bar(drawn: Any, figure: Figure) -> None:
    """One color bar for all heat maps."""
    images = [image for axes in drawn.axes for image in axes.images]
    maps = [mark for plot in figure.plots for mark in plot.marks if isinstance(mark, HeatMap)]
    if images:
        drawn.colorbar(images[-1], ax=drawn.axes, label=maps[-1].bar)


def _labels_in_a_line(labels: Sequence[str], width: float) -> int:
    """The number of columns of the legend for which its labels fit in the width."""
    longest = max((len(wording.short(label)) for label in labels), default=1)
    return max(1, min(4, len(labels), int(width / (LEGEND_HANDLE + LETTER * longest))))


def _style(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULED)
    axes.grid(color=RULED, linewidth=0.6)
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
    style = _line_style(mark.look) | {
        "linewidth": 0.7 * mark.width,
        "drawstyle": DRAW_STYLES[mark.step],
    }
    if not mark.markers:
        style["marker"] = "none"
    every = max(1, len(mark.x) // 7)
    axes.plot(mark.x, mark.y, label=mark.label or None, markersize=4, markevery=every, **style)


@_draw.register
def _(mark: Points, axes: Any, plot: Plot) -> None:
    look, x, y = mark.look, np.asarray(mark.x, dtype=float), np.asarray(mark.y, dtype=float)
    if len(mark.low):
        middles = x if mark.along == "x" else y
        arms = np.abs([middles - np.asarray(mark.low), np.asarray(mark.high) - middles])
        known = np.isfinite(arms).all(0)
        if known.any():
            ends = {f"{mark.along}err": arms[:, known]}
            axes.errorbar(
                x[known],
                y[known],
                **ends,
                fmt="none",
                color=look.color,
                capsize=3,
                elinewidth=1.8,
                capthick=1.8,
            )
    hollow = list(mark.hollow) or [look.marker.endswith("-open")] * len(x)
    faces = ["none" if empty else look.color for empty in hollow]
    lined = {"linewidths": 1.6 if any(hollow) or look.marker == "line-ns" else 0}
    face = (
        {"color": look.color}
        if look.marker == "line-ns"
        else {"facecolors": faces, "edgecolors": look.color}
    )
    style = {
        "marker": MARKERS[look.marker],
        "zorder": 3,
        "clip_on": plot.y.limits is not None and plot.y.visible,
    }
    axes.scatter(x, y, s=(mark.size * POINTS * 1.1) ** 2, **style, **lined, **face)
    for i, (at, caption) in enumerate(zip(zip(x, y), mark.captions)):
        shift, side = ((0, 5), "bottom") if i % 2 else ((0, -5), "top")
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": "center",
            "va": side,
            "fontsize": 7,
        }
        axes.annotate(caption, at, shift, color=MUTED, annotation_clip=False, **place)


@_draw.register
def _(mark: Box, axes: Any, plot: Plot) -> None:
    """A box from the first to the third quartile, with whiskers to the last value within 1.5 times its width.

    Matplotlib's own `boxplot` is not used because its option for horizontal boxes has different names in different versions.
    """
    values, y = np.asarray(mark.values, dtype=float), mark.row
    values = values[np.isfinite(values)]  # the model of a client may have diverged
    if not len(values):
        return
    heights = y + np.random.default_rng(0).uniform(-0.16, 0.16, len(values))
    axes.scatter(values, heights, s=9, color=mark.look.color, alpha=0.45, linewidths=0)
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    inside = values[(values >= low - 1.5 * (high - low)) & (values <= high + 1.5 * (high - low))]
    line = {"color": mark.look.color, "linewidth": 1.4}
    axes.plot(
        [low, high, high, low, low], [y - 0.25, y - 0.25, y + 0.25, y + 0.25, y - 0.25], **line
    )
    axes.plot([middle, middle], [y - 0.25, y + 0.25], color=mark.look.color, linewidth=2.4)
    for end, edge in ((inside.min(), low), (inside.max(), high)):
        axes.plot([end, edge], [y, y], **line)


@_draw.register
def _(mark: Bars, axes: Any, plot: Plot) -> None:
    values = np.asarray(mark.values, dtype=float)
    arms = np.abs([values - np.asarray(mark.low), np.asarray(mark.high) - values])
    style = {"ecolor": MUTED, "error_kw": {"elinewidth": 1.2, "capsize": 3}}
    axes.barh(mark.y, values, height=0.55, xerr=arms, color=mark.look.color, **style)


@_draw.register
def _(mark: Bubbles, axes: Any, plot: Plot) -> None:
    counts = np.asarray(mark.counts, dtype=float)
    areas = (0.9 * mark.widest * POINTS) ** 2 * counts / max(counts.max(initial=1), 1)
    axes.scatter(mark.x, mark.y, s=areas, color=mark.look.color, alpha=0.85, linewidths=0)


@_draw.register
def _(mark: HeatMap, axes: Any, plot: Plot) -> None:
    axes.grid(visible=False)
    colors, norm = (
        BLUE_TO_ORANGE if mark.diverging else BLUES,
        PowerNorm(0.5 if mark.root else 1, *mark.ends),
    )
    values = np.asarray(mark.values, dtype=float)
    axes.imshow(values, aspect="auto", cmap=colors, interpolation="nearest", norm=norm)
    for y, x in np.ndindex(*values.shape) if mark.written else ():
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
    place: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": across,
        "va": up,
        "annotation_clip": False,
    }
    axes.annotate(mark.text, (mark.x, mark.y), shift, **place)
