"""The rule from numbers to verdicts.

A claim is about one quantity: a difference of two methods under the same seed, or the score of one method. Each seed gives one
value of it. An `Expectation` derives the verdict from the mean of these values and its 95 % t interval.

With fewer than three seeds the verdict is `not run`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from unalike._utils.errors import UnalikeError
from unalike.statistics.inference import t_test

REPRODUCED = "reproduced"
SAME_DIRECTION = "same direction"
NO_EFFECT = "no effect"
NOT_HERE = "not reproduced here"
CONTRADICTED = "contradicted"
NOT_RUN = "not run"
VERDICTS = (REPRODUCED, SAME_DIRECTION, NO_EFFECT, NOT_HERE, CONTRADICTED, NOT_RUN)
LEAST_SEEDS = 3
"""The number of seeds below which there is no verdict."""


class Expectation(Protocol):
    """The statement of a claim about a quantity; as text, the values that it expects."""

    def verdict(self, mean: float, low: float, high: float, published: float | None = None) -> str:
        """The verdict for the mean of the quantity and its interval; `published` is the number that the paper prints for it."""


@dataclass(frozen=True)
class Above:
    """The quantity is above 0; by the published number where the paper prints one.

    reproduced      the interval lies above 0, and it reaches the published number
    same direction  the interval lies above 0, and all of it is smaller than the published number
    no effect       the interval contains 0
    contradicted    the interval lies below 0
    """

    def __str__(self) -> str:
        return "above 0"

    def verdict(self, mean: float, low: float, high: float, published: float | None = None) -> str:
        if low > 0:
            return REPRODUCED if published is None or high >= published else SAME_DIRECTION
        return CONTRADICTED if high < 0 else NO_EFFECT


@dataclass(frozen=True)
class Below:
    """The quantity is below 0; by the published number where the paper prints one. The mirror image of `Above`."""

    def __str__(self) -> str:
        return "below 0"

    def verdict(self, mean: float, low: float, high: float, published: float | None = None) -> str:
        return Above().verdict(-mean, -high, -low, None if published is None else -published)


@dataclass(frozen=True)
class Near:
    """The quantity is `number`, up to `margin`; without `number` it is the published one.

    reproduced      the mean is within the margin, and so is the interval or the number lies in it
    same direction  the mean is outside the margin, but the interval contains the number
    no effect       the mean is within the margin, but the interval misses the number and leaves the margin
    contradicted    the mean is outside the margin, and the interval misses the number
    """

    number: float | None = None
    margin: float = 0

    def __str__(self) -> str:
        number = "the published" if self.number is None else f"{self.number:g}"
        return f"{number} ± {self.margin:g}"

    def verdict(self, mean: float, low: float, high: float, published: float | None = None) -> str:
        number = published if self.number is None else self.number
        if number is None:
            raise UnalikeError(
                "Near() without a number is for a claim with a published one; give `number`"
            )
        is_near = abs(mean - number) <= self.margin
        contains = low <= number <= high and math.isfinite(mean)
        is_inside = number - self.margin <= low and high <= number + self.margin
        if is_near:
            return REPRODUCED if is_inside or contains else NO_EFFECT
        return SAME_DIRECTION if contains else CONTRADICTED


@dataclass(frozen=True)
class Same:
    """The quantity, a difference, is 0 up to `margin`: two methods are equally good.

    reproduced      the interval lies within the margin
    same direction  the mean is within the margin, but the interval leaves it
    no effect       the mean is outside the margin, but the interval contains 0: the seeds decide nothing
    contradicted    the mean is outside the margin, and the interval misses 0
    """

    margin: float

    def __str__(self) -> str:
        return f"0 ± {self.margin:g}"

    def verdict(self, mean: float, low: float, high: float, published: float | None = None) -> str:
        if -self.margin <= low and high <= self.margin:
            return REPRODUCED
        if abs(mean) <= self.margin:
            return SAME_DIRECTION
        return NO_EFFECT if low <= 0 <= high else CONTRADICTED


@dataclass(frozen=True)
class Finding:
    """The quantity of a claim over seeds, and the verdict. `mean`, `low` and `high` are NaN where they are not known."""

    seeds: int
    mean: float
    low: float
    high: float
    verdict: str


def judge(
    values: Sequence[float],
    expectation: Expectation,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    published: float | None = None,
) -> Finding:
    """The finding from one value of the quantity for each seed: the verdict is that of `expectation`.

    Fewer than `LEAST_SEEDS` values, or a value that is not known, give `not run`. Where all values are equal, the interval is
    that one number. A method that diverges under a seed is infinitely bad, and so is its mean; the interval is then the range of
    the values, so that one diverged seed decides nothing against the others. `bounds` are the least and the largest value that
    the quantity can have: the interval ends there, which costs it no coverage.
    """
    mean = sum(values) / len(values) if values else math.nan
    if len(values) < LEAST_SEEDS or math.isnan(mean):
        return Finding(len(values), mean, math.nan, math.nan, NOT_RUN)
    low = high = mean
    if len(set(values)) > 1:
        if math.isfinite(mean):
            low, high = t_test(values)[1:3]
        else:
            low, high = min(values), max(values)
        least, largest = bounds
        low, high = max(low, least), min(high, largest)
    verdict = expectation.verdict(mean, low, high, published)
    return Finding(len(values), mean, low, high, verdict)
