"""The summary as Markdown, LaTeX, CSV or JSON: one row per partition, method and protocol; JSON has the decision, too.

The same results give the same text, so times are left out. Markdown and LaTeX round numbers as the report does; CSV and JSON
have all digits.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from unalike._utils.errors import unknown
from unalike.metrics.named_metrics import Metric
from unalike.metrics.verdicts import CANDIDATE
from unalike.reporting import wording
from unalike.reporting.content import MODELS
from unalike.reporting.decision import Decision
from unalike.reporting.rows import Row, rows

NOTE = (
    "Mean of the last third of the evaluated rounds (at most ten), or of the selected one, over paired seeds; sd over seeds; "
    "intervals of the difference and p of the moderated paired t test, corrected by Holm for the candidates of a partition."
)


@dataclass(frozen=True)
class ExportBlock:
    """The summary of one comparison, with its partition, its baseline and its decision."""

    partition: str
    baseline: str
    summary: pd.DataFrame
    decision: Decision

    @property
    def metric(self) -> Metric:
        return self.decision.metric


def export(blocks: Sequence[ExportBlock], format: str) -> str:
    """All blocks as one text. Raises `UnalikeError` for a format that is not in `FORMATS`."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return FORMATS[format](blocks)


def _markdown(blocks: Sequence[ExportBlock]) -> str:
    parts = []
    for heads, cells in map(_cells, _groups(blocks)):
        sides = [":--" if i < 3 else "--:" for i in range(len(heads))]
        lines = [heads, sides, *cells]
        parts.append("\n".join(f"| {' | '.join(text.translate(_MARKDOWN) for text in line)} |" for line in lines))
    return "\n\n".join([*parts, NOTE]) + "\n"


def _latex(blocks: Sequence[ExportBlock]) -> str:
    parts = []
    for heads, cells in map(_cells, _groups(blocks)):
        head, *body = [" & ".join(map(_escaped, row)) + r" \\" for row in (heads, *cells)]
        sides = "lll" + "r" * (len(heads) - 3)
        lines = [
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(["% needs \\usepackage{booktabs}", *parts, "% " + NOTE]) + "\n"


def _csv(blocks: Sequence[ExportBlock]) -> str:
    out = io.StringIO()
    tables = [b.summary.assign(partition=b.partition, baseline=b.baseline) for b in blocks]
    table = pd.concat(tables, ignore_index=True).drop(columns="seconds")
    first = ["partition", "method", "protocol", "baseline"]
    table = table[[*first, *(name for name in table if name not in first)]]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.itertuples(index=False, name=None):
        writer.writerow("" if pd.isna(cell) else cell for cell in row)
    return out.getvalue()


def _json(blocks: Sequence[ExportBlock]) -> str:
    """A list with one object per comparison; numbers that are not known are null."""
    parts = [
        {
            "partition": block.partition,
            "decision": {"text": str(block.decision)} | asdict(block.decision) | {"cost": _bytes(block.decision)},
            "summary": block.summary.drop(columns="seconds").to_dict("records"),
        }
        for block in blocks
    ]
    return TypeAdapter(list[dict[str, Any]]).dump_json(parts, indent=1).decode() + "\n"


def _bytes(decision: Decision) -> dict[str, float]:
    return {name: ratio for name, ratio in decision.cost.items() if name == "bytes"}


FORMATS: dict[str, Callable[[Sequence[ExportBlock]], str]] = {
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
    "json": _json,
}


def _groups(blocks: Sequence[ExportBlock]) -> list[list[ExportBlock]]:
    """The blocks in groups with the same metric and baseline; each group makes one table."""
    groups: dict[tuple[str, str], list[ExportBlock]] = {}
    for block in blocks:
        groups.setdefault((block.metric.column, block.baseline), []).append(block)
    return list(groups.values())


def _cells(blocks: Sequence[ExportBlock]) -> tuple[list[str], list[list[str]]]:
    metric, base = blocks[0].metric, blocks[0].baseline
    heads = ["Partition", "Method", "Scored", metric.title, "sd", f"Difference to {base}", "Interval"]
    heads += ["p (Holm)", "Verdict", "P(best)", "Worst tenth", "MB", "Seeds"]
    return heads, [[block.partition, *_row(row, metric)] for block in blocks for row in rows(block.summary)]


def _row(row: Row, metric: Metric) -> list[str]:
    return [
        row["method"],
        MODELS[row["protocol"]],
        wording.score(row[metric.column], metric),
        wording.spread(row[f"{metric.column}_sd"], metric),
        wording.change(row["difference"], metric),
        wording.interval(row["ci_low"], row["ci_high"], metric),
        wording.probability(row["p_holm"]),
        row["verdict"] if row["role"] == CANDIDATE else row["role"],
        wording.chance(row["probability_best"]),
        wording.score(row["worst_decile"], metric),
        wording.megabytes(row["mb_down"] + row["mb_up"]),
        str(row["seeds"]),
    ]


_MARKDOWN = str.maketrans({"\u00a0": " ", "|": r"\|", "<": "&lt;", "\n": " "})
_LATEX = {
    "\u00a0": "~",
    "\\": r"\textbackslash{}",
    "−": "$-$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "\n": " ",
    "~": r"\textasciitilde{}",
    "^": r"\^{}",
} | {c: "\\" + c for c in "&%$#_{}"}


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
