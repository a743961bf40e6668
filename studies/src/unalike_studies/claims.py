"""Claims of a paper, and their quantities: functions from the stored results to one number per seed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from unalike_studies.claim_verdicts import (
    LEAST_SEEDS,
    NEGLIGIBLE_POINTS,
    NOT_LEARNED,
    Above,
    Below,
    Expectation,
    Finding,
    judge,
)
from unalike_studies.learning import (
    WatchedResults,
    in_words,
    is_far_below_printed,
    seeds_at_chance,
)
from unalike_studies.published import Printed
from unalike_studies.recorded_numbers import by_round
from unalike_studies.results import CellResult, Results

Quantity = Callable[[Results], dict[int, float]]
"""From the results of a study to seed -> value. Seeds whose cells are not stored are missing."""

WHOLE_MODEL = ""
"""The layer of recorded numbers of the whole model."""
UNIT = "points of accuracy"
FLUCTUATION = "points of fluctuation"
"""Unit of differences of how far an accuracy swings from round to round, of which a point is not negligible."""
ACCURACY: Mapping[str, Any] = {"unit": "accuracy, %", "bounds": (0, 100)}
"""Unit and bounds of claims about the accuracy of one method."""
OURS = "a question of ours, no statement of a paper"
"""The source of a claim of our own."""
EQUATIONS = "follows from the equations, no statement of a paper"
"""The source of a claim that two methods are the same by their equations."""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper.

    Attributes:
        text: the statement in one sentence.
        quantity: the number that the statement is about, one value per seed.
        expects: what the statement says about the quantity.
        published: the number that the paper prints for the quantity; None if it prints none.
        unit: the unit of the quantity as it is shown.
        scale: factor between the stored and the shown numbers, such as 100 for per cent.
        remark: a further remark for the ledger.
        source: who makes the statement: the study's paper unless given, or else `OURS`, `EQUATIONS`, or somebody who repeated
            the paper.
        bounds: the least and the largest value that the quantity can have, in its unit.
        for_own_method: whether the paper says with it that its own method is better than another one.
        needs_learning: whether runs at chance say nothing about it. False where chance is a result, as under an attack, and for
            costs.
    """

    text: str
    quantity: Quantity
    expects: Expectation
    published: Printed | None = None
    unit: str = UNIT
    scale: float = 100
    remark: str = ""
    source: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    for_own_method: bool = False
    needs_learning: bool = True

    @property
    def remarks(self) -> str:
        """The text beside the verdict in the ledger: the source unless it is the paper, and the remark."""
        return "; ".join(text for text in (self.source, self.remark) if text)

    @property
    def is_papers(self) -> bool:
        """Whether the study's paper makes the statement."""
        return not self.source

    def finding(self, results: Results) -> Finding:
        """The finding from stored results.

        Seeds under which a network learned nothing do not count. Too few others, or a level far below the printed one, give
        `not learned`.
        """
        watched = WatchedResults(results)
        values = self.quantity(watched)
        at_chance = seeds_at_chance(watched) if self.needs_learning else {}
        kept = [value for seed, value in values.items() if seed not in at_chance]
        left_out = {seed: methods for seed, methods in at_chance.items() if seed in values}

        has_too_few = len(kept) < LEAST_SEEDS <= len(values)
        if has_too_few or self._is_far_below_printed(watched):
            # The numbers are shown all the same: they are what these runs gave.
            of_all = self._judged(list(values.values()))
            return replace(of_all, verdict=NOT_LEARNED, not_learned=in_words(left_out))
        return replace(self._judged(kept), not_learned=in_words(left_out))

    def _judged(self, values: list[float]) -> Finding:
        number = deviation = None
        if self.published is not None:
            number = self.published.value
            deviation = self.published.deviation
        return judge(
            [self.scale * value for value in values],
            self.expects,
            self.bounds,
            number,
            deviation=deviation,
            negligible=NEGLIGIBLE_POINTS if self.unit == UNIT else 0,
        )

    def _is_far_below_printed(self, watched: WatchedResults) -> bool:
        if self.published is None or self.published.level is None or not self.needs_learning:
            return False
        return is_far_below_printed(watched, self.published.level)


def question(
    text: str,
    quantity: Quantity,
    expects: Expectation,
    unit: str = UNIT,
    scale: float = 100,
    **more: Any,
) -> Claim:
    """A question of ours, unless `source` is given: no paper states it, and nothing is published."""
    more.setdefault("source", OURS)
    return Claim(text, quantity, expects, published=None, unit=unit, scale=scale, **more)


identity = partial(question, source=EQUATIONS)
"""A claim that two methods are the same by their equations."""


