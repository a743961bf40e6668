"""The tables of an evaluation: metrics with intervals, calibration, and what a threshold of the risk means."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.table import Table, TableColumn, number, words
from unalike.statistics.bootstrap import LEVEL
from unalike.statistics.evaluated_rows import EvaluatedRow
from unalike.statistics.risks import Share

SHARES = {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
}
"""Share at a threshold -> its title."""


def score_table(
    rows: Sequence[EvaluatedRow],
    metrics: Sequence[Metric],
    with_interval: Collection[str],
    positive: str | None,
) -> Table:
    """The numbers of samples and the metrics of each row. `positive` names the second of two classes."""
    columns = [words("", lambda row: row.name), number("samples", _samples, wording.whole)]
    if positive is not None:
        columns.append(number(f"positives ({positive})", _positives, wording.whole))
    for metric in metrics:
        columns.append(_with_interval(metric) if metric.name in with_interval else _value(metric))
    return Table.of("", columns, rows)


def _samples(row: EvaluatedRow) -> float:
    return math.nan if row.samples is None else row.samples


def _positives(row: EvaluatedRow) -> float:
    return math.nan if row.positives is None else row.positives


def _value(metric: Metric) -> TableColumn:
    return number(metric.word, lambda row: row.metrics[metric.name], metric.text)


def _with_interval(metric: Metric) -> TableColumn:
    """The metric with its interval in brackets, where it has one."""

    def text(row: EvaluatedRow) -> str:
        value = row.metrics[metric.name]
        low, high = row.intervals[metric.name]
        if math.isnan(low):
            return metric.text(value)
        return f"{metric.text(value)} ({metric.between(low, high)})"

    return words(metric.word, text)


def calibration(row: EvaluatedRow) -> dict[str, Any] | None:
    """The calibration of a row as numbers, with intervals; None where it has few samples of a class."""
    if row.risks is None or not row.risks.enough:
        return None
    slope, slope_low, slope_high = row.risks.slope(LEVEL)
    intercept, intercept_low, intercept_high = row.risks.intercept(LEVEL)
    return {
        "name": row.name,
        "expected": float(row.risks.risk.mean()),
        "observed": float(row.risks.outcome.mean()),
        "in_the_large": intercept,
        "in_the_large_low": intercept_low,
        "in_the_large_high": intercept_high,
        "slope": slope,
        "slope_low": slope_low,
        "slope_high": slope_high,
        "brier": row.risks.brier,
    }


def calibration_table(rows: Sequence[EvaluatedRow]) -> Table | None:
    """Mean risk beside the share of positives, calibration in the large, slope and Brier score; None where no row has them."""
    calibrated = [found for row in rows if (found := calibration(row)) is not None]
    if not calibrated:
        return None
    columns = [
        words("", "name"),
        number("mean risk", "expected", _percent),
        number("positives", "observed", _percent),
        words("in the large", lambda row: _two_decimals(row, "in_the_large")),
        words("slope", lambda row: _two_decimals(row, "slope")),
        number("Brier score", "brier", wording.decimal),
    ]
    return Table.of("Calibration (in the large 0 and slope 1 are right)", columns, calibrated)


def _two_decimals(row: dict[str, Any], name: str) -> str:
    """A number of a row with its interval in brackets; empty where there is none."""
    if math.isnan(row[name]):
        return ""
    numbers = [wording.decimal(row[key], 2) for key in (name, f"{name}_low", f"{name}_high")]
    value, low, high = (text.replace("-", "−") for text in numbers)
    return f"{value} ({low} to {high})"


def threshold_rows(row: EvaluatedRow, thresholds: Sequence[float]) -> list[dict[str, Any]]:
    """A row for each threshold: its value, and the shares of `Risks.at_threshold`."""
    if row.risks is None:
        return []
    found: list[dict[str, Any]] = []
    for threshold in thresholds:
        shares = row.risks.at_threshold(threshold, LEVEL)
        found.append({"name": row.name, "threshold": threshold, **shares})
    return found


def threshold_table(rows: Sequence[EvaluatedRow], thresholds: Sequence[float]) -> Table | None:
    """Sensitivity, specificity, PPV and NPV at each threshold, with intervals; None without thresholds."""
    shares = []
    for row in rows:
        shares += threshold_rows(row, thresholds)
    if not shares:
        return None
    columns = [words("", "name"), number("threshold", "threshold", "{:g}".format)]
    for name, title in SHARES.items():
        columns.append(words(title, _share_of(name)))
    return Table.of("A risk of at least the threshold counts as positive", columns, shares)


def _share_of(name: str) -> Any:
    """Row -> a share and its interval in one text, empty where there is none."""

    def text(row: dict[str, Any]) -> str:
        share: Share = row[name]
        if math.isnan(share.value):
            return ""
        return f"{_percent(share.value)} ({_number(share.low)} to {_number(share.high)})"

    return text


def _percent(value: float) -> str:
    return f"{_number(value)} %"


def _number(value: float) -> str:
    return f"{100 * value:.1f}"
