"""The rule from numbers to verdicts.

A claim is about one quantity: a difference of two methods under the same seed, or the score of one method. Each seed gives one
value of it. An `Expectation` derives the verdict from the mean of these values, its 95 % t interval, and whether the number that
the paper prints can be told from them.

With fewer than three seeds the verdict is `not run`; where the networks had learned nothing it is `not learned`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import stdev
from typing import Protocol

from scipy import stats

from unalike._utils.errors import UnalikeError
from unalike.statistics.inference import t_test

REPRODUCED = "reproduced"
SAME_DIRECTION = "same direction"
EXCLUDED = "excluded"
UNDECIDED = "undecided"
NONE_WITHIN = "none within d"
AGAINST = "against"
NOT_LEARNED = "not learned"
NOT_RUN = "not run"
VERDICTS = (
    REPRODUCED,
    SAME_DIRECTION,
    EXCLUDED,
    UNDECIDED,
    NONE_WITHIN,
    AGAINST,
    NOT_LEARNED,
    NOT_RUN,
)
LEAST_SEEDS = 3
"""The number of seeds below which there is no verdict."""
NEGLIGIBLE_POINTS = 1.0
"""A difference of accuracy that is surely smaller than this is none, in points."""
LEVEL = 0.95
"""Coverage of the intervals."""
POWER = 0.8
"""Probability with which a difference of `Finding.visible` would have been told from 0."""

AGREES = "yes"
ABOVE_OURS = "above ours"
BELOW_OURS = "below ours"
NO_NUMBER = "-"
"""Whether a printed number agrees with ours, as the ledger says it."""


@dataclass(frozen=True)
class Measured:
    """Mean and interval of a quantity over seeds, and how the printed number lies to them.

    Attributes:
        mean: the mean over seeds.
        low: the lower end of its 95 % interval.
        high: the upper end.
        number: the number that the paper prints; None if it prints none.
        agreement: `AGREES`, `ABOVE_OURS` or `BELOW_OURS`; `NO_NUMBER` without a number.
        negligible: differences of this size are none, the d of `none within d`; 0 where no such difference is known.
    """

    mean: float
    low: float
    high: float
    number: float | None = None
    agreement: str = NO_NUMBER
    negligible: float = 0

    @property
    def is_decided(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def excludes_number(self) -> bool:
        """Whether there is a printed number, and it can be told from ours."""
        return self.agreement in (ABOVE_OURS, BELOW_OURS)

    @property
    def mirrored(self) -> "Measured":
        """The same of the quantity with the other sign."""
        sides = {ABOVE_OURS: BELOW_OURS, BELOW_OURS: ABOVE_OURS}
        return Measured(
            mean=-self.mean,
            low=-self.high,
            high=-self.low,
            number=None if self.number is None else -self.number,
            agreement=sides.get(self.agreement, self.agreement),
            negligible=self.negligible,
        )


class Expectation(Protocol):
    """The statement of a claim about a quantity; as text, the values that it expects."""

    def verdict(self, found: Measured) -> str:
        """The verdict for what was measured."""


@dataclass(frozen=True)
class Above:
    """The quantity is above 0; by the published number where the paper prints one.

    reproduced      the interval lies above 0, and the published number agrees with it
    same direction  the interval lies above 0, and excludes the published number
    excluded        the interval contains 0, and excludes the published number
    undecided       the interval contains 0, and the published number agrees, or there is none
    none within d   the interval contains 0 and lies within d of it, where no number is published
    against         the interval lies below 0
    """

    def __str__(self) -> str:
        return "above 0"

    def verdict(self, found: Measured) -> str:
        if found.low > 0:
            return SAME_DIRECTION if found.excludes_number else REPRODUCED
        if found.high < 0:
            return AGAINST
        if found.number is not None:
            return EXCLUDED if found.excludes_number else UNDECIDED
        is_none = -found.negligible <= found.low and found.high <= found.negligible
        return NONE_WITHIN if is_none else UNDECIDED


@dataclass(frozen=True)
class Below:
    """The quantity is below 0; by the published number where the paper prints one. The mirror image of `Above`."""

    def __str__(self) -> str:
        return "below 0"

    def verdict(self, found: Measured) -> str:
        return Above().verdict(found.mirrored)


@dataclass(frozen=True)
class Near:
    """The quantity is `number`, up to `margin`; without `number` it is the published one.

    reproduced  the mean is within the margin, and so is the interval or the number agrees with it
    excluded    the mean is outside the margin, and the interval excludes the number
    undecided   otherwise: the interval is too wide to tell
    """

    number: float | None = None
    margin: float = 0

    def __str__(self) -> str:
        number = "the published" if self.number is None else f"{self.number:g}"
        return f"{number} ± {self.margin:g}"

    def verdict(self, found: Measured) -> str:
        number = found.number if self.number is None else self.number
        if number is None:
            raise UnalikeError(
                "Near() without a number is for a claim with a published one; give `number`"
            )
        agrees = found.low <= number <= found.high
        if self.number is None:
            agrees = found.agreement == AGREES
        is_near = abs(found.mean - number) <= self.margin
        is_inside = number - self.margin <= found.low and found.high <= number + self.margin
        if is_near and (is_inside or agrees):
            return REPRODUCED
        return UNDECIDED if is_near or agrees else EXCLUDED


@dataclass(frozen=True)
class Same:
    """The quantity, a difference, is 0 up to `margin`: two methods are equally good.

    reproduced  the interval lies within the margin
    against     the mean is outside the margin, and the interval excludes 0
    undecided   otherwise: the seeds show neither
    """

    margin: float

    def __str__(self) -> str:
        return f"0 ± {self.margin:g}"

    def verdict(self, found: Measured) -> str:
        if -self.margin <= found.low and found.high <= self.margin:
            return REPRODUCED
        differs = abs(found.mean) > self.margin and found.is_decided
        return AGAINST if differs else UNDECIDED


@dataclass(frozen=True)
class Finding:
    """The quantity of a claim over seeds, and the verdict. Numbers are NaN where they are not known.

    Attributes:
        seeds: the number of seeds that count.
        mean: the mean over them.
        low: the lower end of its 95 % interval.
        high: the upper end.
        verdict: one of `VERDICTS`.
        agreement: whether the published number agrees with ours: `AGREES`, `ABOVE_OURS`, `BELOW_OURS` or `NO_NUMBER`.
        visible: the least difference from 0 that these seeds would have shown with a probability of 80 %.
        not_learned: the runs that are left out because their networks had learned nothing: "FedAvg, seed 0".
    """

    seeds: int
    mean: float
    low: float
    high: float
    verdict: str
    agreement: str = NO_NUMBER
    visible: float = math.nan
    not_learned: tuple[str, ...] = field(default=())


def judge(
    values: Sequence[float],
    expectation: Expectation,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    published: float | None = None,
    *,
    deviation: float | None = None,
    negligible: float = 0,
) -> Finding:
    """The finding from one value of the quantity for each seed: the verdict is that of `expectation`.

    Fewer than `LEAST_SEEDS` values, or a value that is not known, give `not run`. Where all values are equal, the interval is
    that one number. A method that diverges under a seed is infinitely bad, and so is its mean; the interval is then the range of
    the values, so that one diverged seed decides nothing against the others. `bounds` are the least and the largest value that
    the quantity can have: the interval ends there, which costs it no coverage.

    A published number is a run itself, and deviates as runs do: with n values of deviation s it agrees if it lies within
    t sqrt(s^2 / n + d^2) of the mean. d is the `deviation` that is printed with the number; where none is printed, d is s.
    """
    mean = sum(values) / len(values) if values else math.nan
    if len(values) < LEAST_SEEDS or math.isnan(mean):
        return Finding(len(values), mean, math.nan, math.nan, NOT_RUN)

    low = high = mean
    spread = 0.0
    if len(set(values)) > 1:
        if math.isfinite(mean):
            low, high = t_test(values)[1:3]
            spread = stdev(values)
        else:
            low, high = min(values), max(values)
        least, largest = bounds
        low, high = max(low, least), min(high, largest)

    agreement = NO_NUMBER
    if published is not None:
        own = spread if deviation is None else deviation
        reach = _quantile(LEVEL, len(values)) * math.hypot(spread / math.sqrt(len(values)), own)
        agreement = _agreement(published, mean, reach, low, high)
    found = Measured(mean, low, high, published, agreement, negligible)
    visible = math.nan
    if math.isfinite(mean):
        # The quantile of the power is that of one side.
        quantiles = _quantile(LEVEL, len(values)) + _quantile(2 * POWER - 1, len(values))
        visible = quantiles * spread / math.sqrt(len(values))
    return Finding(
        seeds=len(values),
        mean=mean,
        low=low,
        high=high,
        verdict=expectation.verdict(found),
        agreement=agreement,
        visible=visible,
    )


def _quantile(level: float, count: int) -> float:
    """The quantile of Student's t that `level` of its values do not exceed in size, for `count` seeds."""
    return float(stats.t.ppf((1 + level) / 2, count - 1))


def _agreement(published: float, mean: float, reach: float, low: float, high: float) -> str:
    """Whether a published number agrees with a mean up to `reach`, or with an interval that contains it."""
    if math.isfinite(mean) and abs(published - mean) <= reach:
        return AGREES
    if low <= published <= high:
        return AGREES
    return ABOVE_OURS if published > mean else BELOW_OURS
