"""A measure: one number about the clients, with its interval and the scale to read it by."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import Any

import numpy as np

FINDING_LEVEL = 0.01
"""A kind of heterogeneity counts as found where chance alone gives such a value at most this often."""
SHUFFLES = 99
"""Number of random divisions behind a p value: fewer than one in a hundred reach a value with p <= 0.01."""
CONFIDENCE = 0.95
INTERVAL_QUANTILES = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
"""The quantiles at the ends of a 95 % interval."""
RESAMPLES = 300
CLOSE_SHARE = 0.05
"""The share of the whole scale within which a value counts as equal to a reference."""
NO_SKEW = "iid"
"""The reference without heterogeneity: the same samples, dealt to clients of the same sizes by chance."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Measure:
    """One number about the clients.

    Attributes:
        kind: The kind of heterogeneity, such as "label skew".
        name: The key of the measure, such as "label_tv".
        title: The measure in words.
        value: The number.
        low: The lower end of its 95 % interval over other clients of the same kind.
        high: The upper end.
        scale: The value of the same number in reference divisions with as many clients and samples, from weak to strong.
        p: The probability of such a value, or a larger one, without this kind of heterogeneity; None where it is not tested.
        range: The smallest and the largest value that the number can have.
    """

    kind: str
    name: str
    title: str
    value: float
    low: float
    high: float
    scale: Mapping[str, float] = field(default_factory=dict)
    p: float | None = None
    range: Interval = (0.0, float("inf"))

    @property
    def found(self) -> bool:
        """Whether chance alone hardly gives such a value."""
        return self.p is not None and self.p <= FINDING_LEVEL

    @property
    def place(self) -> str:
        """The place on the scale in words: "like Dir(0.1)", "between Dir(1) and Dir(0.1)", "below iid"."""
        marks = sorted((value, name) for name, value in self.scale.items() if not isnan(value))
        if not marks or isnan(self.value):
            return ""
        lowest, weakest = marks[0]
        highest, strongest = marks[-1]
        gap, nearest = min((abs(self.value - value), name) for value, name in marks)
        if gap <= CLOSE_SHARE * (highest - lowest):
            return f"like {nearest}"
        below = [name for value, name in marks if value < self.value]
        if not below:
            return f"below {weakest}"
        if len(below) == len(marks):
            return f"above {strongest}"
        _, next_above = marks[len(below)]
        return f"between {below[-1]} and {next_above}"

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, with the place on the scale, as a file keeps them."""
        fields = asdict(self) | {"place": self.place, "found": self.found}
        del fields["range"]
        return fields


def bootstrap_interval(
    value: float, resampled: np.ndarray, limits: Interval = (0.0, float("inf"))
) -> Interval:
    """The 95 % interval of a number over other clients of the same kind, by its quantiles over resampled clients.

    Resampling moves numbers such as distances (few clients lie closer to their own pool, and samples drawn twice add noise), so the
    quantiles are moved back by the difference between the mean of the resampled numbers and the number itself.

    Args:
        value: The number.
        resampled: The number with clients drawn with replacement, [B].
        limits: The smallest and the largest value that the number can have.

    Returns:
        The two ends.
    """
    if isnan(value) or not len(resampled):
        return float("nan"), float("nan")
    low, high = np.quantile(resampled, INTERVAL_QUANTILES) - resampled.mean() + value
    # the interval holds the number, and ends where the number must
    low = max(limits[0], min(low, value))
    high = min(limits[1], max(high, value))
    return float(low), float(high)


def t_interval(
    value: float, resampled: np.ndarray, clients: int, limits: Interval = (0.0, float("inf"))
) -> Interval:
    """The 95 % interval value -+ t s, for numbers whose quantiles over resampled clients are too close together.

    s is the standard deviation over resampled clients times sqrt(K / (K - 1)), t is Student's quantile with K - 1 degrees of
    freedom for K clients. See `bootstrap_interval` for the arguments.
    """
    from scipy.stats import t

    spread = float(np.std(resampled, ddof=1) * np.sqrt(clients / (clients - 1)))
    half = float(t.ppf(INTERVAL_QUANTILES[1], clients - 1)) * spread
    return max(limits[0], value - half), min(limits[1], value + half)


def mean_interval(
    values: np.ndarray, limits: Interval = (0.0, float("inf"))
) -> tuple[float, float, float]:
    """The mean over clients and its interval, from one value per client: value -+ t s / sqrt(K), which needs no resampling."""
    from scipy.stats import t

    clients = len(values)
    if not clients:
        return float("nan"), float("nan"), float("nan")
    mean = float(values.mean())
    if clients < 2:
        return mean, float("nan"), float("nan")
    half = float(t.ppf(INTERVAL_QUANTILES[1], clients - 1) * values.std(ddof=1) / np.sqrt(clients))
    return mean, max(limits[0], mean - half), min(limits[1], mean + half)


def p_value(value: float, by_chance: np.ndarray) -> float:
    """The share of divisions whose value is at least as large, among the random ones and the tested one itself."""
    return float((1 + (by_chance >= value - 1e-12).sum()) / (1 + len(by_chance)))


def shuffled_within(
    strata: np.ndarray, owners: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """The owners [N] dealt anew among the samples of each stratum, so that every client keeps its number of each."""
    order = np.argsort(strata, kind="stable")
    mixed = np.argsort(strata + generator.random(len(strata)) * 0.5, kind="stable")
    dealt = np.empty_like(owners)
    dealt[mixed] = owners[order]
    return dealt
