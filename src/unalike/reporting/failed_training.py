"""Signs that training failed: nothing was learned, a loss exploded, or the upper reference is below the baseline."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from unalike.metrics.columns import Column, Columns
from unalike.metrics.failures import LESS_NOISE, ConstantPrediction, has_exploded, why_unscored
from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.table import rows
from unalike.statistics.verdicts import ORACLE, UPPER, Rules


def nothing_learned(scored: pd.DataFrame, metric: Metric, classes: int | None) -> str:
    """A sentence where no method is better than a constant prediction; empty where one is, or where that cannot be told.

    `scored` are the rows of a summary under one protocol; `classes` is None for regression.
    """
    constant = ConstantPrediction.of(metric, classes)
    levels = _levels(scored, constant.measure)
    best = max(levels.values(), default=math.nan)
    if not constant.is_as_good(best):
        return ""
    return (
        f"Nothing was learned: no method is better than always predicting {constant.prediction} (the best "
        f"{constant.beside(best)}). {_advice(scored, levels, constant.advice)}"
    )


def trivially_personal(label_counts: pd.DataFrame | None) -> str:
    """A sentence where at least half of the clients train on one class each, so that personal models are right without learning.

    `label_counts` are training samples by client and class; None for regression.
    """
    if label_counts is None or len(label_counts.columns) < 2:
        return ""
    classes_of_client = (label_counts > 0).sum(axis=1)
    single = (classes_of_client == 1).sum()
    with_samples = (classes_of_client > 0).sum()
    if not single or 2 * single < with_samples:
        return ""
    return (
        f"No decision: {single} of {len(classes_of_client)} clients train on one class each, where a personal model is right "
        "if it always predicts that class. Compare shared models, or give clients several classes."
    )


def _levels(scored: pd.DataFrame, measure: str) -> dict[str, float]:
    """Method -> its score, for the baseline and the candidates that have one, and methods that repeat them."""
    if measure not in scored:
        return {}
    is_reference = scored["role"].isin([UPPER, ORACLE])
    shown = scored[~is_reference & scored[measure].notna()]
    return dict(zip(map(str, shown["method"]), shown[measure].astype(float), strict=True))


def some_learned_nothing(scored: pd.DataFrame, metric: Metric, classes: int | None) -> list[str]:
    """A sentence where some methods are no better than a constant prediction and others are."""
    constant = ConstantPrediction.of(metric, classes)
    levels = _levels(scored, constant.measure)
    idle = [name for name, level in levels.items() if constant.is_as_good(level)]
    if not idle or len(idle) == len(levels):
        return []
    them = "them" if len(idle) > 1 else "it"
    return [
        f"No better than always predicting {constant.prediction}: {wording.listing(idle)}; to be "
        f"better than {them} shows nothing. {_advice(scored, idle, constant.advice)}"
    ]


def _advice(table: pd.DataFrame, methods: Iterable[str], usual: str) -> str:
    """The usual advice, or another one where all these methods of a table are private: their noise hurts more."""
    advice = usual
    if "epsilon" in table:
        epsilons = table.loc[table["method"].isin(list(methods)), "epsilon"]
        advice = LESS_NOISE if epsilons.notna().all() else usual
    return f"{wording.capital(advice)}."


def cautions(
    rounds: pd.DataFrame,
    scored: pd.DataFrame,
    columns: Columns,
    rules: Rules,
    protocol: str,
    personal: Sequence[str] = (),
    has_fits: bool = False,
) -> list[str]:
    """Sentences about losses that exploded, and about an upper reference below the baseline or a candidate.

    `scored` are the rows of the summary under the protocol that decides, `personal` the methods judged by personal models. With
    `has_fits` models that were fitted to convergence are the upper reference, and nothing is said of those trained by rounds.
    """
    loss = columns.get(protocol, "loss")
    sentences = []
    if loss is not None and loss.name in rounds:
        sentences += _explosions(rounds, loss, protocol, personal)
    if has_fits:
        return sentences
    return sentences + _failed_references(scored, columns.metric, rules, personal)


def _explosions(
    rounds: pd.DataFrame, loss: Column, protocol: str, personal: Sequence[str]
) -> list[str]:
    """Sentences about methods whose loss exploded, or that end without a loss."""
    sentences = []
    for method, of_method in rounds.groupby("method", sort=False):
        known = of_method[of_method[loss.name].notna()].sort_values("round")
        by_seed = known.groupby("seed")[loss.name]
        first = float(by_seed.first().max())
        last = float(by_seed.last().max())
        if math.isnan(last):
            # methods with personal models may have no shared one
            if method not in personal:
                sentences.append(f"{method} has no score: {why_unscored(protocol)}.")
        elif has_exploded(first, last):
            sentences.append(
                f"The training of {method} exploded: its loss is {last:.3g}, {first:.3g} before training. "
                + _advice(of_method, [str(method)], "lower the learning rate")
            )
    return sentences


def _failed_references(
    scored: pd.DataFrame, metric: Metric, rules: Rules, personal: Sequence[str]
) -> list[str]:
    """Sentences about upper references that are worse than another method, by more than the smallest effect."""
    levels = {str(row["method"]): float(row[metric.name]) for row in rows(scored)}
    effect = rules.effect(metric, levels.get(rules.baseline, math.nan))
    others = {
        name: level
        for name, level in levels.items()
        if name not in rules.references and not math.isnan(level)
    }
    if not others:
        return []
    best = max(others, key=lambda name: metric.sign * others[name])
    sentences = []
    for method, level in levels.items():
        is_upper = rules.references.get(method) == UPPER
        if not is_upper or not metric.sign * (level - others[best]) < -effect:
            continue
        why = "Its training does not suit it; try another learning rate or more rounds."
        if best in personal:
            why = f"Models of their own, as {best} trains them, are better than one for all, or its training does not suit it."
        sentences.append(
            f"{wording.capital(method)} is not the best possible here: {metric.text(level)}, less good than {best} "
            f"({metric.text(others[best])}). {why}"
        )
    return sentences
