"""Panels: a figure as data, drawn by Matplotlib for papers and by Plotly for pages."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from matplotlib import colormaps, rc_context
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from plotly.subplots import make_subplots

from unalike._utils.tensor_files import writing
from unalike.reporting.charts.palette import Look, looks
from unalike.reporting.charts.paper_figures import INK, STYLE, line_style, style_axes

WIDTH, HEIGHT = 3.1, 2.6
"""Size of a panel in inches."""
LEGEND_LINE, LEGEND_HANDLE, LEGEND_LETTER = 0.2, 0.55, 0.066
"""Height of a line of the legend, width of a line's sample and of a letter, in inches."""
IN_A_ROW = 3
LABEL_WIDTH, TITLE_WIDTH = 26, 30
"""Letters of a line of a y axis's label, and of a title."""
FAINT = "#C4C4C4"
"""Color of faint lines."""
PLACES = {
    **{"FedAvg": 0, "FedProx": 1, "FedNova": 2, "FedMix": 3, "SCAFFOLD": 4, "FedAvg + LWS": 5, "FedPake as printed": 6},
    **{"FedSA as printed": 9, "FedSA = FedPake, normalized": 10, "weighted mean": 7, "mean": 12},
}
"""Label -> place among the looks of the palette, for methods that many figures share."""
MOST_TICKS = 6
"""The number of columns of a grid that are named."""


