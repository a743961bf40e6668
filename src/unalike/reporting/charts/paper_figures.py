"""The report's charts for papers and slides: SVG and PDF by Matplotlib, with the colors, markers and dashes of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from unalike._utils.errors import UnalikeError
from unalike._utils.spec import slug
from unalike.metrics.named_metrics import Metric
from unalike.metrics.ranks import Ranks
from unalike.reporting import wording
from unalike.reporting.charts.palette import Look, looks
from unalike.reporting.charts.plotly_charts import MODEL_SUFFIX, over_seeds
from unalike.reporting.charts.rank_diagram import LONGEST, STEP, diagram
from unalike.reporting.content import MODELS, ReportContent
from unalike.reporting.rows import rows
from unalike.reporting.tradeoff import PAIRS, on_front, stairs, tradeoff

Looks = dict[str, Look]

INK, MUTED, LINE = "#1f2733", "#5c6675", "#d9d7d0"
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X", "star": "*"}
_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": "-.",
    "longdash": (0, (9, 2)),
}
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


def save(contents: Sequence[tuple[str, ReportContent]], found: Ranks | None, folder: Path) -> Path:
    """Write every figure of every comparison, and the ranks over them, as SVG and PDF.

    Args:
        contents: (name, content) of each comparison.
        found: ranks over the comparisons; None if there are none.
        folder: the folder to write to; it is made if it does not exist.

    Returns:
        The folder.

    Raises:
        UnalikeError: if the figures cannot be written.
    """
    shared = looks(list(dict.fromkeys(label for _, content in contents for label in content.labels)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with rc_context(STYLE):
            prefixes = _file_prefixes([name for name, _ in contents])
            for (_, content), prefix in zip(contents, prefixes):
                for name, figure in figures(content, shared):
                    _write(figure, folder / f"{prefix}{name}")
            if found is not None:
                _write(ranks(found, shared), folder / "ranks")
    except OSError as error:
        raise UnalikeError(f"cannot write figures into {folder}: {error.strerror}; give a folder with room") from None
    return folder


def figures(content: ReportContent, style: Looks | None = None) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each chart that has data, protocol by protocol."""
    style = style or looks(content.labels)
    metric, scale = content.metric, 100 if content.metric.percent else 1
    rounds, clients, table = content.rounds, content.clients, content.summary
    for protocol, score in content.scores.items():
        own, suffix = table[table["protocol"] == protocol], "" if score.plain else f"-{protocol}"
        column, unit = score.name, f"{metric.word}{' (%)' if scale == 100 else ''}"
        if own.empty:
            continue
        if own["difference"].notna().any():
            yield f"differences{suffix}", forest(own[own["difference"].notna()], content.baseline, metric, style)
        yield f"curves{suffix}", curves(rounds, column, f"{unit}, {MODELS[protocol]}", style, scale)
        if column in clients and clients[column].notna().any():
            yield f"clients{suffix}", distribution(clients, column, f"{unit} of one client", style, scale)
        traded = tradeoff(own, metric)
        if len(traded) > 1:
            yield f"pareto{suffix}", pareto(traded, metric, unit, style, scale)


def forest(table: pd.DataFrame, baseline: str, metric: Metric, style: Looks) -> Figure:
    """Forest plot: differences to the baseline with their 95 % intervals."""
    scale = 100 if metric.percent else 1
    unit = "percentage points" if scale == 100 else metric.word
    title = f"difference in {metric.word} to {baseline} ({unit})"
    bars = [(r["method"], *(scale * r[k] for k in ("difference", "ci_low", "ci_high"))) for r in rows(table)]
    figure, axes = _bars(bars, title, style)
    axes.axvline(0, color=MUTED, linewidth=1, linestyle=":", zorder=0)
    return figure


