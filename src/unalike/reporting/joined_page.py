"""The report of several comparisons: their differences, each by itself, and ranks over those that may be pooled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from unalike.metrics.named_metrics import Metric
from unalike.reporting import panels, tables, wording
from unalike.reporting.charts import rank_diagram
from unalike.reporting.charts.palette import Looks, looks
from unalike.reporting.client_tables import client_tables
from unalike.reporting.content import ReportContent
from unalike.reporting.findings import findings
from unalike.reporting.html import fill
from unalike.reporting.summary_columns import summary_columns
from unalike.reporting.table import Row, Table, TableCell, number, rows
from unalike.reporting.wide_table import has_one_metric, wide_table
from unalike.statistics.inference import difference_table, family_tests
from unalike.statistics.moderated_t import ALPHA
from unalike.statistics.ranks import Ranks

Pooled = tuple[pd.DataFrame, Ranks]
"""Scores by partition (rows) and method (columns), and the ranks of the methods."""


@dataclass(frozen=True)
class JoinedContent:
    """The content of the page.

    `parts` are (name, content) of each comparison, `letters` those of the folders, `differences` (setting, its value in each
    folder). `obstacles` say why results are not pooled; `pooled` are the scores that methods are ranked over, None if there are
    too few.
    """

    title: str
    parts: Sequence[tuple[str, ReportContent]]
    letters: Sequence[str]
    differences: Sequence[tuple[str, Sequence[str]]]
    obstacles: Sequence[str]
    pooled: Pooled | None


def render(content: JoinedContent) -> str:
    """Render the page as one HTML document. The same content gives the same text."""
    labels = dict.fromkeys(label for _, part in content.parts for label in part.labels)
    style = looks(list(labels))
    ranking = None
    if content.pooled is not None:
        ranking = _ranking(content.pooled, dict(content.parts), style)
    return fill(
        "joined_page.html.j2",
        title=content.title,
        warnings=[f"{name}: {text}" for name, part in content.parts for text in part.warnings],
        scale={
            "folder": len(content.letters),
            "comparison": len(content.parts),
            "method": len(style),
        },
        answer=_answer(content),
        obstacles=content.obstacles,
        differences=_differences(content),
        wide=wide_table(content.parts) if has_one_metric(content.parts) else None,
        over=ranking,
        parts=[_part(i, name, part, style) for i, (name, part) in enumerate(content.parts)],
    )


def _answer(content: JoinedContent) -> str:
    """Says how many comparisons the folders give, and whether methods are ranked over them."""
    folders = wording.plural(len(content.letters), "folder")
    parts = wording.plural(len(content.parts), "comparison")
    if content.obstacles and content.pooled is None:
        return f"{folders} give {parts} that cannot be compared with each other, only read side by side."
    if content.pooled is None:
        return f"{folders} give {parts}; too few partitions share methods to rank them."
    scores, _ = content.pooled
    ranked = len(scores)
    others = len(content.parts) - ranked
    if not others:
        return f"{folders} give {parts}, all partitions of one study: the methods are ranked over them."
    return (
        f"{folders} give {parts}; {ranked} are partitions of one study. "
        f"Not in the ranking: {wording.plural(others, 'comparison')}."
    )


def _differences(content: JoinedContent) -> Table | None:
    """The settings in which the folders differ: one row per setting, or per folder if there are more folders."""
    if not content.differences:
        return None
    lines = [("Setting", *content.letters)]
    for name, values in content.differences:
        lines.append((name.replace("_", " "), *values))
    if len(content.letters) > len(content.differences):
        lines[0] = ("Folder", *content.letters)
        lines = list(zip(*lines))
    titles, *body = lines
    cells = []
    for line in body:
        cells.append([TableCell(value, value) for value in line])
    return Table("Differences between the folders", titles, cells)


def _ranking(pooled: Pooled, parts: dict[str, ReportContent], style: Looks) -> dict[str, Any]:
    """The ranks over partitions: a sentence, the diagram, what it can show, and the table of means."""
    scores, ranks = pooled
    first = parts[str(scores.index[0])]
    methods = len(list(scores))
    clauses = f"no two of the {methods} methods differ"
    if ranks.apart:
        clauses = f"{_rank_clauses(ranks.apart)},"
    sentence = f"Over {ranks.blocks} partitions, {clauses} by more than the critical difference."
    caption = (
        f"Mean ranks over {ranks.blocks} partitions, 1 is best. Thick bars join methods that do not differ at "
        f"{wording.share(ALPHA)} by Nemenyi's test: their mean ranks are within the critical difference, CD = {ranks.critical:.2f}."
    )
    view = panels.View(
        label="Ranks",
        figure=rank_diagram.wide(ranks, style),
        alt=rank_diagram.description(ranks),
        narrow=rank_diagram.narrow(ranks, style),
    )
    limits = [
        "A partition counts once: its scores are means over the seeds that all ranked methods have on it."
    ]
    if ranks.blocks < MIN_PARTITIONS:
        limits.append(
            f"{ranks.blocks} partitions are very few: ranks are between 1 and {methods}, and the critical difference "
            f"is {ranks.critical:.2f}. Ten or more are usual."
        )
    if not math.isnan(ranks.friedman):
        limits.append(f"Friedman's test that no method differs: {wording.p_value(ranks.friedman)}.")
    panel = panels.Panel("over", caption, [view], [])
    table = _means(pooled, first.baseline, first.metric, style)
    return {"sentence": sentence, "panel": panel, "limits": limits, "table": table}


def _rank_clauses(apart: list[tuple[str, str]]) -> str:
    """Pairs (better, worse) as text, with one clause for each worse method."""
    better_than: dict[str, list[str]] = {}
    for better, worse in apart:
        better_than.setdefault(worse, []).append(better)
    clauses = []
    for worse, names in better_than.items():
        rank = "ranks" if len(names) == 1 else "rank"
        clauses.append(f"{wording.listing(names)} {rank} before {worse}")
    return "; ".join(clauses)


MIN_PARTITIONS = 6
"""With fewer partitions the page warns; Wilcoxon's test cannot show anything below it either."""


