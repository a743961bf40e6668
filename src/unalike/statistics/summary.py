"""The summary of a comparison: one row per method and protocol, with scores, tests and verdicts."""

import math
from types import MappingProxyType
from typing import Any

import pandas as pd

from unalike.metrics.columns import Column, Columns
from unalike.metrics.named_metrics import Metric
from unalike.statistics.costs import totals
from unalike.statistics.inference import (
    TESTED,
    difference_table,
    family_tests,
    posterior_means,
    probability_best,
)
from unalike.statistics.sampling import Draws, draws_of, sampling_variances
from unalike.statistics.scores import in_order, require_method, tail_mean, worst_decile
from unalike.statistics.verdicts import CANDIDATE, Rules, roles, verdicts

COMPARED = (*TESTED[:2], "shrunken", *TESTED[2:-3])
"""Columns of a summary that compare a method with the baseline."""


def summary(
    rounds: pd.DataFrame,
    clients: pd.DataFrame,
    columns: Columns,
    rules: Rules,
    resampled: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row per method and protocol, in order of appearance. The columns, for accuracy, are:

    `method protocol role seeds accuracy accuracy_sd macro_f1 [further metrics] loss verdict probability_best pairs difference
    shrunken ci_low ci_high boot_low boot_high p p_holm p_exact better won client_sd worst_decile mb_down mb_up seconds`

    `accuracy` is the mean over seeds of `tail_mean`, `accuracy_sd` its standard deviation (ddof 1; NaN for one seed). `role` is
    `baseline`, `candidate`, or the reason why the method is outside the family (`verdicts.roles`). The difference and its tests
    are those of `inference.family_tests` over the candidates of a protocol, in `pairs` pairs with the same seed. They are NaN if
    the baseline has no score under this protocol: only the protocol `used` compares personal models with shared ones
    (`models_in_use`). A method outside the family has a difference and an interval of its own, without p.
    `shrunken` is the posterior mean of the difference (`inference.posterior_means`). `verdict` is that of `verdicts.verdicts`,
    empty for methods that are no candidates. `mb_down`, `mb_up` and `seconds` are totals
    of a run, averaged over seeds, and so is `epsilon`, a column that is there if a method is private. `resampled` has the scores
    on resampled test samples where all seeds have the same
    (`sampling.draws_of`).
    """
    require_method(rounds, rules.baseline)
    names = _names(rounds, columns)
    tables = []
    for column in columns.scores:
        scores = scores_by_seed(rounds, column)
        if scores:
            draws = draws_of(resampled, column)
            tables.append(_of_protocol(rounds, clients, columns, rules, column, scores, draws))
    if not tables:
        return pd.DataFrame(columns=names)
    table = pd.concat(tables, ignore_index=True)
    return in_order(table, rounds["method"].unique()).reindex(columns=names)


def _of_protocol(
    rounds: pd.DataFrame,
    clients: pd.DataFrame,
    columns: Columns,
    rules: Rules,
    column: Column,
    scores: dict[str, pd.Series],
    draws: Draws,
) -> pd.DataFrame:
    metric, costs = column.metric, totals(rounds)
    others = {m.name: columns.get(column.protocol, m.name) for m in columns.metrics if m != metric}
    by_method = {
        name: scores_by_seed(rounds, other) for name, other in others.items() if other is not None
    }
    rows = []
    for method, values in scores.items():
        row: dict[str, Any] = {"method": method, "protocol": column.protocol, "seeds": len(values)}
        row |= {metric.name: values.mean(), f"{metric.name}_sd": _sd(values)}
        row |= {name: means[method].mean() for name, means in by_method.items() if method in means}
        row |= _spread(clients, column, method)
        rows.append(row | costs.loc[method].to_dict())
    role_of = roles(rounds, column, scores, rules)
    tests = judged(scores, role_of, rules, metric, draws).drop(columns=[*TESTED[-3:]])
    return (
        pd.DataFrame(rows)
        .assign(role=list(role_of.values()))
        .merge(tests, left_on="method", right_index=True)
    )


def judged(
    scores: dict[str, pd.Series],
    role: dict[str, str],
    rules: Rules,
    metric: Metric,
    draws: Draws = MappingProxyType({}),
) -> pd.DataFrame:
    """The tests of every method against the baseline, with verdict and probability of being best; index: method.

    The candidates are one family. Every other method is tested by itself, and only its difference and interval are kept.
    """
    d = difference_table(scores, rules.baseline)
    candidates = [name for name in map(str, d) if role[name] == CANDIDATE]

    def tested(names: list[str]) -> pd.DataFrame:
        return family_tests(
            d[names],
            metric.sign,
            rules.level,
            rules.overlap,
            sampling_variances(draws, rules.baseline, names),
        )

    tables = [tested(candidates)]
    for name in d.columns.difference(candidates, sort=False):
        alone = tested([str(name)])
        tables.append(alone.assign(p=math.nan, p_holm=math.nan, p_exact=math.nan))
    tests = pd.concat([table for table in tables if len(table)]) if len(d.columns) else tables[0]
    base = scores.get(rules.baseline, pd.Series(dtype=float))
    gain, low, high = (metric.sign * tests[name] for name in ("difference", "ci_low", "ci_high"))
    smallest = rules.effect(metric, float(base.mean()) if len(base) else math.nan)
    words = pd.Series(
        verdicts(gain, low, high, tests["p_holm"], rules.level, smallest),
        index=tests.index,
        dtype=object,
    )
    means = posterior_means(d[candidates], tests.loc[candidates], metric.sign)
    tests = tests.assign(
        verdict=words.where(tests.index.isin(candidates) & (tests["pairs"] > 0), "")
    )
    return tests.reindex(list(scores)).assign(
        **{n: tests[n].reindex(list(scores)).fillna(0).astype(int) for n in ("pairs", "won")},
        verdict=lambda t: t["verdict"].fillna(""),
        probability_best=probability_best(means, rules.baseline, candidates, metric.sign),
        shrunken=means.mean(),
    )


def scores_by_seed(rounds: pd.DataFrame, column: Column) -> dict[str, pd.Series]:
    """Method -> its scores by seed; methods without a score in this column are left out."""
    if column.name not in rounds:
        return {}
    means = tail_mean(rounds, column)
    return {
        str(method): values.droplevel("method")
        for method, values in means.groupby("method", sort=False)
    }


def _sd(values: pd.Series) -> float:
    """Standard deviation (ddof 1); NaN if a value is not finite."""
    return float(values.std(ddof=1)) if values.map(math.isfinite).all() else math.nan


def _spread(clients: pd.DataFrame, column: Column, method: str) -> dict[str, float]:
    """Standard deviation over clients (ddof 1) and worst decile, each within a seed, then the mean over seeds."""
    if column.name not in clients:
        return {"client_sd": math.nan, "worst_decile": math.nan}
    by_seed = clients[(clients["method"] == method) & clients[column.name].notna()].groupby("seed")[
        column.name
    ]
    worst = by_seed.agg(lambda values: worst_decile(values, column.metric))
    return {"client_sd": by_seed.std(ddof=1).mean(), "worst_decile": worst.mean()}


def _names(rounds: pd.DataFrame, columns: Columns) -> list[str]:
    """The columns of the summary; the further metrics are those that the rounds have."""
    metric = columns.metric.name
    return [
        *("method", "protocol", "role", "seeds", metric, f"{metric}_sd"),
        *(other.name for other in columns.further if other.name in rounds),
        *("loss", "verdict", "probability_best", *COMPARED),
        *("client_sd", "worst_decile", "mb_down", "mb_up", "seconds"),
        *(["epsilon"] if "epsilon" in rounds else []),
    ]
