"""Findings: the numbers of a diagnosis in sentences, and as the columns of a table."""

from collections.abc import Mapping, Sequence

import numpy as np

from unalike.diagnosis.clusters import Clusters
from unalike.diagnosis.measure import NO_SKEW, Measure
from unalike.reporting.table import interval, number, words
from unalike.reporting.wording import capital, listing, plural, probability, share, significant

EQUAL = 1.2
"""Up to this ratio of the largest to the smallest client, sizes count as equal."""
LEAST_GAP = 0.02
"""Smaller concept gaps, in the share of errors that are added, hardly matter."""


def sentences(
    measures: Mapping[str, Measure],
    clusters: Sequence[Clusters],
    regression: bool,
    unavailable: Mapping[str, str],
) -> list[str]:
    """The findings in plain words: for each kind of heterogeneity what was measured."""
    found = [
        _labels(measures["label_tv"], regression),
        _sizes(measures["size_gini"], measures["size_ratio"]),
        _features(measures),
        _concepts(measures.get("concept_gap"), regression, unavailable.get("Concept shift")),
        _clusters(clusters),
    ]
    if "drift" in measures:
        found.append(_training(measures["drift"], measures["gradient_start"]))
    return found


def _labels(measure: Measure, regression: bool) -> str:
    what = "label distributions" if regression else "label frequencies"
    if not measure.found:
        return (
            f"Label skew: none beyond chance. The {what} differ by a total variation of {_number(measure)}, "
            f"{_by_chance(measure)}."
        )
    return (
        f"Label skew: {_strength(measure)}. The {what} of the clients differ from those of all clients by a total variation of "
        f"{_number(measure)}, {measure.place}; {_by_chance(measure)}."
    )


def _sizes(gini: Measure, ratio: Measure) -> str:
    if ratio.value <= EQUAL:
        return "Quantity skew: none. The clients have about equally many samples."
    return (
        f"Quantity skew: the largest client has {significant(ratio.value)} times as many samples as the smallest; the Gini "
        f"coefficient is {_number(gini)}, {gini.place}."
    )


def _features(measures: Mapping[str, Measure]) -> str:
    within = measures.get("feature_distance_within")
    if within is None:
        return "Feature skew: not tested, since no class is at two clients with features that vary."
    if not within.found:
        return (
            f"Feature skew: none beyond chance. Samples of the same class are {_number(within)} standard deviations apart, "
            f"{_by_chance(within)}."
        )
    return (
        f"Feature skew: samples of the same class look different at different clients. They are {_number(within)} standard "
        f"deviations apart, {within.place}; {_by_chance(within)}."
    )


def _concepts(measure: Measure | None, regression: bool, reason: str | None) -> str:
    if reason is not None:
        return f"Concept shift: not available here, since {reason}."
    if measure is None:
        return "Concept shift: not tested, since no two clients have enough samples of the same classes in the same places."
    amount = (
        f"{significant(measure.value)} variances"
        if regression
        else f"{significant(100 * measure.value)} points"
    )
    if not measure.found or measure.value < LEAST_GAP:
        return "Concept shift: none found. A client's model is about as good on another client's samples as that client's own."
    return (
        f"Concept shift: the same inputs have other labels at some clients. A client's model adds {amount} of error on another "
        "client's samples, compared with that client's own model; strong feature skew can cause some of it, too."
    )


def _clusters(tested: Sequence[Clusters]) -> str:
    real = [found for found in tested if found.found]
    if not tested:
        return "Clusters: not tested, which takes four clients that differ."
    if not real:
        return "Clusters: none found that clients without groups would not show as well."
    texts = [
        f"{plural(found.count, 'cluster')} by {found.basis} (sizes "
        f"{listing(map(str, sorted(np.bincount(found.members), reverse=True)))}, stability "
        f"{significant(found.stability.value, digits=2)})"
        for found in real
    ]
    return f"Clusters: the clients form {listing(texts)}."


def _training(drift: Measure, gradient: Measure) -> str:
    scale = (
        f", {drift.place} ({share(drift.scale[NO_SKEW])} if samples were dealt at random)"
        if drift.scale
        else ""
    )
    return (
        f"Training: with FedAvg, {share(drift.value)} of the clients' movement cancels in the average{scale}; at the first "
        f"model, {share(gradient.value)} of their gradients cancel."
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
    return (
        f"{significant(measure.value)} ({significant(measure.low)} to {significant(measure.high)})"
    )


def _by_chance(measure: Measure) -> str:
    return f"chance alone would give {significant(measure.scale[NO_SKEW])}"


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
    words(
        "Scale",
        lambda m: " · ".join(
            f"{name} {significant(value, digits=2)}" for name, value in m.scale.items()
        ),
    ),
)
"""The columns of the table of measures, for pages, terminals and notebooks."""
