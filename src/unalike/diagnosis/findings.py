"""Findings: the numbers of a diagnosis in sentences, and as the columns of a table."""

from collections.abc import Mapping, Sequence

import numpy as np

from unalike.diagnosis.clusters import Clusters
from unalike.diagnosis.measure import NO_SKEW, Measure
from unalike.reporting.table import interval, number, words
from unalike.reporting.wording import capital, listing, plural, probability, share, significant

MAX_EQUAL_RATIO = 1.2
"""Up to this ratio of the largest to the smallest client, sizes count as equal."""
MIN_GAP = 0.02
"""Smaller concept gaps, in the share of errors that are added, hardly matter."""


def sentences(
    measures: Mapping[str, Measure],
    clusters: Sequence[Clusters],
    regression: bool,
    unavailable: Mapping[str, str],
) -> list[str]:
    """The findings in plain words: for each kind of heterogeneity what was measured."""
    texts = [
        _labels(measures["label_tv"], regression),
        _sizes(measures["size_gini"], measures["size_ratio"]),
        _features(measures),
        _concepts(measures.get("concept_gap"), regression, unavailable.get("Concept shift")),
        _clusters(clusters),
    ]
    if "drift" in measures:
        texts.append(_training(measures["drift"], measures["gradient_start"]))
    return texts


def _labels(measure: Measure, regression: bool) -> str:
    what = "label distributions" if regression else "label frequencies"
    if not measure.found:
        return (
            f"Label skew: none beyond chance. The {what} differ by a total variation "
            f"of {_number(measure)}, {_by_chance(measure)}."
        )
    return (
        f"Label skew: {_strength(measure)}. The {what} of the clients differ from those of "
        f"all clients by a total variation of {_number(measure)}, {measure.place}; "
        f"{_by_chance(measure)}."
    )


def _sizes(gini: Measure, ratio: Measure) -> str:
    if ratio.value <= MAX_EQUAL_RATIO:
        return "Quantity skew: none. The clients have about equally many samples."
    return (
        f"Quantity skew: the largest client has {significant(ratio.value)} times as many "
        f"samples as the smallest; the Gini coefficient is {_number(gini)}, {gini.place}."
    )


def _features(measures: Mapping[str, Measure]) -> str:
    within = measures.get("feature_distance_within")
    if within is None:
        return "Feature skew: not tested, since no class is at two clients with features that vary."
    if not within.found:
        return (
            "Feature skew: none beyond chance. Samples of the same class are "
            f"{_number(within)} standard deviations apart, {_by_chance(within)}."
        )
    return (
        "Feature skew: samples of the same class look different at different clients. They "
        f"are {_number(within)} standard deviations apart, {within.place}; "
        f"{_by_chance(within)}."
    )


def _concepts(measure: Measure | None, regression: bool, reason: str | None) -> str:
    if reason is not None:
        return f"Concept shift: not available here, since {reason}."
    if measure is None:
        return "Concept shift: not tested, since no two clients have enough samples of the same classes in the same places."
    if not measure.found or measure.value < MIN_GAP:
        return "Concept shift: none found. A client's model is about as good on another client's samples as that client's own."
    amount = f"{significant(100 * measure.value)} points"
    if regression:
        amount = f"{significant(measure.value)} variances"
    return (
        "Concept shift: the same inputs have other labels at some clients. A client's "
        f"model adds {amount} of error on another client's samples, compared with that "
        "client's own model; strong feature skew can cause some of it, too."
    )


def _clusters(tested: Sequence[Clusters]) -> str:
    if not tested:
        return "Clusters: not tested, which takes four clients that differ."
    texts = []
    for clusters in tested:
        if not clusters.found:
            continue
        sizes = sorted(np.bincount(clusters.members), reverse=True)
        stability = significant(clusters.stability.value, digits=2)
        texts.append(
            f"{plural(clusters.count, 'cluster')} by {clusters.basis} (sizes "
            f"{listing(map(str, sizes))}, stability {stability})"
        )
    if not texts:
        return "Clusters: none found that clients without groups would not show as well."
    return f"Clusters: the clients form {listing(texts)}."


def _training(drift: Measure, gradient: Measure) -> str:
    scale = ""
    if drift.scale:
        by_chance = share(drift.scale[NO_SKEW])
        scale = f", {drift.place} ({by_chance} if samples were dealt at random)"
    return (
        f"Training: with FedAvg, {share(drift.value)} of the clients' movement cancels in "
        f"the average{scale}; at the first model, {share(gradient.value)} of their "
        "gradients cancel."
    )


def _strength(measure: Measure) -> str:
    """Weak up to a quarter of the way from chance to the first reference, strong from the second reference."""
    marks = list(measure.scale.values())
    if len(marks) < 3:
        return "found"
    if measure.value < marks[0] + (marks[1] - marks[0]) / 4:
        return "weak"
    return "strong" if measure.value >= (marks[1] + marks[2]) / 2 else "moderate"


def _number(measure: Measure) -> str:
    """A measure with its interval."""
    low, high = significant(measure.low), significant(measure.high)
    return f"{significant(measure.value)} ({low} to {high})"


def _by_chance(measure: Measure) -> str:
    return f"chance alone would give {significant(measure.scale[NO_SKEW])}"


def _scale(measure: Measure) -> str:
    """The references of a measure with their values."""
    marks = [f"{name} {significant(value, digits=2)}" for name, value in measure.scale.items()]
    return " · ".join(marks)


INTERVALS = interval(
    "95 % interval",
    lambda m: m.low,
    lambda m: m.high,
    lambda a, b: f"{significant(a)} to {significant(b)}",
)
MEASURE_COLUMNS = (
    words("Measure", lambda m: capital(m.title)),
    number("Value", lambda m: m.value, significant),
    INTERVALS,
    number("p", lambda m: m.p, probability),
    words("On the scale", lambda m: m.place),
    words("Scale", _scale),
)
"""The columns of the table of measures, for pages, terminals and notebooks."""
