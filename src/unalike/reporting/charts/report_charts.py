"""The charts of the report. Each function takes tables and the methods' looks and returns a figure."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from unalike.client_devices.simulated_clock import COUNTED_LATER, LATE, LEFT, LOST, REFUSED, TRAINED
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
from unalike.reporting.charts.palette import (
    AMBER,
    BLUE,
    COLORS,
    GREY,
    LIGHT_BLUE,
    ORANGE,
    PINK,
    Look,
    Looks,
    look_of_color,
    looks,
)
from unalike.statistics.costs import GOODS, cumulative, on_front, stairs

MAX_POINTS = 150
"""Most points of a line; a line of 1,200 pixels cannot show more."""
MAX_BANDS = 8
"""Most methods with bands; more bands would hide the lines."""
MAX_DOTS = 3000
"""Most dots of a distribution chart, since a browser draws each as an element; with more clients, only boxes are drawn."""
MAX_BUBBLE_ROWS = 40
"""Most clients shown as bubbles; larger tables are shown as a heat map."""
MAX_BUBBLE_COLUMNS = 30
"""Most classes shown as bubbles."""
MAX_HEIGHT = 760
"""Height of the largest chart, in pixels."""
ROUND_AXIS = Axis("round", word="round ", form="", from_zero=True)
TURN_WIDTH = 7.0
"""Width of a bar of a timeline, in pixels."""
MAX_TURNS = 1000
"""Most bars of a timeline; in a longer one a bar would be narrower than a pixel."""
FATE_LOOKS = {
    TRAINED: look_of_color(BLUE),
    COUNTED_LATER: look_of_color(LIGHT_BLUE),
    LATE: look_of_color(ORANGE),
    LOST: look_of_color(PINK),
    REFUSED: look_of_color(AMBER),
    LEFT: look_of_color(GREY),
}
"""What became of a client that was asked -> the look of its bar in a timeline."""
MODEL_SUFFIX = {"personal": " (personal)", "local": " (local)"}
"""Suffix of a method's name if its row is not about the shared model."""
FRONT_LOOK = Look("", "#888888", "dot", "circle")


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
    x = Axis(_direction(baseline, metric), form="+.2f")
    return rows_plot(names, [*marks, Rule(0)], x, row_height=54)


def curves(rounds: pd.DataFrame, column: str, title: str, looks: Looks, scale: float = 1) -> Figure:
    """Mean over seeds by round, with a band of one standard deviation if there are several seeds."""
    lines = {name: over_seeds(rounds[rounds["method"] == name], column, scale) for name in looks}
    has_bands = len(looks) <= MAX_BANDS
    marks = [
        _curve(line, name, looks[name], has_bands) for name, line in lines.items() if len(line)
    ]
    return plot(marks, ROUND_AXIS, Axis(title))


def _curve(line: pd.DataFrame, name: str, look: Look, has_band: bool) -> Line:
    middle = Line(look=look, label=name, x=line["round"].tolist(), y=line["mean"].tolist())
    if not has_band or line["sd"].isna().all():
        return middle
    low = line["mean"] - line["sd"]
    high = line["mean"] + line["sd"]
    return replace(middle, low=low.tolist(), high=high.tolist())


def client_lines(
    rounds: pd.DataFrame, column: str, title: str, look: Look, scale: float = 1
) -> Figure:
    """One thin line per client by round, named if there are colors for all, and their mean as a thick one."""
    clients = [str(client) for client in rounds["client"].unique()]
    look_of_client = looks(clients) if len(clients) <= len(COLORS) else {}
    faint = look_of_color(look.faded(0.45))
    lines = []
    for client, of_client in rounds.dropna(subset=[column]).groupby("client", sort=False):
        thin_look = faint
        if look_of_client:
            # without the key of a method, which other charts hide and show by
            thin_look = replace(look_of_client[str(client)], key="")
        line = Line(
            look=thin_look,
            label=str(client),
            x=of_client["round"].tolist(),
            y=(scale * of_client[column]).tolist(),
            markers=False,
            width=1.25,
        )
        lines.append(line)
    mean = rounds.groupby("round")[column].mean().dropna()
    thick = Line(
        look=look,
        label="mean of the clients",
        x=mean.index.tolist(),
        y=(scale * mean).tolist(),
        width=3,
    )
    return plot([*lines, thick], ROUND_AXIS, Axis(title), legend=bool(look_of_client))