def _means(pooled: Pooled, baseline: str, metric: Metric, style: Looks) -> Table | None:
    """Each method compared with the baseline, paired by partition; None if the baseline is not ranked."""
    scores, ranks = pooled
    if baseline not in scores:
        return None
    by_method = {str(name): values for name, values in scores.items()}
    differences = difference_table(by_method, baseline)
    tests = family_tests(differences, metric.sign).rename_axis("method").reset_index()

    def mean_rank(row: Row) -> float:
        return float(ranks.mean[row["method"]])

    by_name = summary_columns(metric, baseline, style)
    columns = [by_name["method"], number("Mean rank", mean_rank, "{:.2f}".format)]
    columns += [by_name[name] for name in ("difference", "interval", "p", "better")]
    caption = f"Differences to {baseline}, paired over {ranks.blocks} partitions"
    return Table.of(caption, columns, rows(tests))


def _part(i: int, name: str, part: ReportContent, style: Looks) -> dict[str, Any]:
    """The variables of the template for one comparison, the one with number `i` on the page."""
    style_of_part = {label: style[label] for label in part.labels}
    panels_of_part = {
        "differences": panels.differences(part, style_of_part),
        "curves": panels.curves(part, style_of_part),
        "clients": panels.distributions(part, style_of_part),
    }
    # a key is used once on a page
    for key, panel in panels_of_part.items():
        if panel is not None:
            panels_of_part[key] = replace(panel, key=f"{panel.key}-{i}")
    protocols = part.protocols_with_tables
    tables_of_part = [tables.scores(part, protocol, style) for protocol in protocols]
    if part.target is not None:
        tables_of_part += [tables.target(part, protocol, style) for protocol in protocols]
    return {
        "name": name,
        "found": findings(part),
        "panels": panels_of_part,
        "tables": tables_of_part,
        "clients": client_tables(part),
        "command": part.command,
    }
