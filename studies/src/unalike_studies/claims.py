"""Claims of a paper, and their quantities: functions from the stored results to one number per seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from unalike_studies.claim_verdicts import CONTRADICTED, NOT_HERE, Expectation, Finding, judge
from unalike_studies.published import Printed
from unalike_studies.recorded_numbers import by_round
from unalike_studies.results import CellResult, Results

Quantity = Callable[[Results], dict[int, float]]
"""From the results of a study to seed -> value. Seeds whose cells are not stored are missing."""

WHOLE_MODEL = ""
"""The layer of recorded numbers of the whole model."""
UNIT = "points of accuracy"
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

    @property
    def remarks(self) -> str:
        """The text beside the verdict in the ledger: the source unless it is the paper, and the remark."""
        return "; ".join(text for text in (self.source, self.remark) if text)

    @property
    def is_papers(self) -> bool:
        """Whether the study's paper makes the statement."""
        return not self.source

    def finding(self, results: Results, unlike: str = "") -> Finding:
        """The finding from stored results.

        With `unlike`, differences from the paper's setting that are known to matter, what speaks against a statement of the
        paper is no contradiction: it was not reproduced here.
        """
        number = None if self.published is None else self.published.value
        values = [self.scale * value for value in self.quantity(results).values()]
        finding = judge(values, self.expects, self.bounds, number)
        if finding.verdict == CONTRADICTED and self.is_papers and unlike:
            return replace(finding, verdict=NOT_HERE)
        return finding

    def contains_published(self, finding: Finding) -> str:
        """Whether the published number lies inside the interval of a finding: "yes", "above it", "below it", or "-"."""
        if self.published is None or not math.isfinite(finding.low):
            return "-"
        number = self.published.value
        if number > finding.high:
            return "above it"
        if number < finding.low:
            return "below it"
        return "yes"


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


def difference(first: Quantity, second: Quantity) -> Quantity:
    """The difference of two quantities under the same seed."""

    def values(results: Results) -> dict[int, float]:
        a = first(results)
        b = second(results)
        return {seed: a[seed] - b[seed] for seed in a if seed in b}

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