def class_scores(shares: Mapping[str, pd.Series], looks: Looks) -> Figure:
    """One marker per method and class: the share of right predictions among the samples of the class, in per cent."""
    classes = list(dict.fromkeys(label for share in shares.values() for label in share.index))
    # side by side, since methods often agree
    distance = 0.5 / max(1, len(shares))
    marks = []
    for i, (method, share) in enumerate(shares.items()):
        shift = distance * (i - (len(shares) - 1) / 2)
        points = Points(
            look=looks[method],
            label=method,
            x=[classes.index(label) + shift for label in share.index],
            y=(100 * share).tolist(),
            texts=[f"class {label}" for label in share.index],
        )
        marks.append(points)
    y = Axis("accuracy on the class (%)", limits=(-3, 103))
    return plot(marks, Axis("class", named(classes)), y)


def confusion(counts: pd.DataFrame) -> Figure:
    """Classes (rows) by predicted classes (columns); darker is a larger share of the class."""
    shares = 100 * counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
    texts = []
    for label, row in counts.iterrows():
        texts.append([f"class {label}, predicted {other}: {n}" for other, n in row.items()])
    squares = HeatMap(shares.to_numpy(), "% of class", limits=(0, 100), texts=texts)
    x = Axis("predicted class", named(counts.columns))
    y = Axis("class", named(counts.index), reverse=True)
    height = min(MAX_HEIGHT, max(430, 140 + 11 * len(counts)))
    return plot([squares], x, y, height)


def distribution(
    clients: pd.DataFrame, column: str, title: str, looks: Looks, scale: float = 1
) -> Figure:
    """Clients by method: a box plot, and one dot for each client and seed."""
    scored = clients.dropna(subset=[column])
    names = [name for name in looks if name in set(scored["method"])]
    marks = []
    for i, name in enumerate(names):
        rows = scored[scored["method"] == name]
        box = Box(
            look=looks[name],
            label=name,
            row=i,
            values=(scale * rows[column]).tolist(),
            texts=[f"{client}, seed {seed}" for client, seed in zip(rows["client"], rows["seed"])],
            dots=len(scored) <= MAX_DOTS,
        )
        marks.append(box)
    return rows_plot(names, marks, Axis(title), row_height=74)


def labels(counts: pd.DataFrame, what: str = "class") -> Figure:
    """Training samples by client and class: bubbles with the count as area, or a heat map for large tables."""
    x = Axis(what, named(counts.columns))
    y = Axis(ticks=named(counts.index), reverse=True)
    clients, classes = counts.shape
    if clients <= MAX_BUBBLE_ROWS and classes <= MAX_BUBBLE_COLUMNS:
        return _bubbles(counts, x, y)
    return _heat_map(counts, x, y)


def sizes(samples: pd.Series) -> Figure:
    """Training samples by client as bars, for labels that are no classes."""
    values = samples.tolist()
    bars = Bars(
        look=look_of_color(BLUE), y=list(range(len(values))), values=values, low=values, high=values
    )
    x = Axis("training samples", from_zero=True)
    y = Axis(ticks=named(samples.index), reverse=True)
    return plot([bars], x, y, height=min(MAX_HEIGHT, 120 + 9 * len(values)))


def _bubbles(counts: pd.DataFrame, x: Axis, y: Axis) -> Figure:
    clients, classes = counts.shape
    values = counts.to_numpy(dtype=int)
    rows, columns = (places.tolist() for places in np.nonzero(values > 0))
    circle_counts = [int(values[i, j]) for i, j in zip(rows, columns)]
    texts = [
        f"{counts.index[i]}, class {counts.columns[j]}: {count}"
        for i, j, count in zip(rows, columns, circle_counts)
    ]
    circles = Bubbles(
        look=look_of_color(BLUE),
        x=columns,
        y=rows,
        counts=circle_counts,
        widest=min(26, 300 / classes),
        texts=texts,
    )
    # circles at the edge are not cut
    x = replace(x, limits=(-0.7, classes - 0.3))
    y = replace(y, limits=(-0.7, clients - 0.3))
    return plot([circles], x, y, height=80 + 27 * clients)


