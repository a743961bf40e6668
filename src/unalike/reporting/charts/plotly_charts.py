"""The Plotly charts of the page. Each function takes tables and the methods' looks and returns a figure."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from unalike.metrics.costs import cumulative
from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look
from unalike.reporting.charts.plotly_canvas import canvas, named_rows, numbers, text, thin
from unalike.reporting.rows import rows
from unalike.reporting.tradeoff import on_front, stairs

Looks = dict[str, Look]

MOST_BANDS = 8
"""Most methods with bands; more bands would hide the lines."""
MOST_DOTS = 3000
"""Most dots of a distribution chart, since a browser draws each as an element; with more clients, only boxes are drawn."""
MOST_BUBBLES = (40, 30)
"""Most clients and classes shown as bubbles; larger tables are shown as a heat map."""


_BLUE = [[0, "rgba(26,128,187,0)"], [1, "rgba(26,128,187,1)"]]
"""From the background, light or dark, to blue."""


def forest(differences: pd.DataFrame, metric: Metric, looks: Looks) -> go.Figure:
    """Differences to the baseline with their intervals, one row per method: `method difference ci_low ci_high`."""
    scale = _scale(metric)
    names = [str(name) for name in differences["method"]]
    figure = named_rows(names, 54)
    for i, row in enumerate(rows(differences)):
        mean, low, high = (scale * row[name] for name in ("difference", "ci_low", "ci_high"))
        arms = {
            "type": "data",
            "symmetric": False,
            "array": numbers([high - mean]),
            "arrayminus": numbers([mean - low]),
        }
        look = looks[row["method"]]
        figure.add_scatter(
            x=numbers([mean]),
            y=[len(names) - 1 - i],
            mode="markers",
            marker={"color": look.color, "size": 11, "symbol": look.marker},
            error_x=arms | {"color": look.color, "thickness": 2.5, "width": 6},
            meta=text(row["method"]),
            customdata=[[*numbers([low, high])]],
            hovertemplate="%{meta}<br>%{x:+.2f} (%{customdata[0]:+.2f} to %{customdata[1]:+.2f})<extra></extra>",
        )
    figure.add_vline(x=0, line={"width": 1.5, "dash": "dot", "color": "#888888"})
    figure.update_xaxes(title_text=_direction(metric), zeroline=False)
    return figure


def curves(rounds: pd.DataFrame, column: str, title: str, looks: Looks, scale: float = 1) -> go.Figure:
    """Mean over seeds by round, with a band of one standard deviation if there are several seeds."""
    figure = canvas(430)
    shown = {name: over_seeds(rounds[rounds["method"] == name], column, scale) for name in looks}
    for name, line in shown.items():
        if len(line) and line["sd"].notna().any() and len(looks) <= MOST_BANDS:
            figure.add_scatter(**_band(line, looks[name]))
    for name, line in shown.items():
        if len(line):
            figure.add_scatter(**_line(line["round"], line["mean"], name, looks[name], "round %{x}<br>%{y:.4g}"))
    figure.update_xaxes(title_text="round", rangemode="tozero")
    figure.update_yaxes(title_text=title)
    return figure


def client_lines(rounds: pd.DataFrame, column: str, title: str, look: Look, scale: float = 1) -> go.Figure:
    """One thin line per client by round, and their mean as a thick one: `round client` and the column."""
    figure = canvas(430)
    for client, own in rounds.dropna(subset=[column]).groupby("client", sort=False):
        figure.add_scatter(
            x=numbers(own["round"]),
            y=numbers(scale * own[column]),
            mode="lines",
            line={"color": look.faded(0.45), "width": 1.25},
            meta=text(client),
            hovertemplate="%{meta}<br>round %{x}<br>%{y:.4g}<extra></extra>",
        )
    mean = rounds.groupby("round")[column].mean().dropna()
    drawn = _line(pd.Series(mean.index), scale * mean, "mean of the clients", look, "round %{x}<br>%{y:.4g}")
    figure.add_scatter(**drawn | {"line": {"color": look.color, "width": 3}})
    figure.update_xaxes(title_text="round", rangemode="tozero")
    figure.update_yaxes(title_text=title)
    return figure


def class_scores(shares: dict[str, pd.Series], looks: Looks) -> go.Figure:
    """One marker per method and class: the share of right predictions among the samples of the class, in per cent."""
    figure, classes = canvas(430), list(dict.fromkeys(name for found in shares.values() for name in found.index))
    apart = 0.5 / max(1, len(shares))  # side by side, since methods often agree
    for i, (name, found) in enumerate(shares.items()):
        look, shift = looks[name], apart * (i - (len(shares) - 1) / 2)
        figure.add_scatter(
            x=[classes.index(label) + shift for label in found.index],
            y=numbers(100 * found),
            mode="markers",
            legendgroup=look.key,
            marker={"color": look.color, "symbol": look.marker, "size": 9},
            meta=text(name),
            text=[text(f"class {label}") for label in found.index],
            hovertemplate="%{meta}<br>%{text}: %{y:.4g} %<extra></extra>",
        )
    figure.update_xaxes(title_text="class", zeroline=False, **_ticks(pd.Index(classes)))
    figure.update_yaxes(title_text="accuracy on the class (%)", range=[-3, 103], zeroline=False)
    return figure


def confusion(counts: pd.DataFrame) -> go.Figure:
    """Classes (rows) by predicted classes (columns); darker is a larger share of the class."""
    shares = 100 * counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
    figure = canvas(min(760, max(430, 140 + 11 * len(counts))))
    figure.add_heatmap(
        z=[numbers(row) for row in shares.to_numpy()],
        text=[[text(f"class {a}, predicted {b}: {n}") for b, n in row.items()] for a, row in counts.iterrows()],
        hovertemplate="%{text} (%{z:.3g} %)<extra></extra>",
        zmin=0,
        zmax=100,
        colorscale=_BLUE,
        colorbar={"title": {"text": "% of class"}, "thickness": 12, "outlinewidth": 0},
    )
    figure.update_xaxes(title_text="predicted class", showgrid=False, zeroline=False, **_ticks(counts.columns))
    figure.update_yaxes(
        title_text="class", autorange="reversed", showgrid=False, zeroline=False, **_ticks(counts.index)
    )
    return figure


def distribution(clients: pd.DataFrame, column: str, title: str, looks: Looks, scale: float = 1) -> go.Figure:
    """Clients by method: a box plot, and one dot for each client and seed."""
    scored = clients.dropna(subset=[column])
    names = [name for name in looks if name in set(scored["method"])]
    figure = named_rows(names, 74)
    for i, name in enumerate(names):
        own, look = scored[scored["method"] == name], looks[name]
        figure.add_box(
            x=numbers(scale * own[column]),
            y0=len(names) - 1 - i - 0.1,
            orientation="h",
            width=0.36,
            boxpoints="all" if len(scored) <= MOST_DOTS else "outliers",
            jitter=0.7,
            pointpos=0,
            line={"color": look.color, "width": 1.5},
            fillcolor=look.faded(0.12),
            marker={"color": look.faded(0.55), "size": 5, "symbol": look.marker},
            meta=text(name),
            text=[text(f"{client}, seed {seed}") for client, seed in zip(own["client"], own["seed"])],
            hovertemplate="%{meta}<br>%{text}<br>%{x:.4g}<extra></extra>",
            hoveron="points",
        )
    figure.update_xaxes(title_text=title, zeroline=False)
    return figure


def labels(counts: pd.DataFrame) -> go.Figure:
    """Training samples by client and class: bubbles with the count as area, or a heat map for large tables."""
    clients, classes = counts.shape
    figure = _bubbles(counts) if clients <= MOST_BUBBLES[0] and classes <= MOST_BUBBLES[1] else _heat_map(counts)
    figure.update_xaxes(title_text="class", zeroline=False)
    figure.update_yaxes(zeroline=False)
    return figure


def cost(rounds: pd.DataFrame, spent: str, title: str, column: str, goal: str, looks: Looks, scale: float) -> go.Figure:
    """Score by the cost so far (`mb` or `seconds`), mean over seeds."""
    totals = cumulative(rounds).assign(mb=lambda frame: frame["mb_down"] + frame["mb_up"])
    figure = canvas(430)
    for name, look in looks.items():
        own = totals[totals["method"] == name].dropna(subset=[column])
        line = thin(common(own).groupby("round")[[spent, column]].mean())
        if len(line):
            figure.add_scatter(**_line(line[spent], scale * line[column], name, look, "%{x:.4g} → %{y:.4g}"))
    figure.update_xaxes(title_text=title, rangemode="tozero")
    figure.update_yaxes(title_text=goal)
    return figure


def pareto(
    table: pd.DataFrame,
    x: str,
    y: str,
    metric: Metric,
    titles: tuple[str, str],
    looks: Looks,
    scales: dict[str, float],
) -> go.Figure:
    """One marker for each row of `tradeoff`: filled on the Pareto front of the two columns, otherwise hollow."""
    figure, table = canvas(430), table.assign(front=on_front(table, x, y, metric))
    edge = table[table["front"]].sort_values(x)
    figure.add_scatter(
        x=numbers(scales.get(x, 1) * edge[x]),
        y=numbers(scales.get(y, 1) * edge[y]),
        mode="lines",
        line={"color": "#888888", "width": 1.5, "dash": "dot", "shape": stairs(x, metric)},
        hoverinfo="skip",
    )
    for row in rows(table):
        look, name = looks[row["method"]], row["method"] + MODEL_SUFFIX.get(row["protocol"], "")
        figure.add_scatter(
            x=numbers([scales.get(x, 1) * row[x]]),
            y=numbers([scales.get(y, 1) * row[y]]),
            mode="markers",
            legendgroup=look.key,
            marker={
                "color": look.color if row["front"] else "rgba(0,0,0,0)",
                "symbol": look.marker,
                "size": 14,
                "line": {"width": 2.5, "color": look.color},
            },
            meta=text(name),
            hovertemplate="%{meta}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
            cliponaxis=False,
        )
    figure.update_xaxes(title_text=titles[0], zeroline=False)
    figure.update_yaxes(title_text=titles[1], zeroline=False)
    return figure


MODEL_SUFFIX = {"personal": " (personal)", "local": " (local)"}
"""Suffix of a method's name if its row is not about the shared model."""


