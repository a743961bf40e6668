"""Together, or alone? The answer of models that were fitted to convergence, and how near the methods of rounds come to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from unalike.metrics.named_metrics import Metric
from unalike.reporting import wording
from unalike.reporting.content import ReportContent
from unalike.reporting.decision import KeyFact
from unalike.reporting.table import Table, interval, number, rows, words
from unalike.statistics.fitted_scores import (
    ALONE,
    TOGETHER,
    Gain,
    draws_of_references,
    paired_gain,
    scores_of_clients,
    scores_of_references,
)
from unalike.statistics.moderated_t import holm, levels_of_holm
from unalike.statistics.risks import can_be_judged
from unalike.statistics.seed_draws import POOLED_SCORE, SPLITS, draws_of, sampling_variances
from unalike.statistics.summary import scores_by_seed
from unalike.statistics.verdicts import BETTER, EQUAL, WORSE, verdicts

QUESTION = "Together, or alone?"
PAYS = "Together."
NOT_REACHED = "Together, but not with these methods."
STAY_ALONE = "Alone."
RATHER_ALONE = "Alone, rather than with these methods."
EITHER = "Either: the difference does not matter."
OPEN = "Not decided: no difference is shown."
LEAST_PAIRS = 3
"""The fewest seeds, or folds, of an answer: the spread of two differences says next to nothing."""
TOO_FEW = "Not decided: this takes three seeds or folds."


@dataclass(frozen=True)
class BestFit:
    """The reference with the best mean score among those of each client alone, or of all data pooled.

    `label` is its name in tables, `model` that of its kind of model, `trees` whether it is one of trees, which no method trains.
    """

    label: str
    model: str
    trees: bool
    score: float


@dataclass(frozen=True)
class ClientGain:
    """The gain of one client by the model of all data pooled over its own; test rows and positives are means over seeds."""

    client: str
    n_test: float
    n_positive: float
    alone: float
    pooled: float
    gain: Gain


@dataclass(frozen=True)
class TogetherOrAlone:
    """Whether training together pays.

    Attributes:
        metric: the metric that decides.
        level: the level of the tests. The two gains over `alone` have intervals that are corrected as these are (Holm), all
            others the confidence 1 - level.
        alone: the best model that each client fits alone.
        pooled: the best model that is fitted on all data pooled.
        gain: the gain of `pooled` over `alone`.
        method: the method that the comparison decides for, or keeps; empty if all train alone or on pooled data.
        method_gain: the gain of `method` over `alone`; None without a method.
        method_score: the mean score of `method`; NaN without a method.
        tree_lead: the gain of `pooled` over `method` where `pooled` is of trees and is ahead by more than the smallest effect of
            interest; else None.
        clients: the gains of single clients; none where seeds have other clients.
        few_clients: how many further clients have fewer than ten test rows of an outcome: they are counted, not judged.
        verdict: `Together.`, `Alone.` or another of this file's answers.
        client_noun: what the user's data calls a client, such as `hospital`.
    """

    metric: Metric
    level: float
    alone: BestFit
    pooled: BestFit
    gain: Gain
    method: str
    method_gain: Gain | None
    method_score: float
    tree_lead: Gain | None
    clients: Sequence[ClientGain]
    few_clients: int
    verdict: str
    client_noun: str

    @property
    def question(self) -> str:
        """The question that the verdict answers, for a heading."""
        return QUESTION

    @property
    def answer(self) -> str:
        """The question and its answer in one line."""
        return f"{self.question} {self.verdict}"

    @property
    def key_facts(self) -> list[KeyFact]:
        """The gains that the answer rests on."""
        alone = f"each {self.client_noun} alone"
        text = self.metric.text
        pooling = (
            f"in {self.metric.word}: {text(self.pooled.score)} with all data pooled ({self.pooled.model}), "
            f"{text(self.alone.score)} with {alone} ({self.alone.model})"
        )
        facts = [self._key_fact("Gain by pooling", self.gain, pooling)]
        if self.method_gain is not None:
            in_rounds = (
                f"{text(self.method_score)} when trained in rounds without pooling, over {alone}"
            )
            facts.append(self._key_fact(f"Gain by {self.method}", self.method_gain, in_rounds))
        if self.tree_lead is not None:
            shown = "" if self.tree_lead.low > 0 else "; not shown"
            trees = f"of {self.pooled.label} over {self.method}{shown}: no method here trains trees"
            facts.append(self._key_fact("Lead of trees", self.tree_lead, trees))
        has_clients = bool(self.clients or self.few_clients)
        if has_clients and self.verdict != TOO_FEW:
            facts.append(self._on_clients())
        return facts

    def __str__(self) -> str:
        return "\n".join([self.answer, *map(str, self.key_facts)])

    @property
    def fields(self) -> dict[str, Any]:
        """The text and all fields as plain values, the metric without its formula."""
        return {"text": str(self)} | asdict(self) | {"metric": self.metric.stored_fields}

    def tests(self, reference: str, method: str) -> bool:
        """Whether the gain of this method over this reference is one that the verdict tests."""
        return (reference, method) == (self.alone.label, self.method)

    def _key_fact(self, title: str, gain: Gain, of: str) -> KeyFact:
        """A gain as a key fact; `of` says what it is a gain of."""
        between = wording.interval(gain.low, gain.high, self.level, self.metric)
        return KeyFact(title, self.metric.difference(gain.mean), f"{between}, {of}")

    def _on_clients(self) -> KeyFact:
        """The clients whose interval excludes 0, and the number of others."""
        judged = [client for client in self.clients if client.gain.is_known]
        gaining = [client.client for client in judged if client.gain.low > 0]
        losing = [client.client for client in judged if client.gain.high < 0]
        counts = []
        notes = []
        if gaining:
            counts.append(f"{len(gaining)} better")
            notes.append(f"better by pooling: {wording.few(gaining, self.client_noun)}")
        if losing:
            counts.append(f"{len(losing)} worse")
            notes.append(f"worse: {wording.few(losing, self.client_noun)}")
        rest = len(self.clients) - len(gaining) - len(losing)
        if rest:
            notes.append(f"no difference is shown at {wording.plural(rest, self.client_noun)}")
        if self.few_clients:
            notes.append(wording.not_judged(self.few_clients, self.client_noun))
        value = ", ".join(counts) or ("Not decided" if rest else "Not judged")
        return KeyFact(f"By {self.client_noun}", value, "; ".join(notes))


def together_or_alone(content: ReportContent) -> TogetherOrAlone | None:
    """The answer of a comparison; None without fitted references, and before the comparison has ended."""
    if content.unfinished or not content.has_fits:
        return None
    assert content.fitted is not None
    scores = scores_of_references(content.fitted, content.metric, content.across)
    alone = _best(content, scores, ALONE)
    pooled = _best(content, scores, TOGETHER)
    method = _method(content)
    if method:
        scores[method] = scores_by_seed(content.rounds, content.deciding_column)[method]

    rules = content.rules

    def gain(label: str, other: str, level: float = rules.level) -> Gain:
        return paired_gain(
            scores[label],
            scores[other],
            content.metric,
            level=level,
            overlap=rules.overlap,
            sampling=_sampling(content, label, other),
        )

    # Two tests answer one question; their intervals say what the corrected tests say.
    asked = [pooled.label, method] if method else [pooled.label]
    p = [gain(label, alone.label).p for label in asked]
    levels = map(float, levels_of_holm(p, rules.level))
    over_alone, *of_method = [
        gain(label, alone.label, level) for label, level in zip(asked, levels, strict=True)
    ]
    method_gain = of_method[0] if method else None
    tree_lead = None
    if method and pooled.trees:
        lead = gain(pooled.label, method)
        is_ahead = lead.mean >= content.smallest_difference
        tree_lead = lead if is_ahead else None
    clients = _clients(content, alone.label, pooled.label)
    judged = [client for client in clients if can_be_judged(client.n_test, client.n_positive)]
    return TogetherOrAlone(
        metric=content.metric,
        level=rules.level,
        alone=alone,
        pooled=pooled,
        gain=over_alone,
        method=method,
        method_gain=method_gain,
        method_score=float(scores[method].mean()) if method else math.nan,
        tree_lead=tree_lead,
        clients=judged,
        few_clients=len(clients) - len(judged),
        verdict=_verdict(content, over_alone, method_gain),
        client_noun=content.client_noun,
    )


def _best(content: ReportContent, scores: dict[str, pd.Series], scope: str) -> BestFit:
    """The reference of a scope with the best mean score."""
    assert content.fitted is not None
    of_scope = content.fitted[content.fitted["scope"] == scope].drop_duplicates("method")
    metric = content.metric
    fits = []
    for row in rows(of_scope):
        score = float(scores[row["method"]].mean())
        fits.append(BestFit(row["method"], row["model"], bool(row["trees"]), score))
    return max(
        fits, key=lambda fit: -math.inf if math.isnan(fit.score) else metric.sign * fit.score
    )


def _method(content: ReportContent) -> str:
    """The method that the comparison decides for or keeps; the best of the others if that one does not train together."""
    outside = {method.label for method in content.methods if method.alone or method.reference}
    scored = scores_by_seed(content.rounds, content.deciding_column)
    means = {
        label: content.metric.sign * float(values.mean())
        for label, values in scored.items()
        if label not in outside
    }
    chosen = content.decision.choice or content.baseline
    if chosen in means or not means:
        return chosen if means else ""
    return max(means, key=lambda label: means[label])


def _sampling(content: ReportContent, label: str, other: str) -> float:
    """The variance of a difference that comes from test rows which all seeds share; 0 where each seed tests others."""
    assert content.fitted is not None
    # test rows were resampled for the pooled score alone
    if content.across != POOLED_SCORE:
        return 0.0
    draws = {
        **draws_of(content.resampled, content.deciding_column),
        **draws_of_references(content.fitted, content.metric),
    }
    return float(sampling_variances(draws, other, [label])[0])


def _verdict(content: ReportContent, over_alone: Gain, method_gain: Gain | None) -> str:
    """The answer in a few words: two tests, corrected by Holm, of pooling and of the method against each client alone."""
    gains = [over_alone] if method_gain is None else [over_alone, method_gain]
    if min(gain.pairs for gain in gains) < LEAST_PAIRS:
        return TOO_FEW
    found = verdicts(
        gain=[gain.mean for gain in gains],
        low=[gain.low for gain in gains],
        high=[gain.high for gain in gains],
        p=holm([gain.p for gain in gains]),
        level=content.rules.level,
        smallest=content.smallest_difference,
    )
    of_method = "" if method_gain is None else found[1]
    if BETTER in found:
        gains_nothing = found[0] == BETTER and of_method in (WORSE, EQUAL)
        return NOT_REACHED if gains_nothing else PAYS
    if WORSE in found:
        if found[0] == WORSE:
            return STAY_ALONE
        # without an interval nothing is said of pooling
        return RATHER_ALONE if over_alone.is_known else OPEN
    return EITHER if found[0] == EQUAL else OPEN


def _clients(content: ReportContent, alone: str, pooled: str) -> list[ClientGain]:
    """The gain of each client; an interval only where each seed tests other rows of the same clients."""
    assert content.fitted is not None
    if not content.same_clients:
        return []
    metric = content.metric_of_clients
    rules = content.rules
    table = scores_of_clients(content.fitted)
    clients = []
    for client, of_client in table.groupby("client", sort=False):
        by_method = {name: part.set_index("seed") for name, part in of_client.groupby("method")}
        own = by_method[alone][metric.name]
        of_all = by_method[pooled][metric.name]
        gain = paired_gain(of_all, own, metric, level=rules.level, overlap=rules.overlap)
        if content.sampling.redrawn != SPLITS:
            gain = replace(gain, low=math.nan, high=math.nan, p=math.nan)
        sizes = by_method[alone].reindex(columns=["n_test", "n_positive"]).mean()
        clients.append(
            ClientGain(
                client=str(client),
                n_test=float(sizes["n_test"]),
                n_positive=float(sizes["n_positive"]),
                alone=float(own.mean()),
                pooled=float(of_all.mean()),
                gain=gain,
            )
        )
    return clients


def references(content: ReportContent) -> pd.DataFrame:
    """One row per fitted reference: `method scope model seeds`, score and sd over seeds, and the difference to the baseline.

    `difference ci_low ci_high` are paired by seed as those of a method, in the unit of the metric; a difference that the answer
    tests has its interval. Empty without references.
    """
    if not content.has_fits:
        return pd.DataFrame()
    assert content.fitted is not None
    metric = content.metric
    scores = scores_of_references(content.fitted, metric, content.across)
    base = scores_by_seed(content.rounds, content.deciding_column).get(content.baseline)
    answer = together_or_alone(content)
    described = content.fitted.drop_duplicates("method").set_index("method")
    table = []
    for label, values in scores.items():
        row: dict[str, Any] = {
            "method": label,
            "scope": described.loc[label, "scope"],
            "model": described.loc[label, "model"],
            "seeds": len(values),
            metric.name: float(values.mean()),
            f"{metric.name}_sd": float(values.std(ddof=1)),
        }
        if base is not None:
            gain = paired_gain(
                values,
                base,
                metric,
                level=content.rules.level,
                overlap=content.rules.overlap,
                sampling=_sampling(content, label, content.baseline),
            )
            if answer is not None and answer.tests(label, content.baseline):
                assert answer.method_gain is not None
                gain = answer.method_gain.reversed
            ends = np.sort(metric.sign * np.array([gain.low, gain.high]))
            row["difference"] = metric.sign * gain.mean
            row["ci_low"] = float(ends[0])
            row["ci_high"] = float(ends[1])
        table.append(row)
    return pd.DataFrame(table)


def reference_table(content: ReportContent) -> Table | None:
    """The fitted references with score, difference to the baseline and interval; None without references."""
    scores = references(content)
    if scores.empty:
        return None
    metric = content.metric
    columns = [
        words("Fitted reference", "method"),
        number(metric.title, metric.name, metric.text),
        number("± sd", f"{metric.name}_sd", metric.amount),
    ]
    if "difference" in scores:
        level = f"{wording.confidence(content.rules.level)} interval"
        columns += [
            number(f"Difference to {content.baseline}", "difference", metric.difference),
            interval(level, "ci_low", "ci_high", metric.interval),
        ]
    columns.append(number("Seeds", "seeds"))
    caption = "Models of scikit-learn fitted to convergence on the same training rows and scored on the same test rows"
    return Table.of(caption, columns, rows(scores))


def client_gain_table(found: TogetherOrAlone) -> Table | None:
    """The clients that are judged: scores alone and pooled, and the gain with its interval; None without such clients."""
    if not found.clients:
        return None
    metric = found.metric
    columns = [
        words(wording.capital(found.client_noun), lambda row: row.client),
        number("Test samples", lambda row: row.n_test, wording.mean_count),
    ]
    if not math.isnan(found.clients[0].n_positive):
        columns.append(number("Positives", lambda row: row.n_positive, wording.mean_count))
    columns += [
        number(found.alone.label, lambda row: row.alone, metric.text),
        number(found.pooled.label, lambda row: row.pooled, metric.text),
        number("Gain by pooling", lambda row: row.gain.mean, metric.difference),
        interval(
            f"{wording.confidence(found.level)} interval",
            lambda row: row.gain.low,
            lambda row: row.gain.high,
            metric.interval,
        ),
    ]
    return Table.of(f"Each {found.client_noun} alone, and all data pooled", columns, found.clients)


def tables_of_answer(content: ReportContent, found: TogetherOrAlone) -> list[Table]:
    """The tables behind the answer: the fitted references, and the clients that are judged."""
    tables = (reference_table(content), client_gain_table(found))
    return [table for table in tables if table is not None]