@dataclass(frozen=True)
class Line:
    """Points of one label, with a band from low to high around them; an empty band is not drawn. `faint`: in light gray."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    faint: bool = field(default=False, kw_only=True)

    @classmethod
    def over_seeds(cls, label: str, values: Mapping[int, Sequence[float]] | Mapping[float, Sequence[float]]) -> Line:
        """The mean of the values at each x, with a band of one standard deviation to both sides."""
        means = [statistics.fmean(own) for own in values.values()]
        spread = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in values.values()]
        low, high = ([m + sign * s for m, s in zip(means, spread)] for sign in (-1, 1))
        return cls(label, list(values), means, low, high)


@dataclass(frozen=True)
class Grid:
    """Numbers as colored squares, [rows, columns]; NaN is left white.

    `bar` is the label of the color bar. Colors go evenly from the least to the largest number, or by `shades`: "counts" from 0
    by the square root, "differences" evenly to both sides of 0. `rows` and `columns` are names; empty ones are numbers.
    """

    values: tuple[tuple[float, ...], ...]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    bar: str = ""
    shades: Literal["even", "counts", "differences"] = "even"


@dataclass(frozen=True)
class Panel:
    """One set of axes: lines, or a grid with `lines` empty. `log`: a logarithmic y axis; `log_x`: a logarithmic x axis (x > 0).

    With `ticks`, the points 0, 1, ... of the lines have these names, and are not joined; nor are they with `points`. `limits` are
    the ends of the y axis; points beyond are not drawn.
    """

    title: str
    x: str
    y: str
    lines: tuple[Line, ...] = ()
    grid: Grid | None = None
    log: bool = False
    log_x: bool = False
    ticks: tuple[str, ...] = ()
    points: bool = False
    limits: tuple[float, float] | None = None

    @property
    def apart(self) -> bool:
        """Whether points are not joined."""
        return self.points or bool(self.ticks)


@dataclass(frozen=True)
class Picture:
    """A figure of several panels with one legend."""

    name: str
    panels: tuple[Panel, ...]

    @property
    def labels(self) -> list[str]:
        """The labels of all lines, in the order of their first appearance."""
        return list(dict.fromkeys(line.label for panel in self.panels for line in panel.lines))

    def save(self, folder: Path) -> list[Path]:
        """Write the figure as SVG, PDF and HTML. Returns the files."""
        files = [folder / f"{self.name}.{end}" for end in ("svg", "pdf", "html")]
        with writing(folder), rc_context(STYLE):
            folder.mkdir(parents=True, exist_ok=True)
            figure = self.figure()
            figure.savefig(files[0], metadata={"Date": None})
            figure.savefig(files[1], metadata={"CreationDate": None, "ModDate": None})
            self.page().write_html(files[2], include_plotlyjs=True)
        return files

    def figure(self) -> Figure:
        """The figure by Matplotlib."""
        columns = min(IN_A_ROW, len(self.panels))
        rows = -(-len(self.panels) // columns)
        beside = self._labels_in_a_row(WIDTH * columns)
        legend = LEGEND_LINE * -(-len(self.labels) // beside)
        figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + legend), layout="constrained")
        style, image = self._looks, None
        for place, (axes, panel) in enumerate(
            zip(np.ravel(figure.subplots(rows, columns, squeeze=False)), self.panels)
        ):
            axes.set_title(fill(panel.title, TITLE_WIDTH), fontsize=9, color=INK)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(fill(panel.y, LABEL_WIDTH) if place % columns == 0 else "")
            if panel.grid is None:
                _draw_lines(axes, panel, style)
            else:
                image = _draw_grid(axes, panel.grid, self._range)
        for axes in figure.axes[len(self.panels) :]:
            axes.set_axis_off()
        if image is not None:
            figure.colorbar(image, ax=figure.axes, label=next(p.grid.bar for p in self.panels if p.grid is not None))
        if self.labels:
            known = {h.get_label(): h for axes in figure.axes for h in axes.get_lines()}
            handles = [known[label] for label in self.labels]
            figure.legend(handles, self.labels, loc="outside lower center", ncols=beside, frameon=False, fontsize=8)
        return figure

    def _labels_in_a_row(self, width: float) -> int:
        """The number of columns of the legend for which its labels fit in the width."""
        longest = max(map(len, self.labels), default=1)
        return max(1, min(4, int(width / (LEGEND_HANDLE + LEGEND_LETTER * longest))))

    def page(self) -> go.Figure:
        """The figure by Plotly."""
        columns = min(IN_A_ROW, len(self.panels))
        rows = -(-len(self.panels) // columns)
        figure = make_subplots(rows, columns, subplot_titles=[panel.title for panel in self.panels])
        style, shown = self._looks, set[str]()
        for place, panel in enumerate(self.panels):
            at = {"row": place // columns + 1, "col": place % columns + 1}
            figure.update_xaxes(title_text=panel.x, type="log" if panel.log_x else None, **at)
            if panel.ticks:
                figure.update_xaxes(tickvals=list(range(len(panel.ticks))), ticktext=list(panel.ticks), **at)
            figure.update_yaxes(title_text=panel.y, type="log" if panel.log else "linear", range=panel.limits, **at)
            if panel.grid is not None:
                figure.add_trace(_heat(panel.grid, self._range), **at)
                figure.update_yaxes(autorange="reversed", **at)
            for line in panel.lines:
                figure.add_trace(_trace(line, style[line.label], line.label not in shown, panel.apart), **at)
                shown.add(line.label)
        return figure.update_layout(template="plotly_white", height=120 + 320 * rows)

    @property
    def _looks(self) -> dict[str, Look]:
        """Label -> look; faint lines take no place among the looks of the others."""
        faint = {line.label for panel in self.panels for line in panel.lines if line.faint}
        named = [label for label in self.labels if label not in faint]
        return looks(named, PLACES) | {label: Look("faint", FAINT, "solid", "circle") for label in faint}

    @property
    def _range(self) -> tuple[float, float]:
        """The numbers at the ends of the color bar, the same in all panels."""
        grids = [panel.grid for panel in self.panels if panel.grid is not None]
        values = np.concatenate([np.ravel(np.array(grid.values, dtype=float)) for grid in grids])
        least, most = float(np.nanmin(values)), float(np.nanmax(values))
        if grids[0].shades == "differences":
            return -max(-least, most), max(-least, most)
        return (0.0 if grids[0].shades == "counts" else least), most


def _draw_lines(axes: Any, panel: Panel, style: dict[str, Look]) -> None:
    style_axes(axes)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=not panel.points))
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    if panel.log:
        axes.set_yscale("log")
    if panel.limits:
        axes.set_ylim(*panel.limits)
    for line in panel.lines:
        look = style[line.label]
        if len(line.low):
            axes.fill_between(line.x, line.low, line.high, color=look.color, alpha=0.12, linewidth=0)
        drawn = line_style(look) | ({"linestyle": "none"} if panel.apart else {})
        every = 1 if panel.apart else max(1, len(line.x) // 7)
        axes.plot(line.x, line.y, label=line.label, markevery=every, **drawn)


def _draw_grid(axes: Any, grid: Grid, limits: tuple[float, float]) -> Any:
    """Draw the grid. Returns Matplotlib's image, for the color bar."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if grid.rows:
        axes.set_yticks(range(len(grid.rows)), grid.rows, fontsize=7)
    if grid.columns:
        some = range(0, len(grid.columns), -(-len(grid.columns) // MOST_TICKS))
        axes.set_xticks(some, [grid.columns[i] for i in some])
    colors = colormaps["RdBu_r" if grid.shades == "differences" else "Blues"]
    norm = PowerNorm(0.5 if grid.shades == "counts" else 1, *limits)
    return axes.imshow(
        np.array(grid.values, dtype=float), aspect="auto", cmap=colors, interpolation="nearest", norm=norm
    )


def _heat(grid: Grid, limits: tuple[float, float]) -> go.Heatmap:
    """The grid by Plotly; counts are drawn by their square root, and have no color bar."""
    values, counts = np.array(grid.values, dtype=float), grid.shades == "counts"
    return go.Heatmap(
        z=np.sqrt(values) if counts else values,
        x=grid.columns or None,
        y=grid.rows or None,
        customdata=values,
        hovertemplate="%{y}, %{x}: %{customdata:.4g}<extra></extra>",
        colorscale="RdBu_r" if grid.shades == "differences" else "Blues",
        zmin=limits[0],
        zmax=limits[1] ** 0.5 if counts else limits[1],
        showscale=not counts,
        colorbar={"title": grid.bar},
    )


def _trace(line: Line, look: Look, named: bool, apart: bool) -> go.Scatter:
    return go.Scatter(
        x=list(line.x),
        y=list(line.y),
        name=line.label,
        legendgroup=line.label,
        showlegend=named,
        mode="markers" if apart else "lines+markers" if len(line.x) < 30 else "lines",
        line={"color": look.color, "dash": look.dash},
        marker={"symbol": look.marker},
    )
