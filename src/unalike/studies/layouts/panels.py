"""Panels: a figure as data, drawn by Matplotlib for papers and by Plotly for pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from plotly.subplots import make_subplots

from unalike._utils.tensor_files import writing
from unalike.reporting.charts.palette import Look, looks
from unalike.reporting.charts.paper_figures import INK, STYLE, line_style, style_axes

WIDTH, HEIGHT = 3.1, 2.6
"""Size of a panel in inches."""
IN_A_ROW = 3


@dataclass(frozen=True)
class Line:
    """Points of one label, with a band from low to high around them; an empty band is not drawn."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """One set of axes: lines, or a grid of counts [rows, columns] with `lines` empty. `log`: a logarithmic y axis.

    With `ticks`, the points 0, 1, ... of the lines have these names, and are not joined.
    """

    title: str
    x: str
    y: str
    lines: tuple[Line, ...] = ()
    grid: tuple[tuple[float, ...], ...] = ()
    log: bool = False
    ticks: tuple[str, ...] = ()


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
        figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.4), layout="constrained")
        style = looks(self.labels)
        most = max((max(map(max, panel.grid)) for panel in self.panels if panel.grid), default=1) ** 0.5
        for place, (axes, panel) in enumerate(
            zip(np.ravel(figure.subplots(rows, columns, squeeze=False)), self.panels)
        ):
            axes.set_title(panel.title, fontsize=9, color=INK)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(panel.y if place % columns == 0 else "")
            if panel.grid:
                axes.imshow(
                    np.sqrt(panel.grid),
                    aspect="auto",
                    cmap=colormaps["Blues"],
                    interpolation="nearest",
                    vmin=0,
                    vmax=most,
                )
                continue
            style_axes(axes)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if panel.ticks:
                axes.set_xticks(range(len(panel.ticks)), panel.ticks)
            if panel.log:
                axes.set_yscale("log")
            for line in panel.lines:
                look = style[line.label]
                if len(line.low):
                    axes.fill_between(line.x, line.low, line.high, color=look.color, alpha=0.12, linewidth=0)
                drawn = line_style(look) | ({"linestyle": "none"} if panel.ticks else {})
                every = 1 if panel.ticks else max(1, len(line.x) // 7)
                axes.plot(line.x, line.y, label=line.label, markevery=every, **drawn)
        for axes in figure.axes[len(self.panels) :]:
            axes.set_axis_off()
        if self.labels:
            known = {h.get_label(): h for axes in figure.axes for h in axes.get_lines()}
            handles = [known[label] for label in self.labels]
            figure.legend(
                handles, self.labels, loc="outside lower center", ncols=min(4, 2 * columns), frameon=False, fontsize=8
            )
        return figure

    def page(self) -> go.Figure:
        """The figure by Plotly."""
        columns = min(IN_A_ROW, len(self.panels))
        rows = -(-len(self.panels) // columns)
        figure = make_subplots(rows, columns, subplot_titles=[panel.title for panel in self.panels])
        style, shown = looks(self.labels), set[str]()
        for place, panel in enumerate(self.panels):
            at = {"row": place // columns + 1, "col": place % columns + 1}
            figure.update_xaxes(title_text=panel.x, **at)
            if panel.ticks:
                figure.update_xaxes(tickvals=list(range(len(panel.ticks))), ticktext=list(panel.ticks), **at)
            figure.update_yaxes(title_text=panel.y, type="log" if panel.log else "linear", **at)
            if panel.grid:
                figure.add_trace(go.Heatmap(z=panel.grid, colorscale="Blues", showscale=False), **at)
            for line in panel.lines:
                figure.add_trace(_trace(line, style[line.label], line.label not in shown, bool(panel.ticks)), **at)
                shown.add(line.label)
        return figure.update_layout(template="plotly_white", height=120 + 320 * rows)


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
