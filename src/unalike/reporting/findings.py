"""The findings of a comparison as sentences: the decision, one sentence per method, and the limits of the answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import pandas as pd

from unalike.metrics.columns import IN_USE
from unalike.reporting import failed_training, wording
from unalike.reporting.content import ReportContent
from unalike.reporting.decision import Decision, KeyFact
from unalike.reporting.table import Row, Table, rows, words
from unalike.statistics.client_scores import MEAN
from unalike.statistics.costs import totals
from unalike.statistics.inference import MIN_EXACT_SEEDS, least_exact_p
from unalike.statistics.moderated_t import ALPHA
from unalike.statistics.scores import still_rising
from unalike.statistics.seed_draws import POOLED_SCORE
from unalike.statistics.verdicts import BASELINE, BETTER, CANDIDATE, EQUAL, UNDECIDED, WORSE

MAX_NAMED_METHODS = 3
"""Most methods that a warning names."""


@dataclass(frozen=True)
class Findings:
    """A report in words, in the order of every report: the answer, its key facts, and below them all that qualifies these.

    `answer` is the decision in one sentence, `key_facts` carry it. `shared` is the answer for one model for all clients, with
    `shared_facts`. `cautions` are reasons to doubt the ranking. `about` says what the intervals are about, `models` which models
    are judged, `standing` groups the methods by verdict, `limits` says what the statistics can show. `race` is the course of a
    race. `models`, `standing`, `shared` and `race` may be empty. `details` has one sentence for each other method.
    """

    answer: str
    key_facts: list[KeyFact]
    shared: str
    shared_facts: list[KeyFact]
    cautions: list[str]
    about: str
    models: str
    standing: str
    limits: list[str]
    race: str
    details: list[tuple[str, str]]

    @property
    def basis(self) -> list[str]:
        """The basis of the answer: its intervals, models and tests."""
        texts = (self.about, self.models, self.standing, *self.limits)
        return [text for text in texts if text]


def findings(content: ReportContent) -> Findings:
    """Derive the findings from the models in use, compared with the baseline."""
    scores = content.scores_of(content.deciding_protocol)
    others = rows(scores[scores["method"] != content.baseline])
    has_baseline = len(others) < len(scores)
    sentence = _sentence if has_baseline else _sentence_without_baseline
    # reasons to doubt the ranking, the gravest first
    cautions = [
        *failed_training.some_learned_nothing(
            content.pooled_scores_of(content.deciding_protocol), content.metric, content.classes
        ),
        *failed_training.cautions(
            content.rounds,
            scores,
            columns=content.columns,
            rules=content.rules,
            protocol=content.deciding_protocol,
            personal=content.personal,
            has_fits=content.has_fits,
        ),
        *_below_most_frequent(content),
        *_other_clients(content),
        *_otherwise_by_mean(content),
        *_rising(content),
        *_untuned(content),
    ]
    limits = [
        *epsilons(content),
        *_chance_level(content),
        *_chosen_gain(content.decision),
        *_limits(content, others),
        *_uneven(content, rows(scores)),
    ]
    shared = _shared(content)
    return Findings(
        answer=content.decision.answer,
        key_facts=content.decision.key_facts,
        shared=shared,
        shared_facts=content.shared_decision.key_facts if shared else [],
        cautions=cautions,
        about=content.about,
        models=_models(content),
        standing=_standing(others, content),
        limits=limits,
        race=race(content),
        details=[(row["method"], sentence(row, content)) for row in others],
    )


def fact_table(facts: Sequence[KeyFact]) -> Table:
    """Key facts as a table, for a terminal, a notebook and Markdown."""
    columns = [
        words("Key facts", attrgetter("title")),
        words("", attrgetter("value")),
        words("", attrgetter("note")),
    ]
    return Table.of("", columns, facts)


def _standing(others: list[Row], content: ReportContent) -> str:
    """The methods by verdict; empty if nothing was decided."""
    if content.decision.reason:
        return ""
    groups: dict[str, list[str]] = {word: [] for word in (BETTER, WORSE, EQUAL, UNDECIDED)}
    for row in others:
        if row["verdict"] in groups:
            groups[row["verdict"]].append(row["method"])
    # methods that are no candidates have no verdict, but a role, and stand last
    for row in others:
        if row["role"] != CANDIDATE:
            groups.setdefault(row["role"], []).append(row["method"])
    parts = [f"{word}: {wording.listing(names)}" for word, names in groups.items() if names]
    effect = wording.size_of_effect(content.smallest_difference, content.metric)
    return f"Compared with {content.baseline}, where differences below {effect} do not matter: {'; '.join(parts)}."


def _models(content: ReportContent) -> str:
    """The models that are judged; empty if no method has personal models."""
    if not content.personal:
        return ""
    kinds = {
        "personal": "the personal models",
        "group": "the groups' models",
        "shared": "the shared model",
    }
    models = []
    for kind, in_words in kinds.items():
        names = [name for name in content.labels if content.model_kind(name, IN_USE) == kind]
        if names:
            models.append(f"{in_words} of {wording.few(names)}")
    if content.deciding_protocol == content.unprefixed_protocol:
        return f"Not judged here: {models[0]}, which are scored on the clients' test samples; run with the protocol clients, too."
    noun = content.client_noun
    users = wording.several(noun)
    return f"Methods are judged by the models that {users} use: {wording.listing(models)}, on the test samples of each {noun}."


def _shared(content: ReportContent) -> str:
    """The answer for one model that serves all clients; empty if it is the answer already or there is none."""
    if content.deciding_protocol == content.unprefixed_protocol or content.shared_decision.reason:
        return ""
    clients = wording.several(content.client_noun)
    return f"If one shared model must serve all {clients}, also new ones: {content.shared_decision.answer}"


def _chosen_gain(decision: Decision) -> list[str]:
    """A sentence on the gain of the best of several candidates, which luck may have made the best."""
    if decision.reason or not decision.is_chosen_gain:
        return []
    methods = wording.plural(len(decision.verdicts), "method")
    return [
        f"{decision.best} was chosen for its large gain, a part of which may be luck. Its interval is corrected everywhere for "
        f"the choice among {methods}; the estimate that allows for luck is {decision.metric.difference(decision.shrunken)}."
    ]


def _sentence(row: Row, content: ReportContent) -> str:
    """The score of a method, its difference to the baseline, and what that shows."""
    metric = content.metric
    baseline = content.baseline
    level = metric.text(row[metric.name])
    gain = metric.difference(row["difference"])
    if not row["pairs"]:
        return f"{level}; it shares no seed with {baseline}, so the two cannot be compared."
    if not math.isfinite(row["difference"]):
        diverged = baseline if math.isfinite(row[metric.name]) else "it"
        return f"{level}; {diverged} diverged, so there is no difference to test."
    if row["role"] != CANDIDATE:
        return f"{level}, {gain} compared with {baseline}; not to choose from: {row['role']}."
    if row["pairs"] == 1:
        return f"{level}, {gain} compared with {baseline} under the one seed that both ran; one seed shows no difference."
    if math.isnan(row["p"]):
        return f"{level}, {gain} compared with {baseline} under every seed: without a spread, no test is possible."
    between = wording.interval(row["ci_low"], row["ci_high"], content.rules.level, metric)
    tested = f"{between}, corrected {wording.p_value(row['p_holm'])}"
    return f"{level}, {gain} compared with {baseline} ({tested}): {_meaning(row, content)}."


def _meaning(row: Row, content: ReportContent) -> str:
    """The verdict, and for an undecided one the reason."""
    if row["verdict"] != UNDECIDED:
        return str(row["verdict"])
    if row["ci_low"] <= 0 <= row["ci_high"]:
        return "undecided, the interval includes 0"
    effect = wording.size_of_effect(content.smallest_difference, content.metric)
    return f"undecided, a difference is shown, but it may be smaller than {effect}"


def _sentence_without_baseline(row: Row, content: ReportContent) -> str:
    level = content.metric.text(row[content.metric.name])
    models = "shared model" if content.deciding_protocol == content.unprefixed_protocol else "model"
    return f"{level}; {content.baseline} has no {models} to compare it with."


def _rising(content: ReportContent) -> list[str]:
    """A warning for methods that had not finished to learn, so that more rounds may change their order."""
    table = content.scores_of(content.deciding_protocol)
    ranked = set(table.loc[table["role"].isin([BASELINE, CANDIDATE]), "method"])
    rises = still_rising(content.rounds, content.deciding_column, content.smallest_difference)
    rises = [rise for rise in rises if rise.method in ranked]
    if not rises:
        return []
    rises.sort(key=lambda rise: -rise.gain)
    texts = []
    for rise in rises[:MAX_NAMED_METHODS]:
        gain = f"{content.metric.amount(rise.gain)}{content.metric.unit}"
        texts.append(f"{rise.method} gained {gain} in the last {rise.last} rounds")
    others = len(rises) - MAX_NAMED_METHODS
    rest = f" ({wording.plural(others, 'other method')} rose, too)" if others > 0 else ""
    rounds = max(rise.rounds for rise in rises)
    aim = "rank these methods" if len(ranked) > 1 else "judge this method"
    return [
        f"Curves still rise: {wording.listing(texts)}{rest}. {rounds} rounds are too few to {aim}."
    ]


def _other_clients(content: ReportContent) -> list[str]:
    """A warning for methods that are tested on other clients than the baseline: malicious clients have no test samples."""
    if content.deciding_protocol == "server":
        return []
    tested = content.clients[content.clients["n_test"] > 0]
    names_by_run = tested.groupby(["method", "seed"], sort=False)["client"].agg(set)
    runs = list(zip(names_by_run.index.tolist(), names_by_run))
    of_baseline = {seed: names for (method, seed), names in runs if method == content.baseline}
    others = dict.fromkeys(
        method for (method, seed), names in runs if names != of_baseline.get(seed, names)
    )
    if not others:
        return []
    return [
        f"Not tested on the same {wording.several(content.client_noun)} as {content.baseline}: {wording.listing(others)}. "
        "Malicious clients, for instance, have "
        "no test samples. Then a difference is not that of the methods alone."
    ]


def _otherwise_by_mean(content: ReportContent) -> list[str]:
    """A warning where the pooled score and the mean of the clients point into different directions."""
    decision = content.decision
    table = content.client_scores
    if content.across != POOLED_SCORE or decision.reason or table.empty:
        return []
    difference = f"to_{content.baseline}"
    ends = [difference, f"{difference}_low", f"{difference}_high"]
    of_mean = table[(table["method"] == decision.best) & (table["client"] == MEAN)]
    for mean, low, high in of_mean[ends].itertuples(index=False):
        is_opposite = mean * decision.difference < 0
        smaller = min(abs(mean), abs(decision.difference))
        if is_opposite and smaller >= content.smallest_difference:
            between = "" if math.isnan(low) else f" ({content.metric.interval(low, high)})"
            gain = f"{content.metric.difference(mean)}{between}"
            return [
                f"These are scores of all test samples pooled. The mean of the {wording.several(content.client_noun)} says "
                f"otherwise: {gain} with {decision.best}. To decide by that mean: --across clients, in Python across='clients'."
            ]
    return []


def _untuned(content: ReportContent) -> list[str]:
    """A note that methods ran with default settings."""
    specs = [method.untuned for method in content.methods if method.untuned]
    if not specs:
        return []
    return [
        f"With default settings, which were not tuned to this data: {wording.listing(specs)}. Others may suit it better."
    ]


def epsilons(content: ReportContent) -> list[str]:
    """The epsilon of each private method, and whom it protects."""
    spent = totals(content.rounds).get("epsilon", pd.Series(dtype=float))
    return [
        f"The training of {method.label} has epsilon {wording.significant(spent[method.label])} {method.protects}."
        for method in content.methods
        if method.protects and method.label in spent
    ]


def _chance_level(content: ReportContent) -> list[str]:
    """The score of a constant prediction, for accuracy and the area under the ROC curve."""
    if content.metric.name == "roc_auc":
        return ["The same risk for everybody has a ROC AUC of 50 %."]
    most_frequent = _most_frequent(content)
    if most_frequent is None:
        return []
    name, share = most_frequent
    share_text = content.metric.text(share)
    under = f" under seed {content.seed}" if len(content.seeds) > 1 else ""
    if not content.confusions:
        return [
            f"The most frequent class, {name!r}, has {share_text} of the training samples{under}."
        ]
    return [
        f"Always predicting {name!r}, the class of most training samples{under}, has an accuracy of about {share_text}."
    ]


def _most_frequent(content: ReportContent) -> tuple[str, float] | None:
    """The class of most training samples, and the accuracy of always predicting it, or its share in training where that is unknown.

    None where something else than accuracy decides.
    """
    if content.metric.name != "accuracy" or content.label_counts is None:
        return None
    trained = content.label_counts.sum()
    name = str(trained.idxmax())
    if not content.confusions:
        return name, float(trained[name] / trained.sum())
    # where test samples were counted, their shares are the accuracy itself
    entry = content.confusions[0]
    tested = pd.DataFrame(entry["counts"], index=entry["classes"]).sum(axis=1)
    return name, float(tested.get(name, 0) / tested.sum())


def _below_most_frequent(content: ReportContent) -> list[str]:
    """A warning for methods that are less accurate than always predicting the most frequent class."""
    most_frequent = _most_frequent(content)
    if most_frequent is None or content.classes is None:
        return []
    name, share = most_frequent
    table = content.pooled_scores_of(content.deciding_protocol)
    below = [
        row["method"]
        for row in rows(table)
        if content.metric.rounded(row["accuracy"]) < content.metric.rounded(share)
    ]
    if not below:
        return []
    metric = "roc_auc" if content.classes == 2 else "balanced_accuracy"
    return [
        f"Less accurate than always predicting {name!r} (about {content.metric.text(share)}): {wording.listing(below)}. "
        f"Accuracy says little where one class is frequent; decide by --metric {metric}, in Python metric={metric!r}."
    ]


def _limits(content: ReportContent, others: list[Row]) -> list[str]:
    """The limits of tests of so many seeds and candidates."""
    seeds = max((row["pairs"] for row in others), default=0)
    tested = sum(not math.isnan(row["p"]) for row in others)
    limits = []
    if seeds == 2:
        limits.append(
            "Two seeds give very wide intervals; three are the usual minimum, five are better."
        )
    if tested and seeds < MIN_EXACT_SEEDS:
        limits.append(
            f"With {wording.plural(seeds, 'seed')}, a test that assumes no normal distribution cannot give less than "
            f"p = {least_exact_p(seeds):.3g}; from {MIN_EXACT_SEEDS} seeds on it can reach {wording.share(ALPHA)}. "
            "The verdicts rest on t tests that estimate the spread from all methods together (moderated t tests)."
        )
    if tested > 1:
        limits.append(
            f"The p values and intervals of the {tested} methods are corrected for their number (Holm); those of single "
            f"{wording.several(content.client_noun)} are not."
        )
    if content.looks is not None and content.race is None:
        fewest, most = content.looks
        limits.append(
            f"Seeds were added until the decision stood (at least {fewest}, at most {most}). Each look "
            f"uses the level {100 * content.rules.level:.2g}{wording.PERCENT}, so that the error over all looks is "
            f"{wording.share(ALPHA)}."
        )
    return limits


def race(content: ReportContent) -> str:
    """The course of a race: what began, how it ended, and what its looks can be trusted with; empty for other comparisons."""
    found = content.race
    if found is None:
        return ""
    absent = [departure for departure in found.departures if not departure.seeds]
    left = len(found.departures) - len(absent)
    course = (
        f"A race within {found.within}: {wording.plural(found.began, 'method')} began, {left} left, the others have "
        f"{wording.plural(found.seeds, 'seed')}. It ended because {found.ended}."
    )
    if absent:
        names = wording.listing([departure.method for departure in absent])
        course += f" Not in the race: {names} (the table says why)."
    if found.seeds == 1:
        course += " One seed decides nothing: give it more time."
    if content.looks is None or found.seeds < content.looks[0]:
        return course
    level = f"{100 * content.rules.level:.2g}{wording.PERCENT}"
    return (
        f"{course} From {wording.plural(content.looks[0], 'seed')} on, a method that was shown to be worse than the best one was "
        f"dropped after each seed. Each look uses the level {level}, corrected for the number of methods, so that the best "
        f"method is dropped with a probability of at most {wording.share(ALPHA)}, and so that equal methods get a winner at most "
        "as often."
    )


def _uneven(content: ReportContent, scores: list[Row]) -> list[str]:
    """A warning if some methods have fewer seeds than others, so that means are not over the same seeds."""
    seeds = len(content.seeds)
    fewer = [
        f"{row['method']} has {row['seeds']} of {seeds} seeds"
        for row in scores
        if row["seeds"] < seeds
    ]
    if not fewer:
        return []
    return [
        f"{wording.listing(fewer)}: each mean is over the method's own seeds, so the means cannot be compared with each other; "
        "the differences are over the seeds that both methods have."
    ]
