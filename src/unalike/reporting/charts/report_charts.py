"""The charts of the report. Each function takes tables and the methods' looks and returns a figure."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.charts.figure import (
    Axis,
    Bars,
    Box,
    Bubbles,
    Figure,
    HeatMap,
    Line,
    Plot,
    Points,
    Rule,
    named,
    plot,
    rows_plot,
)
from unalike.reporting.charts.palette import BLUE, COLORS, Look, Looks, looks, plain
from unalike.statistics.costs import GOODS, cumulative, on_front, stairs

MOST_POINTS = 150
"""Most points of a line; a line of 1,200 pixels cannot show more."""
MOST_BANDS = 8
"""Most methods with bands; more bands would hide the lines."""
MOST_DOTS = 3000
"""Most dots of a distribution chart, since a browser draws each as an element; with more clients, only boxes are drawn."""
MOST_BUBBLES = (40, 30)
"""Most clients and classes shown as bubbles; larger tables are shown as a heat map."""
ROUNDS = Axis("round", word="round ", form="", from_zero=True)
MODEL_SUFFIX = {"personal": " (personal)", "local": " (local)"}
"""Suffix of a method's name if its row is not about the shared model."""
FRONT = Look("", "#888888", "dot", "circle")


def forest(differences: pd.DataFrame, baseline: str, metric: Metric, looks: Looks) -> Figure:
    """Differences to the baseline with their intervals, one row per method: `method difference ci_low ci_high`."""
    scale = metric.scale
    marks = [
        Points(
            look=looks[row["method"]],
            label=row["method"],
            x=[scale * row["difference"]],
            y=[i],
            low=[scale * row["ci_low"]],
            high=[scale * row["ci_high"]],
            size=11,
        )
        for i, row in enumerate(differences.to_dict("records"))
    ]
    names = [str(name) for name in differences["method"]]
    return rows_plot(names, [*marks, Rule(0)], Axis(_direction(baseline, metric), form="+.2f"), 54)


def curves(rounds: pd.DataFrame, column: str, title: str, looks: Looks, scale: float = 1) -> Figure:
    """Mean over seeds by round, with a band of one standard deviation if there are several seeds."""
    lines = {name: over_seeds(rounds[rounds["method"] == name], column, scale) for name in looks}
    banded = len(looks) <= MOST_BANDS
    marks = [_curve(line, name, looks[name], banded) for name, line in lines.items() if len(line)]
    return plot(marks, ROUNDS, Axis(title))


def _curve(line: pd.DataFrame, name: str, look: Look, banded: bool) -> Line:
    middle = Line(look=look, label=name, x=line["round"].tolist(), y=line["mean"].tolist())
    if not banded or line["sd"].isna().all():
        return middle
    return replace(
        middle, low=(line["mean"] - line["sd"]).tolist(), high=(line["mean"] + line["sd"]).tolist()
    )


def client_lines(
    rounds: pd.DataFrame, column: str, title: str, look: Look, scale: float = 1
) -> Figure:
    """One thin line per client by round, named if there are colors for all, and their mean as a thick one."""
    clients = [str(client) for client in rounds["client"].unique()]
    known = looks(clients) if len(clients) <= len(COLORS) else {}
    faint = plain(look.faded(0.45))
    lines = [
        Line(
            look=replace(known[str(client)], key="") if known else faint,
            label=str(client),
            x=own["round"].tolist(),
            y=(scale * own[column]).tolist(),
            markers=False,
            width=1.25,
        )
        for client, own in rounds.dropna(subset=[column]).groupby("client", sort=False)
    ]
    mean = rounds.groupby("round")[column].mean().dropna()
    thick = Line(
        look=look,
        label="mean of the clients",
        x=mean.index.tolist(),
        y=(scale * mean).tolist(),
        width=3,
    )
    return plot([*lines, thick], ROUNDS, Axis(title), legend=bool(known))


def class_scores(shares: Mapping[str, pd.Series], looks: Looks) -> Figure:
    """One marker per method and class: the share of right predictions among the samples of the class, in per cent."""
    classes = list(dict.fromkeys(name for found in shares.values() for name in found.index))
    apart = 0.5 / max(1, len(shares))  # side by side, since methods often agree
    marks = [
        Points(
            look=looks[name],
            label=name,
            x=[classes.index(label) + apart * (i - (len(shares) - 1) / 2) for label in found.index],
            y=(100 * found).tolist(),
            texts=[f"class {label}" for label in found.index],
        )
        for i, (name, found) in enumerate(shares.items())
    ]
    return plot(
        marks, Axis("class", named(classes)), Axis("accuracy on the class (%)", limits=(-3, 103))
    )


def confusion(counts: pd.DataFrame) -> Figure:
    """Classes (rows) by predicted classes (columns); darker is a larger share of the class."""
    shares = 100 * counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
    texts = [
        [f"class {a}, predicted {b}: {n}" for b, n in row.items()] for a, row in counts.iterrows()
    ]
    squares = HeatMap(shares.to_numpy(), "% of class", (0, 100), texts)
    x, y = (
        Axis("predicted class", named(counts.columns)),
        Axis("class", named(counts.index), reverse=True),
    )
    return plot([squares], x, y, min(760, max(430, 140 + 11 * len(counts))))


def distribution(
    clients: pd.DataFrame, column: str, title: str, looks: Looks, scale: float = 1
) -> Figure:
    """Clients by method: a box plot, and one dot for each client and seed."""
    scored = clients.dropna(subset=[column])
    names = [name for name in looks if name in set(scored["method"])]
    marks = []
    for i, name in enumerate(names):
        own = scored[scored["method"] == name]
        texts = [f"{client}, seed {seed}" for client, seed in zip(own["client"], own["seed"])]
        dots = len(scored) <= MOST_DOTS
        marks.append(
            Box(
                look=looks[name],
                label=name,
                row=i,
                values=(scale * own[column]).tolist(),
                texts=texts,
                dots=dots,
            )
        )
    return rows_plot(names, marks, Axis(title), 74)


