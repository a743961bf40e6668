"""The findings of a comparison as sentences. A method is called better only if its corrected p is below 5 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from unalike.metrics.inference import ALPHA, least_p, pairs_needed
from unalike.metrics.statistics import Metric, personal_against_shared
from unalike.reporting import wording
from unalike.reporting.content import ReportContent
from unalike.reporting.rows import Row, rows


@dataclass(frozen=True)
class Findings:
    """The answer, a sentence about personal models, one sentence for each other method, and the limits of the answer."""

    answer: str
    personal: str
    details: list[tuple[str, str]]
    limits: list[str]


def findings(content: ReportContent, table: pd.DataFrame) -> Findings:
    """Derive the findings from a `summary`: the shared models under the plain protocol, compared with the baseline."""
    metric = content.metric
    shared = table[table["protocol"] == content.plain]
    others = rows(shared[shared["method"] != content.baseline])
    details = [(row["method"], _sentence(row, content.baseline, metric)) for row in others]
    if len(others) == len(shared):  # the baseline has no row
        details = [(row["method"], _sentence_without_baseline(row, content.baseline, metric)) for row in others]
    limits = [*_limits(content, others), *_uneven(content, rows(shared))]
    return Findings(_answer(others, content, metric), _personal(content), details, limits)


def verdict(row: Row, metric: Metric) -> str:
    """`better` or `worse` if Holm's corrected p is below 5 %; `hint` if only the uncorrected p is; otherwise `open`."""
    if row["p_holm"] < ALPHA:
        return "better" if metric.sign * row["difference"] > 0 else "worse"
    return "hint" if row["p"] < ALPHA else "open"


def _answer(others: list[Row], content: ReportContent, metric: Metric) -> str:
    base = content.baseline
    if not others:
        return f"Nothing to compare with {base}: no other method has a shared model that was evaluated after training."
    if not _pairs(others):
        return f"No method shares a seed with a shared model of {base}; choose another baseline."
    if len(content.seeds) == 1:
        return "One seed cannot show a difference: the results below may be chance. Run three seeds or more."
    if _pairs(others) == 1:
        return f"No method shares more than one seed with {base}. One seed cannot show a difference: all results may be chance."
    if all(math.isnan(row["p"]) for row in others):
        return f"No difference to {base} can be tested, for the reasons below."
    better = [row for row in others if verdict(row, metric) == "better"]
    worse = [row["method"] for row in others if verdict(row, metric) == "worse"]
    fell = f" Worse than {base}: {_few(worse)}." if worse else ""
    if not better:
        return f"No method is shown to be better than {base} on this data with these seeds.{fell}"
    top = max(better, key=lambda row: metric.sign * row["difference"])
    gain, between = wording.change(top["difference"], metric), wording.interval(top["ci_low"], top["ci_high"], metric)
    count = wording.plural(len(others), "other method")
    return (
        f"{len(better)} of {count} did better than {base}, by more than the noise between seeds. "
        f"The largest such gain is {top['method']}: {gain} of {metric.word} (95 % interval {between}, {_corrected(top)}).{fell}"
    )


def _personal(content: ReportContent) -> str:
    """The comparison of personal models with the baseline's shared model; empty if there are no personal models."""
    compared = rows(personal_against_shared(content.rounds, content.baseline, plain=content.plain))
    if not compared:
        return ""
    judged = [(row["method"], verdict(row, content.metric)) for row in compared]
    methods = {
        word: [name for name, found in judged if found in verdicts] for word, verdicts in _AGAINST_SHARED.items()
    }
    parts = [f"{word} {_few(names)}" for word, names in methods.items() if names]
    return f"Personal models compared with {content.baseline}'s shared model: {'; '.join(parts)}."


def _few(names: list[str]) -> str:
    """The names, or their number if there are more than four."""
    return wording.listing(names) if len(names) <= 4 else wording.plural(len(names), "method")


