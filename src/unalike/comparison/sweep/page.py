"""The page of a sweep: heat maps, the best values of each method, and the table."""

from dataclasses import replace

from unalike.comparison.sweep.sweep_result import Sweep
from unalike.reporting import wording
from unalike.reporting.charts.figure import Axis, Figure, HeatMap, Plot, named
from unalike.reporting.html import fill
from unalike.reporting.pages import Page, pages
from unalike.reporting.panels import Panel, View

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
    metric = sweep.metric
    scores = f"{wording.capital(metric.word)}, mean over seeds. * best point of a method, by test samples."
    differences = f"Difference in {metric.word} to the baseline at the same point, mean over seeds."
    drawn = {
        "scores": (scores, _maps(sweep, metric.name)),
        "differences": (differences, _maps(sweep, "difference")),
    }
    found: dict[str, Panel | None] = {}
    for kind, (text, figure) in drawn.items():
        view = figure and [View(wording.capital(kind), figure, text, replace(figure, in_a_row=1))]
        found[kind] = Panel(kind, text, view, []) if view else None
    return found


def _maps(sweep: Sweep, column: str) -> Figure | None:
    """The heat maps of a column: of methods over a single name; else over two names, for each method and value of further ones.

    None for a column without a number.
    """
    metric, signed = sweep.metric, column == "difference"
    table = sweep.table.dropna(subset=[column])
    if table.empty:
        return None
    written = metric.change if signed else metric.amount
    texts = [
        written(value) + "*" * (best and not signed)
        for value, best in zip(table[column], table["best"])
    ]
    table = table.assign(value=metric.scale * table[column], text=texts)
    order = {"method": list(dict.fromkeys(table["method"]))} | {
        name: list(own) for name, own in sweep.axes.items()
    }
    down, across, *_ = order if len(sweep.axes) == 1 else sweep.axes
    beside = [name for name in order if name not in (down, across)]
    axes = {
        name: Axis("" if name == "method" else name, named(order[name]), reverse=name == down)
        for name in (down, across)
    }
    plots = []
    for key, part in table.groupby(beside, sort=False) if beside else [((), table)]:
        values, words = (
            part.pivot(index=down, columns=across, values=kind).reindex(
                index=order[down], columns=order[across]
            )
            for kind in ("value", "text")
        )
        bar = (metric.unit.strip() or "difference") if signed else metric.word + metric.axis_unit
        labels = words.fillna("").to_numpy().tolist()
        title = ", ".join(
            str(value) if name == "method" else f"{name}={value}"
            for name, value in zip(beside, key)
        )
        squares = HeatMap(values.to_numpy(float), bar, texts=labels, diverging=signed, written=True)
        plots.append(Plot([squares], axes[across], axes[down], title))
    return Figure(plots, 130 + ROW_HEIGHT * len(order[down]))


pages.register("sweep")(Page(render, panels))