def as_printed(published: Printed) -> tuple[str, Expectation]:
    """Whether a printed difference says that a method is better or worse, as a word and as what it expects."""
    if published.value > 0:
        return "better", Above()
    return "worse", Below()


def score(method: str, setting: str, column: str = "accuracy", last: int = 10) -> Quantity:
    """The score of a method: the mean of a column over the last evaluated rounds."""
    return lambda results: results.scores(method, setting, column, last)


def by_cell(method: str, setting: str, number: Callable[[CellResult], float | None]) -> Quantity:
    """A number of each cell of a method in a setting; a seed whose number is None is left out."""

    def values(results: Results) -> dict[int, float]:
        numbers = {seed: number(cell) for seed, cell in results.of(method, setting).items()}
        return {seed: value for seed, value in numbers.items() if value is not None}

    return values


def peak(method: str, setting: str, column: str = "accuracy") -> Quantity:
    """The largest value of a column over the rounds, chosen by the test samples: what some authors report."""

    def number(cell: CellResult) -> float | None:
        return max(cell.column(column), default=None)

    return by_cell(method, setting, number)


def recorded_mean(method: str, setting: str, name: str, layer: str | None = None) -> Quantity:
    """The mean of a recorded number over the rounds that are kept, for cells with `record`.

    It is over layers, too, or that of one `layer`.
    """
    # By "quantity" all layers fall into one entry: that with the name of the number.
    if layer is None:
        by, entry = "quantity", name
    else:
        by, entry = "layer", layer

    def number(cell: CellResult) -> float | None:
        rounds = by_round(cell.recorded, name, by).get(entry, {})
        return fmean(rounds.values()) if rounds else None

    return by_cell(method, setting, number)


def after_round(number: int, method: str, setting: str, column: str = "accuracy") -> Quantity:
    """The value of a column after one round."""
    return by_cell(method, setting, lambda cell: cell.by_number(column).get(number))


def oscillation(method: str, setting: str, column: str = "accuracy") -> Quantity:
    """The mean distance of an evaluated round from the middle of its two neighbours, in the second half of a run.

    A steady trend counts for nothing.
    """

    def values(results: Results) -> dict[int, float]:
        oscillations = {}
        for seed, curve in results.curves(method, setting, column).items():
            late = curve[len(curve) // 2 :]
            distances = []
            for before, value, after in zip(late, late[1:], late[2:]):
                middle = (before + after) / 2
                distances.append(abs(value - middle))
            if distances:
                oscillations[seed] = fmean(distances)
        return oscillations

    return values


def bytes_of_client(method: str, setting: str, *ways: str) -> Quantity:
    """The bytes that a client receives ("bytes_down") or sends ("bytes_up") in a round, or both."""

    def number(cell: CellResult) -> float | None:
        participants = sum(cell.column("participants"))
        totals = [sum(cell.column(way)) for way in ways]
        return sum(totals) / participants if participants else None

    return by_cell(method, setting, number)


def difference(first: Quantity, second: Quantity) -> Quantity:
    """The difference of two quantities under the same seed."""

    def values(results: Results) -> dict[int, float]:
        a = first(results)
        b = second(results)
        return {seed: a[seed] - b[seed] for seed in a if seed in b}

    return values


def ratio(first: Quantity, second: Quantity) -> Quantity:
    """The ratio of two quantities under the same seed."""

    def values(results: Results) -> dict[int, float]:
        a = first(results)
        b = second(results)
        return {seed: a[seed] / b[seed] for seed in a if seed in b}

    return values


def gain(
    method: str, baseline: str, setting: str, column: str = "accuracy", last: int = 10
) -> Quantity:
    """The score of a method less that of a baseline in the same setting."""
    return difference(score(method, setting, column, last), score(baseline, setting, column, last))


def mean(*quantities: Quantity) -> Quantity:
    """The mean of several quantities under the same seed, for the seeds that all of them have."""

    def values(results: Results) -> dict[int, float]:
        by_quantity = [quantity(results) for quantity in quantities]
        means = {}
        for seed in by_quantity[0]:
            if all(seed in by_seed for by_seed in by_quantity):
                means[seed] = fmean(by_seed[seed] for by_seed in by_quantity)
        return means

    return values


def best(*quantities: Quantity) -> Quantity:
    """The quantity with the largest mean of those whose seeds are all there: the best of several hyperparameters."""

    def values(results: Results) -> dict[int, float]:
        candidates = [quantity(results) for quantity in quantities]
        seeds_of_candidates = {tuple(sorted(by_seed)) for by_seed in candidates}
        # Sums compare means only where all candidates have the same seeds.
        if len(seeds_of_candidates) != 1 or not candidates[0]:
            return {}
        return max(candidates, key=lambda by_seed: sum(by_seed.values()))

    return values
