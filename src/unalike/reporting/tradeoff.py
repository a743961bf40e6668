"""The trade-off between score, score of the worst clients and traffic, with its Pareto front."""

from __future__ import annotations

import pandas as pd

from unalike.metrics.costs import pareto_front
from unalike.metrics.inference import without_rounding
from unalike.metrics.statistics import Metric


def tradeoff(summary: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """`method protocol score worst mb front`, one row for each row of `summary` that has all three numbers.

    `score` is the mean, `worst` the mean over the worst tenth of the clients, `mb` the traffic of a run in both directions.
    `front` marks the Pareto front: no other row is at least as good in all three and better in one.
    """
    table = pd.DataFrame(
        {
            "method": summary["method"],
            "protocol": summary["protocol"],
            "score": summary[metric.column],
            "worst": summary["worst_decile"],
            "mb": summary["mb_down"] + summary["mb_up"],
        }
    ).dropna()
    signed = table.assign(**{name: metric.sign * without_rounding(table[name]) for name in ("score", "worst")})
    return table.assign(front=pareto_front(signed, ["score", "worst"], ["mb"])).reset_index(drop=True)
