"""The columns of a comparison's summary, declared once for the page, papers, the terminal and notebooks."""

import math
from collections.abc import Mapping
from typing import Any

from unalike.metrics.columns import USED
from unalike.metrics.named_metrics import MISSING, Metric
from unalike.reporting import wording
from unalike.reporting.charts.palette import Looks
from unalike.reporting.content import MODELS, ReportContent
from unalike.reporting.table import (
    Row,
    Table,
    TableCell,
    TableColumn,
    interval,
    number,
    rows,
    words,
)
from unalike.statistics.moderated_t import ALPHA
from unalike.statistics.verdicts import CANDIDATE

SHOWN = (
    *("method", "model", "verdict", "score", "sd", "difference", "interval", "p", "best"),
    *("worst", "epsilon", "traffic", "time", "seeds"),
)
"""The columns that a terminal and a notebook show; epsilon only if a method is private."""


def summary_columns(
    metric: Metric, baseline: str, looks: Looks | None = None
) -> dict[str, TableColumn]:
    """Name -> column, for the rows of a summary that are scored by `metric` and compared with `baseline`."""
    level = wording.confidence(ALPHA)
    return {
        "method": words("Method", "method", looks),
        "verdict": words("Verdict", verdict),
        "score": number(metric.title, metric.name, metric.text),
        "sd": number("± sd", f"{metric.name}_sd", metric.amount),
        "difference": number(f"Difference to {baseline}", "difference", metric.difference),
        "interval": interval(f"{level} interval", "ci_low", "ci_high", metric.interval),
        "bootstrap": interval("Bootstrap interval", "boot_low", "boot_high", metric.interval),
        "t": number("t test, p", "p", wording.probability),
        "p": number("p, corrected", "p_holm", wording.probability),
        "exact": number("sign flips, corrected p", "p_exact", wording.probability),
        "won": TableColumn(
            "Seeds won", lambda row: TableCell(f"{row['won']} of {row['pairs']}", row["won"])
        ),
        "better": number("Share won", "better", wording.share),
        "best": number("P(best)", "probability_best", wording.chance),
        "spread": number("Spread over clients (sd)", "client_sd", metric.amount),
        "worst": number("Worst tenth", "worst_decile", metric.text),
        "traffic": number("MB", lambda row: row["mb_down"] + row["mb_up"], wording.megabytes),
        "down": number("MB to clients", "mb_down", wording.megabytes),
        "up": number("MB from clients", "mb_up", wording.megabytes),
        "time": number("Time", "seconds", wording.duration),
        "evaluation": number("Time of evaluation", "evaluation_seconds", wording.duration),
        "epsilon": number("Epsilon", lambda row: row.get("epsilon", math.nan), wording.decimal),
        "loss": number(
            "Loss", "loss", lambda loss: wording.decimal(loss, 3 if abs(loss) < 1000 else 0)
        ),
        "seeds": number("Seeds", "seeds"),
    }


def paper_columns(content: ReportContent, protocol: str) -> list[TableColumn]:
    """The columns of a table for a paper: mean and sd in one cell, a difference with its interval.

    The best method that is no reference is bold, and so are those with the same score as printed.
    """
    metric, scored = content.metric, content.scored(protocol)
    own = scored.loc[~scored["method"].isin(content.rules.references), metric.name]
    best = metric.amount(float(metric.sign * (metric.sign * own).max()))
    by_name = summary_columns(metric, content.baseline)

    def score(row: Row) -> TableCell:
        mean, sd = row[metric.name], row[f"{metric.name}_sd"]
        text = (
            metric.amount(mean)
            if math.isnan(sd)
            else f"{metric.amount(mean)} ± {metric.amount(sd)}"
        )
        strong = row["method"] not in content.rules.references and metric.amount(mean) == best
        return TableCell(text, mean, strong=strong)

    def difference(row: Row) -> TableCell:
        low, high = (
            metric.difference(row[end]).removesuffix(metric.unit) for end in ("ci_low", "ci_high")
        )
        gain = metric.difference(row["difference"]).removesuffix(metric.unit)
        return TableCell(
            gain if MISSING in (gain, low) else f"{gain} [{low}, {high}]", row["difference"]
        )

    unit = f" ({metric.unit.strip()})" if metric.unit else ""
    return [
        by_name["method"],
        *([model_column(content)] if protocol == USED else []),
        TableColumn(f"{metric.title}{metric.axis_unit}", score),
        TableColumn(f"Difference{unit}", difference),
        *(by_name[name] for name in ("p", "verdict", "worst", "traffic")),
    ]


def verdict(row: Mapping[str, Any]) -> str:
    """The verdict on a candidate; for other methods the reason why they are none."""
    return str(row["verdict"] if row["role"] == CANDIDATE else row["role"])


def model_column(content: ReportContent) -> TableColumn:
    """The kind of model that was scored; among the models in use, that of the method."""
    return words("Model", lambda row: content.model_kind(row["method"], row["protocol"]))


def summary_tables(content: ReportContent) -> list[Table]:
    """One table for each protocol: the columns of `SHOWN`, under a caption that names the models if there are several tables."""
    columns = summary_columns(content.metric, content.baseline) | {"model": model_column(content)}
    tables = []
    for protocol in content.tabled:
        scored = content.scored(protocol)
        caption = wording.capital(MODELS[protocol]) if len(content.tabled) > 1 else ""
        if len(scored):
            shown = [columns[name] for name in SHOWN if name != "epsilon" or name in scored]
            tables.append(Table.of(caption, shown, rows(scored)))
    return tables
