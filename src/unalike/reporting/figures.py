"""The figures that runs, histories and clients draw of themselves in a notebook, with the charts of the report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import plotly.graph_objects as go

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.registry import figures
from unalike.reporting import panels
from unalike.reporting.charts import report_charts
from unalike.reporting.charts.figure import Figure
from unalike.reporting.charts.notebook_figures import notebook_figure
from unalike.reporting.charts.palette import looks
from unalike.reporting.content import MODELS

if TYPE_CHECKING:
    from unalike.data.population import Population
    from unalike.reporting.content import ReportContent
    from unalike.runtime.records.history import History


@figures.register("history")
def history_figure(history: History, metric: str | None, label: str) -> go.Figure:
    """The curve of a metric over the rounds of a run."""
    rounds = history.rounds
    shown_column = history.columns.shown(history.last)
    column = metric or ("" if shown_column is None else shown_column.name)
    known = [
        str(name)
        for name in rounds
        if pd.api.types.is_float_dtype(rounds[name]) and rounds[name].notna().any()
    ]
    if column not in known:
        raise unknown("metric of this run", column, known)
    # the chart is of several methods over several seeds
    shown = rounds.assign(method=label, seed=0).dropna(subset=[column])
    figure = report_charts.curves(shown, column, column.replace("_", " "), looks([label]))
    return notebook_figure(figure)


@figures.register("clients")
def clients_figure(population: Population) -> go.Figure:
    """Training samples by client and class."""
    if population.classes is None:
        raise UnalikeError(
            "the labels are numbers and not classes, so there is nothing to draw; see population.sizes"
        )
    return notebook_figure(division(population))


def division(population: Population, title: str = "") -> Figure:
    """Training samples by client and class; of a regression, by client."""
    names = list(population.names)
    if population.classes is None:
        figure = report_charts.sizes(pd.Series(population.sizes, names))
    else:
        counts = pd.DataFrame(population.label_counts(), names, population.classes)
        figure = report_charts.labels(counts)
    return replace(figure, plots=[replace(plot, title=title) for plot in figure.plots])


def comparison_figure(content: ReportContent, kind: str, protocol: str | None) -> go.Figure:
    """A chart of one of the report's panels: the first, or that of a protocol."""
    style = looks(content.labels)
    panel_of = {
        "decision": panels.differences,
        "curves": panels.curves,
        "clients": panels.distributions,
    }
    if kind not in panel_of:
        raise unknown("figure of a comparison", kind, panel_of)
    panel = panel_of[kind](content, style)
    views = [] if panel is None else panel.views
    if protocol is not None and protocol not in MODELS:
        raise unknown("protocol", protocol, MODELS)
    if protocol is not None:
        views = [view for view in views if view.label.lower().endswith(content.models_of(protocol))]
    if not views:
        raise UnalikeError(
            f"there is nothing to draw for {kind!r}: the comparison holds no such scores; see table.summary"
        )
    return notebook_figure(views[0].figure)
