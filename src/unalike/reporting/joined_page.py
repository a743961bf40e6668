"""The report of several comparisons: their differences, each by itself, and ranks over those that may be pooled."""

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
from unalike.reporting.table import Table, TableCell, number, rows
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
    style = looks(list(dict.fromkeys(label for _, part in content.parts for label in part.labels)))
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
        over=None
        if content.pooled is None
        else _ranking(content.pooled, dict(content.parts), style),
        parts=[_part(i, name, part, style) for i, (name, part) in enumerate(content.parts)],
    )


def _answer(content: JoinedContent) -> str:
    folders, parts = (
        wording.plural(len(content.letters), "folder"),
        wording.plural(len(content.parts), "comparison"),
    )
    if content.obstacles and content.pooled is None:
        return f"{folders} give {parts} that cannot be compared with each other, only read side by side."
    if content.pooled is None:
        return f"{folders} give {parts}; too few partitions share methods to rank them."
    over = len(content.pooled[0])
    apart = len(content.parts) - over
    if not apart:
        return f"{folders} give {parts}, all partitions of one study: the methods are ranked over them."
    left = f" Not in the ranking: {wording.plural(apart, 'comparison')}."
    return f"{folders} give {parts}; {over} are partitions of one study.{left}"


def _differences(content: JoinedContent) -> Table | None:
    if not content.differences:
        return None
    lines = [
        ("Setting", *content.letters),
        *((name.replace("_", " "), *values) for name, values in content.differences),
    ]
    if len(content.letters) > len(
        content.differences
    ):  # more folders than settings: one row per folder
        lines = [("Folder", *lines[0][1:]), *lines[1:]]
        lines = list(zip(*lines))
    return Table(
        "Differences between the folders",
        lines[0],
        [[TableCell(v, v) for v in line] for line in lines[1:]],
    )


def _ranking(pooled: Pooled, parts: dict[str, ReportContent], style: Looks) -> dict[str, Any]:
    scores, ranks = pooled
    first, names = parts[str(scores.index[0])], list(scores)
    sentence = (
        f"Over {ranks.blocks} partitions, {_rank_clauses(ranks.apart)}, by more than the critical difference."
        if ranks.apart
        else f"Over {ranks.blocks} partitions, no two of the {len(names)} methods differ by more than the critical difference."
    )
    caption = (
        f"Mean ranks over {ranks.blocks} partitions, 1 is best. Thick bars join methods that do not differ at "
        f"{wording.share(ALPHA)} by Nemenyi's test: their mean ranks are within the critical difference, CD = {ranks.critical:.2f}."
    )
    view = panels.View(
        "Ranks",
        rank_diagram.wide(ranks, style),
        rank_diagram.description(ranks),
        rank_diagram.narrow(ranks, style),
    )
    limits = [
        "A partition counts once: its scores are means over the seeds that all ranked methods have on it."
    ]
    if ranks.blocks < FEW:
        limits.append(
            f"{ranks.blocks} partitions are very few: ranks are between 1 and {len(names)}, and the critical difference "
            f"is {ranks.critical:.2f}. Ten or more are usual."
        )
    if ranks.friedman == ranks.friedman:
        limits.append(f"Friedman's test that no method differs: {wording.p_value(ranks.friedman)}.")
    panel = panels.Panel("over", caption, [view], [])
    table = _means(pooled, first.baseline, first.metric, style)
    return {"sentence": sentence, "panel": panel, "limits": limits, "table": table}


def _rank_clauses(apart: list[tuple[str, str]]) -> str:
    """Pairs (better, worse) as text, with one clause for each worse method."""
    better = {worse: [a for a, b in apart if b == worse] for _, worse in apart}
    return "; ".join(
        f"{wording.listing(a)} {'ranks' if len(a) == 1 else 'rank'} before {b}"
        for b, a in better.items()
    )


FEW = 6
"""With fewer partitions the page warns; Wilcoxon's test cannot show anything below it either."""


def _means(pooled: Pooled, baseline: str, metric: Metric, style: Looks) -> Table | None:
    """Each method compared with the baseline, paired by partition; None if the baseline is not ranked."""
    scores, ranks = pooled
    if baseline not in scores:
        return None
    d = difference_table({str(name): values for name, values in scores.items()}, baseline)
    tests = rows(family_tests(d, metric.sign).rename_axis("method").reset_index())
    by_name = summary_columns(metric, baseline, style)
    rank = number(
        "Mean rank", lambda row: float(ranks.mean[row["method"]]), lambda value: f"{value:.2f}"
    )
    columns = [
        by_name["method"],
        rank,
        *(by_name[name] for name in ("difference", "interval", "p", "better")),
    ]
    return Table.of(
        f"Differences to {baseline}, paired over {ranks.blocks} partitions", columns, tests
    )


def _part(i: int, name: str, part: ReportContent, style: Looks) -> dict[str, Any]:
    style_of_part = {label: style[label] for label in part.labels}
    drawn = {
        "differences": panels.differences(part, style_of_part),
        "curves": panels.curves(part, style_of_part),
        "clients": panels.distributions(part, style_of_part),
    }
    return {
        "name": name,
        "found": findings(part),
        "panels": {
            name: panel and replace(panel, key=f"{panel.key}-{i}") for name, panel in drawn.items()
        },
        "tables": [tables.scores(part, protocol, style) for protocol in part.tabled]
        + (
            []
            if part.target is None
            else [tables.target(part, protocol, style) for protocol in part.tabled]
        ),
        "clients": client_tables(part),
        "command": part.command,
    }
