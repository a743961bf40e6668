"""Signs that training failed: nothing was learned, a loss exploded, or the upper reference is below the baseline."""

from __future__ import annotations

import math

import pandas as pd

from unalike.metrics.columns import Columns
from unalike.metrics.named_metrics import KNOWN, Metric
from unalike.metrics.verdicts import BASELINE, CANDIDATE, Rules
from unalike.reporting import wording
from unalike.reporting.table import rows

EXPLODED = 100
"""A loss that is so many times that of the untrained model has exploded."""


def nothing_learned(scored: pd.DataFrame, metric: Metric, classes: int | None) -> str:
    """A sentence where no method is better than a constant prediction; empty where one is, or where that cannot be told.

    A constant prediction has a balanced accuracy of 1 / classes whatever the labels, an area under the ROC curve of one half, and
    an R2 of 0 at best.

    `scored` are the rows of a summary under one protocol; `classes` is None for regression.
    """
    chance, measure, constant = _chance(metric, classes)
    own = scored[scored["role"].isin([BASELINE, CANDIDATE])]
    if measure not in own or own[measure].isna().all():
        return ""
    best = float(own[measure].max())
    if not best <= chance + min(0.01, abs(chance) / 10 or 0.01):
        return ""
    known = KNOWN[measure]
    return (
        f"Nothing was learned: no method is better than always predicting {constant} (the best {known.word} is {known.text(best)}, "
        f"that of a constant prediction {known.text(chance)}). Train longer, or change the learning rate."
    )


def _chance(metric: Metric, classes: int | None) -> tuple[float, str, str]:
    """The score of a constant prediction, the column that shows it, and the prediction."""
    if classes is None:
        return 0.0, "r2", "the mean"
    if metric.name == "roc_auc":
        return 0.5, metric.name, "the same risk"
    shows = metric.name in ("accuracy", "macro_f1", "balanced_accuracy")
    return 1 / classes, "balanced_accuracy" if shows else "", "the most frequent class"


def cautions(rounds: pd.DataFrame, scored: pd.DataFrame, columns: Columns, rules: Rules, protocol: str) -> list[str]:
    """Sentences about losses that exploded, and about an upper reference below the baseline.

    `scored` are the rows of the summary under the protocol that decides.
    """
    found, metric, loss = [], columns.metric, columns.get(protocol, "loss")
    for method, own in rounds.groupby("method", sort=False) if loss is not None and loss.name in rounds else ():
        assert loss is not None
        known = own[own[loss.name].notna()].sort_values("round").groupby("seed")[loss.name]
        first, last = float(known.first().max()), float(known.last().max())
        if not last <= EXPLODED * first:
            found.append(
                f"The training of {method} exploded: its loss is {last:.3g}, {first:.3g} before training. "
                "Lower the learning rate."
            )
    levels = {str(row["method"]): float(row[metric.name]) for row in rows(scored)}
    base = levels.get(rules.baseline, math.nan)
    for method, level in levels.items():
        if rules.references.get(method, "").startswith("upper") and metric.sign * (level - base) < -rules.effect(
            metric, base
        ):
            found.append(
                f"{wording.capital(method)} is no upper reference here: {metric.text(level)}, less good than {rules.baseline} "
                f"({metric.text(base)}). Its training does not suit it; try another learning rate or more rounds."
            )
    return found