def over_seeds(rounds: pd.DataFrame, column: str, scale: float = 1) -> pd.DataFrame:
    """`round mean sd` for the rounds that every seed reached, thinned. A mean over fewer seeds would jump."""
    line = common(rounds.dropna(subset=[column])).groupby("round")[column].agg(["mean", "std"])
    scaled = pd.DataFrame({"round": line.index, "mean": scale * line["mean"], "sd": scale * line["std"]})
    return thin(scaled.reset_index(drop=True))


def common(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of one method in the rounds that every seed has. After the end of a seed, the mean would be biased."""
    return rounds[rounds.groupby("round")["seed"].transform("nunique") == rounds["seed"].nunique()]


def _line(x: pd.Series, y: pd.Series, name: str, look: Look, hover: str) -> dict[str, object]:
    return {
        "x": numbers(x),
        "y": numbers(y),
        "mode": "lines+markers",
        "legendgroup": look.key,
        "line": {"color": look.color, "dash": look.dash, "width": 2.25},
        "marker": {"color": look.color, "symbol": look.marker, "size": 7, "maxdisplayed": 9},
        "meta": text(name),
        "hovertemplate": "%{meta}<br>" + hover + "<extra></extra>",
    }


def _band(line: pd.DataFrame, look: Look) -> dict[str, object]:
    line = line[np.isfinite(line["mean"]) & np.isfinite(line["sd"])]  # a gap would break the outline
    outline = pd.concat([line["mean"] + line["sd"], (line["mean"] - line["sd"])[::-1]])
    return {
        "x": numbers(pd.concat([line["round"], line["round"][::-1]])),
        "y": numbers(outline),
        "fill": "toself",
        "fillcolor": look.faded(0.13),
        "line": {"width": 0},
        "mode": "lines",
        "legendgroup": look.key,
        "hoverinfo": "skip",
    }


def _bubbles(counts: pd.DataFrame) -> go.Figure:
    height, columns = counts.shape
    values = counts.to_numpy(dtype=int)
    cells = [(j, i, int(values[i, j])) for i in range(height) for j in range(columns) if values[i, j] > 0]
    widest = min(26, 300 / columns)
    size = {"sizemode": "area", "sizeref": 2 * max(c for *_, c in cells) / widest**2, "sizemin": 1.5} if cells else {}
    figure = canvas(80 + 27 * height, margin={"l": 12, "r": 14, "t": 12, "b": 50})
    figure.add_scatter(
        x=[j for j, _, _ in cells],
        y=[i for _, i, _ in cells],
        mode="markers",
        marker={"size": [c for *_, c in cells], "color": "#1A80BB", "opacity": 0.8, "line": {"width": 0}} | size,
        text=[text(f"{counts.index[i]}, class {counts.columns[j]}: {c}") for j, i, c in cells],
        hovertemplate="%{text}<extra></extra>",
    )
    figure.update_xaxes(range=[-0.7, columns - 0.3], **_ticks(counts.columns))
    figure.update_yaxes(range=[height - 0.3, -0.7], **_ticks(counts.index))
    return figure


def _heat_map(counts: pd.DataFrame) -> go.Figure:
    height, columns = counts.shape
    figure = canvas(min(760, 120 + 9 * height))
    figure.add_heatmap(
        z=[[int(count) for count in row] for row in counts.to_numpy(dtype=int)],
        text=[[text(f"{client}, class {label}") for label in counts.columns] for client in counts.index],
        hovertemplate="%{text}: %{z}<extra></extra>",
        colorscale=_BLUE,
        colorbar={"title": {"text": "samples"}, "thickness": 12, "outlinewidth": 0},
    )
    figure.update_xaxes(**(_ticks(counts.columns) if columns <= MOST_BUBBLES[1] else {}))
    figure.update_yaxes(autorange="reversed", title_text="client")
    return figure


def _ticks(names: pd.Index) -> dict[str, object]:
    return {"tickvals": list(range(len(names))), "ticktext": [text(wording.short(str(name), 14)) for name in names]}


def _scale(metric: Metric) -> float:
    return 100 if metric.percent else 1


def _direction(metric: Metric) -> str:
    unit = "percentage points" if metric.percent else metric.word
    return f"← worse · {unit} · better →" if metric.sign > 0 else f"← better · {unit} · worse →"
