"""The trade-off between score, score of the worst clients, traffic and time, with the Pareto front of any two of them."""

from __future__ import annotations

import pandas as pd

from unalike.metrics.costs import pareto_front
from unalike.metrics.inference import without_rounding
from unalike.metrics.named_metrics import Metric

GOODS = ("score", "worst")
"""The columns of a trade-off in which the metric says whether more is better; in the others less is."""
PAIRS = (("score", "worst"), ("mb", "score"), ("seconds", "score"), ("mb", "worst"))
"""The pairs of columns that are drawn against each other: (horizontal, vertical)."""


def tradeoff(summary: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """`method protocol score worst mb seconds`, one row for each row of `summary` that has all four numbers.

    `score` is the mean, `worst` the mean over the worst tenth of the clients, `mb` the traffic of a run in both directions,
    `seconds` its training time. Scores that differ only by rounding are the same.
    """
    table = pd.DataFrame(
        {
            "method": summary["method"],
            "protocol": summary["protocol"],
            "score": summary[metric.column],
            "worst": summary["worst_decile"],
            "mb": summary["mb_down"] + summary["mb_up"],
            "seconds": summary["seconds"],
        }
    ).dropna()
    return table.assign(**{name: without_rounding(table[name]) for name in GOODS}).reset_index(drop=True)


def on_front(table: pd.DataFrame, x: str, y: str, metric: Metric) -> pd.Series:
    """The rows on the Pareto front of two columns: no other row is at least as good in both and better in one."""
    signed = table.assign(**{name: metric.sign * table[name] for name in GOODS})
    good, cost = ([name for name in (x, y) if (name in GOODS) is wanted] for wanted in (True, False))
    return pareto_front(signed, good, cost)


def stairs(x: str, metric: Metric) -> str:
    """The axis along which the line through the front goes first: on one side of it, some method is better in both columns."""
    return "y" if x in GOODS and metric.sign > 0 else "x"