def ranks(found: Ranks, style: Looks) -> Figure:
    """The critical-difference diagram; see `rank_diagram`."""
    drawn = diagram(found)
    names = [wording.short(method.name, LONGEST) for method in drawn.methods]
    width = 3.4 + 0.16 * max(map(len, names))
    figure = Figure(figsize=(width, 0.27 * (1.9 - drawn.bottom)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(0.9, drawn.end + 0.1)
    axes.set_ylim(drawn.bottom - 0.4, 1.5)
    line: dict[str, Any] = {"color": MUTED, "linewidth": 1, "clip_on": False}
    axes.plot([1, len(drawn.methods)], [0, 0], **line)
    for place in drawn.places:
        axes.plot([place, place], [0, 0.14], **line)
        axes.text(place, 0.2, str(place), ha="center", va="bottom", color=MUTED)
    axes.errorbar([1 + found.critical / 2], [1], xerr=found.critical / 2, color=MUTED, capsize=3, fmt="none")
    axes.text(1 + found.critical / 2, 1.1, f"CD = {found.critical:.2f}", ha="center", va="bottom", color=MUTED)
    for bar in drawn.bars:
        y = -STEP * (bar.level + 1)
        axes.plot([bar.low - 0.04, bar.high + 0.04], [y, y], color=INK, linewidth=3, solid_capstyle="butt", zorder=3)
    for name, method in zip(names, drawn.methods):
        along, down = drawn.line(method)
        axes.plot(along, down, markevery=[-1], clip_on=False, **line_style(style[method.name]))
        side, shift = ("right", -7) if method.left else ("left", 7)
        axes.annotate(
            f"{name}  {method.rank:.2f}", (along[-1], down[-1]), (shift, 0), textcoords="offset points",
            ha=side, va="center", color=INK, annotation_clip=False,
        )  # fmt: skip
    return figure


def curves(rounds: pd.DataFrame, column: str, title: str, style: Looks, scale: float) -> Figure:
    """Mean over seeds by round, with a band of one standard deviation."""
    figure, axes = _canvas(5.2, 3.4)
    for name, look in style.items():
        line = over_seeds(rounds[rounds["method"] == name], column, scale)
        if len(line):
            axes.fill_between(
                line["round"],
                line["mean"] - line["sd"],
                line["mean"] + line["sd"],
                color=look.color,
                alpha=0.12,
                linewidth=0,
            )
            axes.plot(line["round"], line["mean"], label=name, markevery=max(1, len(line) // 7), **line_style(look))
    axes.set_xlabel("round")
    axes.set_ylabel(title)
    _legend(figure, axes)
    return figure


def distribution(clients: pd.DataFrame, column: str, title: str, style: Looks, scale: float) -> Figure:
    """A box plot for each method, with one dot for each client and seed."""
    scored = clients.dropna(subset=[column])
    names = [name for name in style if name in set(scored["method"])]
    figure, axes = _method_axes(names, title)
    generator = np.random.default_rng(0)
    for i, name in enumerate(names):
        look, values = style[name], (scale * scored.loc[scored["method"] == name, column]).to_numpy(dtype=float)
        values = values[np.isfinite(values)]  # the model of a client may have diverged
        heights = i + generator.uniform(-0.16, 0.16, len(values))
        axes.scatter(values, heights, s=9, color=look.color, alpha=0.45, linewidths=0)
        if len(values):
            _box(axes, i, values, look.color)
    _label_rows(axes, names)
    return figure


def _box(axes: Any, y: float, values: np.ndarray, color: str) -> None:
    """A horizontal box from the first to the third quartile, with whiskers to the last value within 1.5 times its width.

    Matplotlib's own `boxplot` is not used because its option for horizontal boxes has different names in different versions.
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    inside = values[(values >= low - 1.5 * (high - low)) & (values <= high + 1.5 * (high - low))]
    line = {"color": color, "linewidth": 1.4}
    axes.plot([low, high, high, low, low], [y - 0.25, y - 0.25, y + 0.25, y + 0.25, y - 0.25], **line)
    axes.plot([middle, middle], [y - 0.25, y + 0.25], color=color, linewidth=2.4)
    for end, edge in ((inside.min(), low), (inside.max(), high)):
        axes.plot([end, edge], [y, y], **line)


def pareto(table: pd.DataFrame, metric: Metric, unit: str, style: Looks, scale: float) -> Figure:
    """The worst tenth of the clients, traffic and time against accuracy. Hollow markers are not on the Pareto front."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    titles = {"score": unit, "worst": f"worst tenth, {unit}", "mb": "MB to and from all clients", "seconds": "seconds"}
    scales = {"score": scale, "worst": scale, "mb": 1.0, "seconds": 1.0}
    for axes, (x, y) in zip(figure.subplots(1, 3), PAIRS):
        style_axes(axes)
        table = table.assign(front=on_front(table, x, y, metric))
        edge = table[table["front"]].sort_values(x)
        steps = {"hv": "steps-post", "vh": "steps-pre"}[stairs(x, metric)]
        axes.plot(scales[x] * edge[x], scales[y] * edge[y], color=MUTED, linestyle=":", linewidth=1.2, drawstyle=steps)
        for row in rows(table):
            look = style[row["method"]]
            face = look.color if row["front"] else "none"
            label = row["method"] + MODEL_SUFFIX.get(row["protocol"], "")
            axes.scatter(
                scales[x] * row[x], scales[y] * row[y], s=55, marker=_MARKERS.get(look.marker, "h"), facecolors=face,
                edgecolors=look.color, linewidths=1.8, label=label, zorder=3,
            )  # fmt: skip
        axes.margins(0.12)
        axes.set_xlabel(titles[x])
        axes.set_ylabel(titles[y])
    _legend(figure, axes)
    return figure


def _bars(bars: list[tuple[str, float, float, float]], title: str, style: Looks) -> tuple[Figure, Any]:
    """One marker with an error bar for each (method, middle, low, high), top to bottom."""
    names = [name for name, *_ in bars]
    figure, axes = _method_axes(names, title)
    for i, (name, middle, low, high) in enumerate(bars):
        look = style[name]
        arms = None if np.isnan(low) else [[middle - low], [high - middle]]
        axes.errorbar(
            [middle], [i], xerr=arms, color=look.color, marker=_MARKERS.get(look.marker, "h"), markersize=6, capsize=3,
            elinewidth=1.8, capthick=1.8,
        )  # fmt: skip
    _label_rows(axes, names)
    return figure, axes


def _method_axes(names: list[str], title: str) -> tuple[Figure, Any]:
    figure, axes = _canvas(5.2, 0.9 + 0.36 * len(names))
    axes.set_xlabel(title)
    return figure, axes


def _label_rows(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), [wording.short(name) for name in names], color=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _canvas(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    style_axes(axes)
    return figure, axes


def style_axes(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def line_style(look: Look) -> dict[str, Any]:
    mark = {"marker": _MARKERS.get(look.marker, "h"), "markersize": 4}
    return {"color": look.color, "linestyle": _DASHES[look.dash], "linewidth": 1.6} | mark


def _legend(figure: Figure, axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    columns = max(1, min(len(names), int(figure.get_figwidth() // 1.7)))
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, lines - 2))  # a long legend does not shrink the axes
    figure.legend(
        handles,
        [wording.short(name) for name in names],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
    )


def _write(figure: Figure, path: Path) -> None:
    """Write SVG and PDF without a date: the same results give the same files."""
    figure.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None})
    figure.savefig(path.with_name(path.name + ".pdf"), metadata={"CreationDate": None})


def _file_prefixes(names: list[str]) -> list[str]:
    """The start of each comparison's file names. Numbers are added if two names are the same in a file name."""
    if len(names) == 1:
        return [""]
    slugs = [slug(name) for name in names]
    if len(set(slugs)) == len(slugs):
        return [f"{own}-" for own in slugs]
    return [f"{i}-{own}-" for i, own in enumerate(slugs, 1)]
