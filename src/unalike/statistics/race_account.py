"""The account of a race: how it ended, what left it, and when. Part of the facts of a comparison."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Departure:
    """A method that left a race, or never began.

    `seeds` are those that it finished before it left; `why` is the reason in words. Where a test dropped it, `leader` is the method
    that it was compared with, `difference` its mean difference to it in the unit of the metric, `low` and `high` its interval.
    """

    method: str
    seeds: int
    why: str
    leader: str = ""
    difference: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RaceAccount:
    """A race that has ended.

    `within` is the budget as text, `began` the number of methods that began, `seeds` that of the seeds of those that stayed,
    `seconds` the time of all cells, `ended` the reason for the end in words, `departures` what left, in order.
    """

    within: str
    began: int
    seeds: int
    seconds: float
    ended: str
    departures: list[Departure] = field(default_factory=list)