def _heat_map(counts: pd.DataFrame, x: Axis, y: Axis) -> Figure:
    texts = []
    for client in counts.index:
        texts.append([f"{client}, class {label}" for label in counts.columns])
    squares = HeatMap(counts.to_numpy(dtype=int), "samples", texts=texts, form="")
    return plot([squares], x, y, height=min(MAX_HEIGHT, 120 + 9 * len(counts)))


def cost(
    rounds: pd.DataFrame, spent: str, title: str, column: str, goal: str, looks: Looks, scale: float
) -> Figure:
    """Score by the cost so far (`mb`, `seconds`, `simulated_seconds`), mean over seeds."""
    totals = cumulative(rounds)
    totals = totals.assign(mb=totals["mb_down"] + totals["mb_up"])
    marks = []
    for name, look in looks.items():
        rows = totals[totals["method"] == name].dropna(subset=[column])
        line = thin(common(rows).groupby("round")[[spent, column]].mean())
        if len(line):
            scores = scale * line[column]
            marks.append(Line(look=look, label=name, x=line[spent].tolist(), y=scores.tolist()))
    return plot(marks, Axis(title, from_zero=True), Axis(goal))


def timeline(turns: pd.DataFrame, clock: str) -> Figure:
    """One row per client, with a bar from each request to its update, or to the end of waiting for it: `History.timeline`.

    `clock` says whose seconds these are.
    """
    clients = turns["client"].unique().tolist()
    bars = []
    for fate, look in FATE_LOOKS.items():
        x: list[float] = []
        y: list[float] = []
        texts: list[str] = []
        for turn in turns[turns["fate"] == fate].to_dict("records"):
            place = clients.index(turn["client"])
            # the point without a place ends the bar
            x += [turn["begun"], turn["ended"], np.nan]
            y += [place, place, np.nan]
            texts += 3 * [f"{turn['client']}, round {turn['round']}"]
        if x:
            bars.append(
                Line(look=look, label=fate, x=x, y=y, texts=texts, markers=False, width=TURN_WIDTH)
            )
    seconds = Axis(f"{clock} since the run began", from_zero=True)
    rows = Axis(ticks=named(clients), limits=(-0.7, len(clients) - 0.3), reverse=True)
    return plot(bars, seconds, rows, height=min(MAX_HEIGHT, 130 + 18 * len(clients)))


def pareto(
    table: pd.DataFrame, x: str, y: str, metric: Metric, titles: Mapping[str, str], looks: Looks
) -> Plot:
    """One marker for each row of `tradeoff`: filled on the Pareto front of the two columns, otherwise hollow."""
    scales = dict.fromkeys(GOODS, metric.scale)
    table = table.assign(front=on_front(table, x, y, metric))
    table = table.assign(x=scales.get(x, 1.0) * table[x], y=scales.get(y, 1.0) * table[y])
    edge = table[table["front"]].sort_values("x")
    front = Line(
        look=FRONT_LOOK,
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
    columns = {"round": line.index, "mean": scale * line["mean"], "sd": scale * line["std"]}
    return thin(pd.DataFrame(columns).reset_index(drop=True))


def common(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of one method in the rounds that every seed has. After the end of a seed, the mean would be biased."""
    seeds_of_round = rounds.groupby("round")["seed"].transform("nunique")
    return rounds[seeds_of_round == rounds["seed"].nunique()]


def thin(table: pd.DataFrame, limit: int = MAX_POINTS) -> pd.DataFrame:
    """At most `limit` evenly spaced rows, including the first and the last."""
    if len(table) <= limit:
        return table
    places = np.linspace(0, len(table) - 1, limit).round().astype(int)
    return table.iloc[np.unique(places)]


def _direction(baseline: str, metric: Metric) -> str:
    unit = f"points of {metric.word}" if metric.percent else metric.word
    what = f"{unit} compared with {wording.short(baseline, 20)}"
    sides = "worse · better" if metric.sign > 0 else "better · worse"
    return f"{what}\n← {sides} →"