_AGAINST_SHARED = {"better with": ("better",), "worse with": ("worse",), "no difference shown for": ("open", "hint")}
"""Words -> the verdicts that they stand for."""


def _sentence(row: Row, baseline: str, metric: Metric) -> str:
    level = wording.score(row[metric.column], metric)
    gain = wording.change(row["difference"], metric)
    if not row["pairs"]:
        return f"{level}; it shares no seed with {baseline}, so the two cannot be compared."
    if not math.isfinite(row["difference"]):
        diverged = baseline if math.isfinite(row[metric.column]) else "it"
        return f"{level}; {diverged} diverged, so there is no difference to test."
    if row["pairs"] == 1:
        return (
            f"{level}, {gain} compared with {baseline} under the one seed that both ran; one seed shows no difference."
        )
    if math.isnan(row["p"]):
        return f"{level}, {gain} compared with {baseline} under every seed: without a spread, no test is possible."
    if row["ci_low"] == row["ci_high"] == 0:
        return f"{level}, the same as {baseline} under every seed."
    between = wording.interval(row["ci_low"], row["ci_high"], metric)
    meaning = _MEANING[verdict(row, metric)]
    return f"{level}, {gain} compared with {baseline} (95 % interval {between}, {_corrected(row)}): {meaning}."


def _sentence_without_baseline(row: Row, baseline: str, metric: Metric) -> str:
    return f"{wording.score(row[metric.column], metric)}; {baseline} has no shared model to compare it with."


def _corrected(row: Row) -> str:
    text = wording.probability(row["p_holm"])
    return f"corrected p\u00a0{text}" if text.startswith("<") else f"corrected p\u00a0=\u00a0{text}"


_MEANING = {
    "better": "better than the baseline",
    "worse": "worse than the baseline",
    "hint": "the interval excludes 0, but p is not below 5 % after correction for the number of methods: no difference is shown",
    "open": "the interval includes 0, no difference is shown",
}


def _limits(content: ReportContent, others: list[Row]) -> list[str]:
    seeds = _pairs(others)
    limits = []
    if seeds == 2:
        limits.append("Two seeds give very wide intervals; three are the usual minimum, five are better.")
    tested = sum(not math.isnan(row["p"]) for row in others)
    if warning := few_seeds(seeds, tested):
        limits.append(warning)
    if tested > 1:
        limits.append(
            f"The p values are corrected by Holm for the {tested} methods compared; "
            "the intervals are not: without any true difference, one in twenty still excludes 0."
        )
    if len(content.seeds) > 1:
        limits.append("Methods are compared with the baseline only, not with each other.")
    return limits


def _uneven(content: ReportContent, shared: list[Row]) -> list[str]:
    """A warning if some methods have fewer seeds than others, so that means are not over the same seeds."""
    seeds = len(content.seeds)
    fewer = [f"{row['method']} has {row['seeds']} of {seeds} seeds" for row in shared if row["seeds"] < seeds]
    if not fewer:
        return []
    return [
        f"{wording.listing(fewer)}: each mean is over the method's own seeds, so the means cannot be compared with each other; "
        "the differences are over the seeds that both methods have."
    ]


def _pairs(others: list[Row]) -> int:
    """The largest number of seeds that a method shares with the baseline."""
    return max((row["pairs"] for row in others), default=0)


def few_seeds(seeds: int, tested: int) -> str:
    """A warning that the seeds are too few for Wilcoxon's test; empty if they suffice or nothing was tested."""
    needed = pairs_needed(tested)
    if not tested or seeds >= needed:
        return ""
    corrected = f" after correction for {tested} methods" if tested > 1 else ""
    return (
        f"{wording.capital(wording.plural(seeds, 'seed'))} are too few for a test that assumes no normal distribution: "
        f"Wilcoxon's test cannot give less than p = {least_p(seeds):.3g} and needs {needed} seeds to reach 5 %{corrected}. "
        "The verdicts are based on the paired t test."
    )
