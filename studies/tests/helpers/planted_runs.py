"""Made-up stored runs in which the best method follows from label skew, and another one is a little better for real owners."""

from __future__ import annotations

import pandas as pd

from unalike_studies.recommendation.stored_runs import METHODS, METRICS, NATURAL, StoredRuns
from unalike_studies.recommendation.task_features import TITLES

GAINS = {"FedDyn": (0.10, -0.05), "SCAFFOLD": (-0.02, 0.04)}
"""Method -> its gain over FedAvg under strong and under weak label skew; all others are as good as FedAvg."""
OWNERS = 10
SURE = ("Ditto", 0.02)
"""The method that gains on the data of all owners, and its gain."""


def planted_runs() -> StoredRuns:
    """24 tasks on 4 data sets, half of them with label skew 0.8 and half with 0.1, and 10 data sets with owners; two seeds."""
    rows = []
    for number in range(24 + OWNERS):
        strong, owned = number % 2 == 0, number >= 24
        fields = dict.fromkeys(TITLES, 1.0) | {
            "label_skew": 0.8 if strong else 0.1,
            "clients": 5.0 + number % 3,
        }
        for method, spec in METHODS.items():
            gain = GAINS.get(method, (0.0, 0.0))[0 if strong else 1] + (
                SURE[1] if owned and method == SURE[0] else 0
            )
            for seed in (0, 1):
                score = 0.6 + gain + (0.01 if seed else -0.01)
                rows.append(
                    {
                        "task": f"task {number}",
                        "data": f"owners {number}" if owned else "abcd"[number // 2 % 4],
                        "kind": NATURAL if owned else "label skew" if strong else "none",
                        "metric": "accuracy",
                        **dict.fromkeys(METRICS, float("nan")),
                        **fields,
                        "method": method,
                        "spec": spec,
                        "rate": 0.1 if strong else 0.3,
                        "validation": score,
                        "seed": seed,
                        "accuracy": score,
                        "roc_auc": score / 2 if owned else float("nan"),
                        "worst_decile": score / 2,
                        "bytes": 2e6 if method == "SCAFFOLD" else 1e6,
                        "seconds": 1.0,
                    }
                )
    return StoredRuns(pd.DataFrame(rows))
