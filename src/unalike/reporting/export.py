"""The summary as Markdown, LaTeX, CSV or JSON: one row per partition, method and protocol.

Markdown and JSON begin with the answer and its key facts.

The same results give the same text, so times are left out. Markdown and LaTeX round numbers as the report does; CSV and JSON
have all digits. LaTeX is a table for a paper.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from unalike._utils.errors import UnalikeError, unknown
from unalike._utils.printable import without_controls
from unalike._utils.spec import slug
from unalike.reporting import wording
from unalike.reporting.client_tables import client_columns
from unalike.reporting.content import ReportContent
from unalike.reporting.decision import Decision
from unalike.reporting.summary_columns import paper_columns
from unalike.reporting.table import Table, latex, markdown, markdown_text, rows
from unalike.reporting.together_or_alone import references, together_or_alone
from unalike.reporting.wide_table import wide_frame, wide_table
from unalike.statistics.scores import scoring_rule

Parts = Sequence[tuple[str, ReportContent]]
"""The partition and the content of each comparison."""


def export(parts: Parts, format: str) -> str:
    """All comparisons as one text. Raises `UnalikeError` for a format that is not in `FORMATS`."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return FORMATS[format](parts)


def export_clients(parts: Parts, format: str) -> str:
    """The scores of all clients with every method as one text. Raises `UnalikeError` for another format, or if none has any."""
    with_scores = [(name, content) for name, content in parts if len(content.client_scores)]
    if not with_scores:
        raise UnalikeError(
            "no comparison has the same clients under all seeds, so no client has a score over the seeds"
        )
    if format == "csv":
        tables = []
        for name, content in with_scores:
            table = content.client_scores
            tables.append(table.assign(partition=name)[["partition", *table.columns]])
        return str(pd.concat(tables).to_csv(index=False, lineterminator="\n"))
    if format not in TABLES:
        raise unknown("format", format, ["csv", *TABLES])
    return TABLES[format](
        (f"{name} clients", _clients(name, content)) for name, content in with_scores
    )


def export_wide(parts: Parts, format: str) -> str:
    """One table with a row for each method and a column for each comparison. Raises `UnalikeError` for another format."""
    if format == "csv":
        return str(wide_frame(parts).to_csv(index=False, lineterminator="\n"))
    if format not in TABLES:
        raise unknown("format", format, ["csv", *TABLES])
    return TABLES[format]([("wide", wide_table(parts))])


def _decided(parts: Parts) -> str:
    """Whether to train together, the answer of each comparison with its key facts, and the tables below, in Markdown."""
    texts: list[str] = []
    for answer in _answers(parts):
        texts += map(markdown_text, answer.split("\n"))
    for partition, content in parts:
        decision = _untimed(content.decision)
        name = f"{wording.capital(partition)}: " if len(parts) > 1 else ""
        texts.append(f"**{markdown_text(name + decision.answer)}**")
        if decision.key_facts:
            texts.append("\n".join(f"- {markdown_text(str(fact))}" for fact in decision.key_facts))
    return "\n\n".join([*texts, _markdown(_tables(parts))])


def _untimed(decision: Decision) -> Decision:
    """The decision without times, which differ on every machine."""
    cost = {name: ratio for name, ratio in decision.cost.items() if name != "seconds"}
    return replace(decision, cost=cost)


def _answers(parts: Parts) -> list[str]:
    """For each comparison that has fitted references, the partition and whether training together pays, a sentence a line."""
    texts = []
    for partition, content in parts:
        found = together_or_alone(content)
        if found is not None:
            name = f"{wording.capital(partition)}: " if len(parts) > 1 else ""
            texts.append(f"{name}{found}")
    return texts


def _latex_page(parts: Parts) -> str:
    """The answers as comments, and the tables."""
    lines = []
    for answer in _answers(parts):
        # a carriage return in a name would end the comment for TeX
        lines += [f"% {without_controls(line)}\n" for line in answer.split("\n")]
    return "".join(lines) + _latex(_tables(parts))


def _markdown(tables: Iterable[tuple[str, Table]]) -> str:
    texts = [f"{markdown_text(table.caption)}\n\n{markdown(table)}" for _, table in tables]
    return "\n\n".join(texts) + "\n"


