"""The summary of a comparison: one row per method and protocol, with scores, tests and verdicts."""

import math
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from unalike.metrics.columns import IN_USE, Column, Columns
from unalike.metrics.named_metrics import Metric
from unalike.statistics.costs import running_totals, totals
from unalike.statistics.inference import (
    TESTED,
    difference_table,
    family_tests,
    posterior_means,
    probability_best,
)
from unalike.statistics.moderated_t import levels_of_holm, moderated_t
from unalike.statistics.scores import in_order, require_method, tail_mean, worst_decile
from unalike.statistics.seed_draws import Draws, draws_of, sampling_variances
from unalike.statistics.verdicts import CANDIDATE, EQUAL, Rules, roles, verdicts

ONLY_TESTED = TESTED[-3:]
"""Columns of the tests that a summary leaves out."""
COMPARED = (*TESTED[:2], "shrunken", *TESTED[2:-3])
"""Columns of a summary that compare a method with the baseline."""
OF_ONE_DIFFERENCE = ["verdict", *COMPARED]
"""Columns of a summary that one difference has once, whatever protocol shows it."""


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
    `ci_low` and `ci_high` of several candidates are corrected as their p values are (`moderated_t.levels_of_holm`), unless they are
    practically equal to the baseline without it. A candidate that has the scores of its model in use under another protocol, as the
    baseline has, has the same tests and the same verdict there, whatever the other candidates are: one difference, one interval.
    `shrunken` is the posterior mean of the difference (`inference.posterior_means`). `verdict` is that of `verdicts.verdicts`,
    empty for methods that are no candidates. `mb_down`, `mb_up` and `seconds` are totals
    of a run, averaged over seeds, and so are `epsilon` and `simulated_seconds`, columns that are there
    where they apply. `resampled` has the scores on resampled test samples where all seeds have the same (`sampling.draws_of`).
    """
    require_method(rounds, rules.baseline)
    names = _names(rounds, columns)
    by_protocol = {column.protocol: scores_by_seed(rounds, column) for column in columns.scores}
    tables = {}
    for column in columns.scores:
        scores = by_protocol[column.protocol]
        if scores:
            tables[column.protocol] = _of_protocol(
                rounds,
                clients,
                columns=columns,
                rules=rules,
                column=column,
                scores=scores,
                draws=draws_of(resampled, column),
            )
    if not tables:
        return pd.DataFrame(columns=names)
    if IN_USE in tables:
        for protocol, scores in by_protocol.items():
            same = _same_scores(scores, by_protocol[IN_USE], rules.baseline)
            if same and protocol != IN_USE:
                tables[protocol] = _with_tests_of(tables[protocol], tables[IN_USE], same)
    table = pd.concat([*tables.values()], ignore_index=True)
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
    """The rows of the summary for the methods that have scores under the protocol of `column`."""
    metric = column.metric
    costs = totals(rounds)
    scores_of_other_metrics = {}
    for other in columns.metrics:
        other_column = columns.get(column.protocol, other.name)
        if other != metric and other_column is not None:
            scores_of_other_metrics[other.name] = scores_by_seed(rounds, other_column)

    rows = []
    for method, values in scores.items():
        row: dict[str, Any] = {"method": method, "protocol": column.protocol, "seeds": len(values)}
        row[metric.name] = values.mean()
        row[f"{metric.name}_sd"] = _sd(values)
        for name, by_method in scores_of_other_metrics.items():
            if method in by_method:
                row[name] = by_method[method].mean()
        row |= _spread(clients, column, method)
        rows.append(row | costs.loc[method].to_dict())
    table = pd.DataFrame(rows)

    role_of = roles(rounds, column, scores, rules)
    tests = tests_and_verdicts(scores, role_of, rules, metric, draws)
    tests = tests.drop(columns=list(ONLY_TESTED))
    return table.assign(role=list(role_of.values())).merge(
        tests, left_on="method", right_index=True
    )


def tests_and_verdicts(
    scores: dict[str, pd.Series],
    role: dict[str, str],
    rules: Rules,
    metric: Metric,
    draws: Draws = MappingProxyType({}),
) -> pd.DataFrame:
    """The tests of every method against the baseline, with verdict and probability of being best; index: method.

    The candidates are one family. Every other method is tested by itself, and only its difference and interval are kept.
    """
    differences = difference_table(scores, rules.baseline)
    candidates = [name for name in map(str, differences) if role[name] == CANDIDATE]

    def tested(names: list[str]) -> pd.DataFrame:
        return family_tests(
            differences[names],
            sign=metric.sign,
            level=rules.level,
            overlap=rules.overlap,
            sampling=sampling_variances(draws, rules.baseline, names),
        )

    # a method outside the family is not corrected for, and so has no p
    tables = [tested(candidates)]
    for name in differences.columns.difference(candidates, sort=False):
        alone = tested([str(name)])
        tables.append(alone.assign(p=math.nan, p_holm=math.nan, p_exact=math.nan))
    tests = tables[0]
    if len(differences.columns):
        tests = pd.concat([table for table in tables if len(table)])

    base = scores.get(rules.baseline, pd.Series(dtype=float))
    texts = verdicts(
        gain=metric.sign * tests["difference"],
        low=metric.sign * tests["ci_low"],
        high=metric.sign * tests["ci_high"],
        p=tests["p_holm"],
        level=rules.level,
        smallest=rules.effect(metric, float(base.mean()) if len(base) else math.nan),
    )
    has_verdict = tests.index.isin(candidates) & (tests["pairs"] > 0)
    words = pd.Series(texts, index=tests.index, dtype=object).where(has_verdict, "")

    # The interval of each candidate says what its corrected test says: it excludes 0 where that shows a difference. One that lies
    # within the smallest effect has done so as it is.
    if candidates:
        holm_levels = levels_of_holm(tests.loc[candidates, "p"], rules.level)
        is_equal = (words[candidates] == EQUAL).to_numpy()
        corrected = moderated_t(
            differences[candidates].to_numpy(float),
            np.where(is_equal, rules.level, holm_levels),
            rules.overlap,
            sampling_variances(draws, rules.baseline, candidates),
        )
        tests.loc[candidates, "ci_low"] = corrected.low
        tests.loc[candidates, "ci_high"] = corrected.high

    means = posterior_means(differences[candidates], tests.loc[candidates], metric.sign)
    # the baseline, and methods that share no seed with it, have a row without numbers
    table = tests.assign(verdict=words).reindex(list(scores))
    return table.assign(
        pairs=table["pairs"].fillna(0).astype(int),
        won=table["won"].fillna(0).astype(int),
        verdict=table["verdict"].fillna(""),
        probability_best=probability_best(means, rules.baseline, candidates, metric.sign),
        shrunken=means.mean(),
    )


def _same_scores(
    scores: dict[str, pd.Series], in_use: dict[str, pd.Series], baseline: str
) -> list[str]:
    """The methods whose scores are those of their models in use; none unless that holds of the baseline, too."""
    same = [
        method for method in scores if method in in_use and scores[method].equals(in_use[method])
    ]
    return same if baseline in same else []


def _with_tests_of(table: pd.DataFrame, in_use: pd.DataFrame, same: list[str]) -> pd.DataFrame:
    """The rows of a protocol, with the tests and verdicts of the models in use for the candidates that have the `same` scores."""
    by_method = table.set_index("method")
    tested = in_use.set_index("method")
    role = by_method["role"].to_dict()
    role_in_use = tested["role"].to_dict()
    for method in same:
        if role[method] == role_in_use[method] == CANDIDATE:
            by_method.loc[method, OF_ONE_DIFFERENCE] = tested.loc[method, OF_ONE_DIFFERENCE]
    return by_method.reset_index()


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
    scored = clients[(clients["method"] == method) & clients[column.name].notna()]
    by_seed = scored.groupby("seed")[column.name]
    worst = by_seed.agg(partial(worst_decile, metric=column.metric))
    return {"client_sd": by_seed.std(ddof=1).mean(), "worst_decile": worst.mean()}


def _names(rounds: pd.DataFrame, columns: Columns) -> list[str]:
    """The columns of the summary; the further metrics are those that the rounds have."""
    metric = columns.metric.name
    names = ["method", "protocol", "role", "seeds", metric, f"{metric}_sd"]
    names += [other.name for other in columns.further if other.name in rounds]
    names += ["loss", "verdict", "probability_best", *COMPARED]
    names += ["client_sd", "worst_decile", "mb_down", "mb_up", "seconds"]
    return [*names, *running_totals(rounds)]
