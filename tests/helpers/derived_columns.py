"""Columns of scores by the names of a table, for tables that a test writes by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable

from unalike.metrics.columns import OTHERS, PROTOCOLS, TEST, USED, VALIDATION, Column, Columns
from unalike.metrics.named_metrics import KNOWN, Metric, own_metric, registry, sensitivity_at

_NAME = re.compile(rf"(?:({'|'.join((*PROTOCOLS, USED))})_)?(val_)?(.+)")


def derived(names: Iterable[object], plain: str = "clients") -> Columns:
    """The columns of tables that a test made, from their names alone.

    Columns that hold no score are left out, and the `personal_accuracy` that tables of clients have beside `accuracy` where the
    plain columns are those of the personal models. `plain` is the protocol of the columns without a protocol in their names.
    """
    scores = (
        name for name in map(str, names) if name not in OTHERS and not name.endswith("selected")
    )
    matched = [match for name in scores if (match := _NAME.fullmatch(name)) and match[1] != plain]
    columns = (
        Column(
            match[1] or plain, VALIDATION if match[2] else TEST, _metric_of(match[3]), not match[1]
        )
        for match in matched
    )
    return Columns(tuple({column.name: column for column in columns}.values()))


def _metric_of(column: str) -> Metric:
    """The metric of a column without protocol and split: a known or registered one, or one of the user's own."""
    at = re.fullmatch(r"sensitivity_at_(\d+)(?:_(\d+))?", column)
    if at:
        return sensitivity_at(specificity=float(f"{at[1]}.{at[2] or 0}") / 100)
    if column in KNOWN:
        return KNOWN[column]
    return registry[column]() if column in registry else own_metric(column)