def _latex(tables: Iterable[tuple[str, Table]]) -> str:
    texts = [latex(table, f"tab:{slug(name)}") for name, table in tables]
    return "\n\n".join(["% needs \\usepackage{booktabs}", *texts]) + "\n"


TABLES: dict[str, Callable[[Iterable[tuple[str, Table]]], str]] = {
    "markdown": _markdown,
    "latex": _latex,
}


def _tables(parts: Parts) -> Iterator[tuple[str, Table]]:
    """A name and a table for a paper, for each partition and protocol."""
    for partition, content in parts:
        seeds = wording.plural(len(content.seeds), "seed")
        level = wording.confidence(content.rules.level)
        rule = scoring_rule(content.rounds, content.columns).capitalize()
        for protocol in content.protocols_with_tables:
            scores = content.scores_of(protocol)
            if scores.empty:
                continue
            models = content.models_of(protocol)
            caption = (
                f"{wording.capital(partition)}: {content.metric.word} of the {models}, mean ± sd over {seeds}, the best in bold. "
                f"Differences to {content.baseline} with {level} intervals; p of the moderated paired t test, corrected by Holm. "
                f"{rule}. {content.about}"
            )
            table = Table.of(caption, paper_columns(content, protocol), rows(scores))
            yield f"{partition} {protocol}", table


def _clients(partition: str, content: ReportContent) -> Table:
    """The scores of all clients with every method."""
    seeds = wording.plural(len(content.seeds), "seed")
    level = wording.confidence(content.rules.level)
    caption = (
        f"{wording.capital(partition)}: {content.metric_of_clients.word} of each {content.client_noun} with the model that it "
        f"uses, mean over {seeds}. "
        f"{level} intervals are of each row by itself. {content.about}"
    )
    return Table.of(caption, client_columns(content, methods=True), rows(content.client_scores))


def _csv(parts: Parts) -> str:
    tables = [
        content.summary.assign(partition=name, baseline=content.baseline) for name, content in parts
    ]
    table = pd.concat(tables, ignore_index=True).drop(columns="seconds")
    first = ["partition", "method", "protocol", "baseline"]
    others = [name for name in table if name not in first]
    return str(table[first + others].to_csv(index=False, lineterminator="\n"))


def _json(parts: Parts) -> str:
    """A list with one object per comparison; numbers that are not known are null."""
    comparisons = []
    for partition, content in parts:
        found = together_or_alone(content)
        comparison = {
            "partition": partition,
            "together_or_alone": None if found is None else found.fields,
            "about": content.about,
            "decision": _decision(content.decision),
            "summary": content.summary.drop(columns="seconds").to_dict("records"),
            "references": references(content).to_dict("records"),
            "clients": content.client_scores.to_dict("records"),
        }
        comparisons.append(comparison)
    return TypeAdapter(list[dict[str, Any]]).dump_json(comparisons, indent=1).decode() + "\n"


def _decision(decision: Decision) -> dict[str, Any]:
    """A decision in words and its fields, the metric without its formula."""
    untimed = _untimed(decision)
    facts = [asdict(fact) for fact in untimed.key_facts]
    said = {"text": str(untimed), "answer": untimed.answer, "key_facts": facts}
    return said | asdict(untimed) | {"metric": untimed.metric.stored_fields}


FORMATS: dict[str, Callable[[Parts], str]] = {
    "markdown": _decided,
    "csv": _csv,
    "latex": _latex_page,
    "json": _json,
}


TABLE_KINDS: dict[str, Callable[[Parts, str], str]] = {
    "methods": export,
    "clients": export_clients,
    "wide": export_wide,
}
"""Kind of table -> the function that writes it in a format."""


def export_table(parts: Parts, kind: str, format: str) -> str:
    """A table of a kind as text. Raises `UnalikeError` for a kind that is not in `TABLE_KINDS`, or a format that it lacks."""
    if kind not in TABLE_KINDS:
        raise unknown("table", kind, TABLE_KINDS)
    return TABLE_KINDS[kind](parts, format)


ENDINGS = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
}
"""Ending of a file -> its format."""


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of a file by its ending. Raises `UnalikeError` for an ending that is not in `ENDINGS`."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise unknown("ending of a report's file", ending, ENDINGS)
    return ENDINGS[ending]
