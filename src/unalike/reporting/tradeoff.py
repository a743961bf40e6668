"""What a method gives and what it takes: accuracy, fairness and traffic, and which methods nothing beats in all three."""

from __future__ import annotations

import pandas as pd

from unalike.metrics.inference import levelled
from unalike.metrics.statistics import Metric, efficient


def tradeoff(summary: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """`method protocol score worst mb front`, a row for each row of `summary` that has all three.

    `score` is the mean, `worst` the mean of the worst tenth of the clients, `mb` what a run sends both ways. `front` is
    true where no other row is at least as good in all three and better in one: the Pareto front.
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
    signed = table.assign(**{name: metric.sign * levelled(table[name]) for name in ("score", "worst")})
    return table.assign(front=efficient(signed, ["score", "worst"], ["mb"])).reset_index(drop=True)
