"""The columns of a comparison's summary, declared once for the page, papers, the terminal and notebooks."""

import math
from collections.abc import Mapping
from typing import Any

from unalike.metrics.columns import IN_USE, RUNNING_TOTALS, SIMULATED_SECONDS
from unalike.metrics.named_metrics import MISSING, Metric
from unalike.reporting import wording
from unalike.reporting.charts.palette import Looks
from unalike.reporting.content import ReportContent
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

SHOWN_COLUMNS = (
    "method",
    "model",
    "verdict",
    "score",
    "sd",
    "difference",
    "interval",
    "p",
    "best",
    "worst",
    "epsilon",
    "traffic",
    "time",
    SIMULATED_SECONDS,
    "seeds",
)
"""The columns that a terminal and a notebook show; running totals only where they apply."""


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
        "won": TableColumn("Seeds won", _seeds_won),
        "better": number("Share won", "better", wording.share),
        "best": number("Chance to be best", "probability_best", wording.chance),
        "traffic": number("MB", lambda row: row["mb_down"] + row["mb_up"], wording.megabytes),
        "time": number("Time", "seconds", wording.duration),
        "evaluation": number("Time of evaluation", "evaluation_seconds", wording.duration),
        "epsilon": number("Epsilon", lambda row: row.get("epsilon", math.nan), wording.decimal),
        SIMULATED_SECONDS: number(
            "Simulated time",
            lambda row: row.get(SIMULATED_SECONDS, math.nan),
            wording.duration,
        ),
        "loss": number("Loss", "loss", _loss),
        "seeds": number("Seeds", "seeds"),
    }


def columns_of_clients(content: ReportContent) -> dict[str, TableColumn]:
    """Name -> column of a summary whose title has what the user calls a client."""
    several = wording.several(content.client_noun)
    metric = content.metric
    return {
        "spread": number(f"Spread over {several} (sd)", "client_sd", metric.amount),
        "worst": number(wording.capital(content.worst_clients), "worst_decile", metric.text),
        "down": number(f"MB to {several}", "mb_down", wording.megabytes),
        "up": number(f"MB from {several}", "mb_up", wording.megabytes),
    }


def _seeds_won(row: Row) -> TableCell:
    return TableCell(f"{row['won']} of {row['pairs']}", row["won"])


def _loss(loss: float) -> str:
    """A loss with three decimals; one that has exploded without."""
    return wording.decimal(loss, 3 if abs(loss) < 1000 else 0)


def score_of_paper(content: ReportContent, protocol: str) -> TableColumn:
    """The column of scores of a paper, mean and sd in one cell.

    The best method that is no reference is bold, and so are those with the same score as printed.
    """
    metric = content.metric
    scored = content.scores_of(protocol)
    references = content.rules.references
    no_references = scored.loc[~scored["method"].isin(references), metric.name]
    best = metric.amount(float(metric.sign * (metric.sign * no_references).max()))

    def score(row: Row) -> TableCell:
        mean = row[metric.name]
        sd = row[f"{metric.name}_sd"]
        text = metric.amount(mean)
        is_best = row["method"] not in references and text == best
        if not math.isnan(sd):
            text = f"{text} ± {metric.amount(sd)}"
        return TableCell(text, mean, strong=is_best)

    return TableColumn(f"{metric.title}{metric.axis_unit}", score)


def paper_columns(content: ReportContent, protocol: str) -> list[TableColumn]:
    """The columns of a table for a paper: mean and sd in one cell, a difference with its interval."""
    metric = content.metric

    def without_unit(difference: float) -> str:
        return metric.difference(difference).removesuffix(metric.unit)

    def difference(row: Row) -> TableCell:
        low = without_unit(row["ci_low"])
        text = without_unit(row["difference"])
        if MISSING not in (text, low):
            text = f"{text} [{low}, {without_unit(row['ci_high'])}]"
        return TableCell(text, row["difference"])

    unit = f" ({metric.unit.strip()})" if metric.unit else ""
    by_name = summary_columns(metric, content.baseline) | columns_of_clients(content)
    columns = [by_name["method"]]
    if protocol == IN_USE:
        columns.append(model_column(content))
    columns += [
        score_of_paper(content, protocol),
        TableColumn(f"Difference{unit}", difference),
    ]
    columns += [by_name[name] for name in ("p", "verdict", "worst", "traffic")]
    return columns


def verdict(row: Mapping[str, Any]) -> str:
    """The verdict on a candidate; for other methods the reason why they are none."""
    return str(row["verdict"] if row["role"] == CANDIDATE else row["role"])


def model_column(content: ReportContent) -> TableColumn:
    """The kind of model that was scored; among the models in use, that of the method."""
    return words("Model", lambda row: content.model_kind(row["method"], row["protocol"]))


def summary_tables(content: ReportContent) -> list[Table]:
    """One table for each protocol, of `SHOWN_COLUMNS`, under a caption that names the models if there are several tables."""
    columns = summary_columns(content.metric, content.baseline)
    columns |= columns_of_clients(content) | {"model": model_column(content)}
    protocols = content.protocols_with_tables
    tables = []
    for protocol in protocols:
        scored = content.scores_of(protocol)
        if scored.empty:
            continue
        caption = wording.capital(content.models_of(protocol)) if len(protocols) > 1 else ""
        shown = [
            columns[name] for name in SHOWN_COLUMNS if name not in RUNNING_TOTALS or name in scored
        ]
        tables.append(Table.of(caption, shown, rows(scored)))
    return tables
