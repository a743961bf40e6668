"""The page of a sweep: heat maps, the best values of each method, and the table."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from unalike.experiments.sweep_result import Sweep
from unalike.reporting import wording
from unalike.reporting.charts.figure import Axis, Figure, HeatMap, Plot, named
from unalike.reporting.html import fill
from unalike.reporting.pages import Page, pages
from unalike.reporting.panels import Panel, View
from unalike.reporting.table import rows

ROW_HEIGHT = 34


def render(sweep: Sweep) -> str:
    """Render the page as one HTML document. The same sweep gives the same text."""
    answer, *others = sweep.findings
    return fill(
        "sweep.html.j2",
        title=f"{wording.listing(sweep.methods)} on {sweep.name}, by {wording.listing(sweep.axes)}",
        warnings=[],
        scale={"point": len(sweep.comparisons), "method": len(sweep.methods)},
        answer=answer,
        others=others,
        panels=panels(sweep),
        table=sweep.as_table(),
    )


def panels(sweep: Sweep) -> dict[str, Panel | None]:
    """The heat maps by kind; None for differences if there is one method."""
    captions = {
        "scores": f"{wording.capital(sweep.metric.word)}, mean over seeds. * best point of a method, by test samples.",
        "differences": f"Difference in {sweep.metric.word} to the baseline at the same point, mean over seeds.",
    }
    drawn = figures(sweep)
    return {
        kind: Panel(kind, text, [View(wording.capital(kind), drawn[kind], text)], []) if kind in drawn else None
        for kind, text in captions.items()
    }


def figures(sweep: Sweep) -> dict[str, Figure]:
    """Kind -> heat maps."""
    found = {"scores": _maps(sweep, sweep.metric.name)}
    others = sweep.table["difference"].notna()
    return found | ({"differences": _maps(sweep, "difference")} if others.any() else {})


def _maps(sweep: Sweep, column: str) -> Figure:
    """The heat maps of a column: of methods over a single name; else of the first two names, for each method and further value."""
    axes = {"method": [m for m in sweep.methods if sweep.table.set_index("method")[column][[m]].notna().any()]}
    axes |= {name: list(values) for name, values in sweep.axes.items()}
    down, across = ("method", *sweep.axes) if len(sweep.axes) == 1 else list(sweep.axes)[:2]
    by_place = {tuple(row[name] for name in axes): row for row in rows(sweep.table)}
    plots = []
    for fixed in product(*(values for name, values in axes.items() if name not in (down, across))):
        beside = dict(zip((name for name in axes if name not in (down, across)), fixed))
        found = [
            [by_place.get(tuple({**beside, down: y, across: x}[name] for name in axes), {}) for x in axes[across]]
            for y in axes[down]
        ]
        metric, signed = sweep.metric, column == "difference"
        values = [[metric.scale * row.get(column, math.nan) for row in line] for line in found]
        texts = [
            [
                metric.amount(row.get(column, math.nan)) if not signed else _signed(sweep, row.get(column, math.nan))
                for row in line
            ]
            for line in found
        ]
        if not signed:
            texts = [[t + "*" * bool(row.get("best")) for t, row in zip(*pair)] for pair in zip(texts, found)]
        bar = (metric.unit.strip() or "difference") if signed else metric.word + metric.axis_unit
        squares = HeatMap(np.array(values), bar, texts=texts, diverging=signed, written=True)
        ticks = {name: Axis("" if name == "method" else name, named(axes[name])) for name in (down, across)}
        title = ", ".join(value if name == "method" else f"{name}={value}" for name, value in beside.items())
        y = Axis(ticks[down].title, ticks[down].ticks, reverse=True)
        plots.append(Plot([squares], ticks[across], y, title))
    return Figure(plots, 130 + ROW_HEIGHT * len(axes[down]))


def _signed(sweep: Sweep, value: float) -> str:
    return sweep.metric.difference(value).removesuffix(sweep.metric.unit)


pages.register("sweep")(Page(render, panels))
