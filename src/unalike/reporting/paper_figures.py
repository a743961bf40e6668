"""The report's charts for papers and slides, as SVG and PDF."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.spec import slug
from unalike.reporting.charts import rank_diagram, report_charts
from unalike.reporting.charts.figure import Figure
from unalike.reporting.charts.matplotlib_figures import write
from unalike.reporting.charts.palette import Looks, looks
from unalike.reporting.content import ReportContent
from unalike.statistics.costs import PAIRS, tradeoff
from unalike.statistics.ranks import Ranks


def save(contents: Sequence[tuple[str, ReportContent]], ranks: Ranks | None, folder: Path) -> Path:
    """Write every figure of every comparison, and the ranks over them, as SVG and PDF.

    The folder is made if it does not exist; `ranks` is None if there are none. Raises `UnalikeError` if the figures cannot be
    written.
    """
    labels = dict.fromkeys(label for _, content in contents for label in content.labels)
    # a method has the same look in all figures
    shared = looks(list(labels))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        prefixes = _file_prefixes([name for name, _ in contents])
        for (_, content), prefix in zip(contents, prefixes):
            for name, figure in figures(content, shared):
                write(figure, folder / f"{prefix}{name}")
        if ranks is not None:
            write(rank_diagram.wide(ranks, shared), folder / "ranks")
    except OSError as error:
        raise UnalikeError(
            f"cannot write figures into {folder}: {error.strerror}; give a folder with room"
        ) from None
    return folder


def figures(content: ReportContent, shared: Looks | None = None) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each chart that has data, protocol by protocol."""
    all_looks = shared or looks(content.labels)
    metric = content.metric
    unit = metric.word + metric.axis_unit
    for protocol, column in content.scores.items():
        scores = content.scores_of(protocol)
        if scores.empty:
            continue
        style = {label: all_looks[label] for label in content.judged_methods(protocol)}
        suffix = "" if column.unprefixed else f"-{protocol}"

        compared = scores[scores["difference"].notna()]
        if len(compared):
            figure = report_charts.forest(compared, content.baseline, metric, style)
            yield f"differences{suffix}", figure

        title = f"{unit}, {content.models_of(protocol)}"
        figure = report_charts.curves(content.rounds, column.name, title, style, metric.scale)
        yield f"curves{suffix}", figure

        if column.name in content.clients and content.clients[column.name].notna().any():
            title = f"{unit} of one client"
            figure = report_charts.distribution(
                content.clients, column.name, title, style, metric.scale
            )
            yield f"clients{suffix}", figure

        traded = tradeoff(scores, metric)
        if len(traded) > 1:
            titles = {
                "score": unit,
                "worst": f"{content.worst_clients}, {unit}",
                "mb": "MB to and from all clients",
                "seconds": "seconds",
            }
            plots = [
                report_charts.pareto(traded, x, y, metric, titles, style) for x, y in PAIRS[:3]
            ]
            yield f"pareto{suffix}", Figure(plots, height=400)


def _file_prefixes(names: list[str]) -> list[str]:
    """The start of each comparison's file names. Numbers are added if two names are the same in a file name."""
    if len(names) == 1:
        return [""]
    slugs = [slug(name) for name in names]
    if len(set(slugs)) == len(slugs):
        return [f"{start}-" for start in slugs]
    return [f"{i}-{start}-" for i, start in enumerate(slugs, 1)]