def labels(counts: pd.DataFrame, what: str = "class") -> Figure:
    """Training samples by client and class: bubbles with the count as area, or a heat map for large tables."""
    x, y = Axis(what, named(counts.columns)), Axis(ticks=named(counts.index), reverse=True)
    clients, classes = counts.shape
    small = clients <= MOST_BUBBLES[0] and classes <= MOST_BUBBLES[1]
    return _bubbles(counts, x, y) if small else _heat_map(counts, x, y)


def sizes(samples: pd.Series) -> Figure:
    """Training samples by client as bars, for labels that are no classes."""
    values = samples.tolist()
    bars = Bars(
        look=plain(BLUE), y=list(range(len(values))), values=values, low=values, high=values
    )
    y = Axis(ticks=named(samples.index), reverse=True)
    return plot(
        [bars], Axis("training samples", from_zero=True), y, height=min(760, 120 + 9 * len(values))
    )


def _bubbles(counts: pd.DataFrame, x: Axis, y: Axis) -> Figure:
    height, columns = counts.shape
    values = counts.to_numpy(dtype=int)
    cells = [
        (j, i, int(values[i, j])) for i in range(height) for j in range(columns) if values[i, j] > 0
    ]
    circles = Bubbles(
        look=plain(BLUE),
        x=[j for j, _, _ in cells],
        y=[i for _, i, _ in cells],
        counts=[count for *_, count in cells],
        widest=min(26, 300 / columns),
        texts=[f"{counts.index[i]}, class {counts.columns[j]}: {count}" for j, i, count in cells],
    )
    x, y = replace(x, limits=(-0.7, columns - 0.3)), replace(y, limits=(-0.7, height - 0.3))
    return plot([circles], x, y, height=80 + 27 * height)


def _heat_map(counts: pd.DataFrame, x: Axis, y: Axis) -> Figure:
    texts = [[f"{client}, class {label}" for label in counts.columns] for client in counts.index]
    squares = HeatMap(counts.to_numpy(dtype=int), "samples", texts=texts, form="")
    return plot([squares], x, y, height=min(760, 120 + 9 * len(counts)))


def cost(
    rounds: pd.DataFrame, spent: str, title: str, column: str, goal: str, looks: Looks, scale: float
) -> Figure:
    """Score by the cost so far (`mb` or `seconds`), mean over seeds."""
    totals, marks = (
        cumulative(rounds).assign(mb=lambda frame: frame["mb_down"] + frame["mb_up"]),
        [],
    )
    for name, look in looks.items():
        own = totals[totals["method"] == name].dropna(subset=[column])
        line = thin(common(own).groupby("round")[[spent, column]].mean())
        if len(line):
            marks.append(
                Line(
                    look=look, label=name, x=line[spent].tolist(), y=(scale * line[column]).tolist()
                )
            )
    return plot(marks, Axis(title, from_zero=True), Axis(goal))


def pareto(
    table: pd.DataFrame, x: str, y: str, metric: Metric, titles: Mapping[str, str], looks: Looks
) -> Plot:
    """One marker for each row of `tradeoff`: filled on the Pareto front of the two columns, otherwise hollow."""
    scales = dict.fromkeys(GOODS, metric.scale)
    table = table.assign(front=on_front(table, x, y, metric))
    table = table.assign(x=scales.get(x, 1.0) * table[x], y=scales.get(y, 1.0) * table[y])
    edge = table[table["front"]].sort_values("x")
    front = Line(
        look=FRONT,
        x=edge["x"].tolist(),
        y=edge["y"].tolist(),
        markers=False,
        width=1.5,
        step=stairs(x, metric),
    )
    marks = [
        Points(
            look=looks[row["method"]],
            label=row["method"] + MODEL_SUFFIX.get(row["protocol"], ""),
            x=[row["x"]],
            y=[row["y"]],
            hollow=[not row["front"]],
            size=14,
        )
        for row in table.to_dict("records")
    ]
    return Plot([front, *marks], Axis(titles[x]), Axis(titles[y]))


def over_seeds(rounds: pd.DataFrame, column: str, scale: float = 1) -> pd.DataFrame:
    """`round mean sd` for the rounds that every seed reached, thinned. A mean over fewer seeds would jump."""
    line = common(rounds.dropna(subset=[column])).groupby("round")[column].agg(["mean", "std"])
    scaled = pd.DataFrame(
        {"round": line.index, "mean": scale * line["mean"], "sd": scale * line["std"]}
    )
    return thin(scaled.reset_index(drop=True))


def common(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of one method in the rounds that every seed has. After the end of a seed, the mean would be biased."""
    return rounds[rounds.groupby("round")["seed"].transform("nunique") == rounds["seed"].nunique()]


def thin(table: pd.DataFrame, limit: int = MOST_POINTS) -> pd.DataFrame:
    """At most `limit` evenly spaced rows, including the first and the last."""
    if len(table) <= limit:
        return table
    return table.iloc[np.unique(np.linspace(0, len(table) - 1, limit).round().astype(int))]


def _direction(baseline: str, metric: Metric) -> str:
    unit = f"points of {metric.word}" if metric.percent else metric.word
    what = f"{unit} compared with {wording.short(baseline, 20)}"
    return f"{what}\n← {'worse · better' if metric.sign > 0 else 'better · worse'} →"
