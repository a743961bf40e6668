"""The rules by which methods are judged: their role in the comparison, the smallest effect of interest, and the verdict."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import integrate, optimize, stats

from unalike.metrics.columns import Column
from unalike.metrics.named_metrics import Metric
from unalike.statistics.inference import ROUNDING
from unalike.statistics.moderated_t import ALPHA

BASELINE, CANDIDATE = "baseline", "candidate"
"""Roles. Any other role is a text that says why the method is outside the family: `UPPER`, `the same scores as ...`."""
UPPER = "trained on pooled data by rounds"
ORACLE = "reference (knows the true clusters)"
"""The roles of references."""
BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "practically equal", "undecided"
"""Verdicts on candidates."""
HALF_A_POINT = 0.005
ONE_PERCENT = 0.01


@dataclass(frozen=True)
class Rules:
    """The rules by which a comparison is judged.

    `references`: label -> meaning, for methods that are shown but are no candidates (`UPPER`). `smallest_effect` is
    in the unit of the metric; None for the default. `looks` are the (fewest, most) seeds, if seeds were added until the
    decision stood. `overlap` is how much the training samples of seeds overlap, as `moderated_t` takes it.
    """

    baseline: str
    references: Mapping[str, str] = field(default_factory=dict)
    smallest_effect: float | None = None
    looks: tuple[int, int] | None = None
    overlap: float = 0.0

    @property
    def level(self) -> float:
        """The level of the tests: 5 %, or that of each look if seeds were added until the decision stood."""
        return ALPHA if self.looks is None else level_of_each_look(*self.looks)

    def effect(self, metric: Metric, baseline_score: float) -> float:
        """The smallest effect of interest.

        By default half a point (0.005) of a bounded metric, such as accuracy or a Brier score. Others, such as RMSE, have no
        scale that suits all data: for these it is 1 % of the baseline's score.
        """
        if self.smallest_effect is not None:
            return self.smallest_effect
        if metric.bounded:
            return HALF_A_POINT
        return ONE_PERCENT * abs(baseline_score)


def verdicts(
    gain: ArrayLike, low: ArrayLike, high: ArrayLike, p: ArrayLike, level: float, smallest: float
) -> np.ndarray:
    """The verdict on each candidate.

    * practically equal: the whole interval lies within -+`smallest`;
    * better or worse: the corrected p is below `level`, and the difference is at least `smallest`;
    * undecided: anything else.

    `gain` is the mean difference to the baseline, positive if better, with its interval and its p corrected for the number of
    candidates; `level` is that of the test, `smallest` the smallest effect of interest. Returns texts, of the shape of `gain`.
    """
    gain = np.asarray(gain, dtype=float)
    low = np.asarray(low, dtype=float)
    high = np.asarray(high, dtype=float)
    is_small = (np.maximum(np.abs(low), np.abs(high)) <= smallest) & ~np.isnan(low)
    is_shown = (np.asarray(p, dtype=float) < level) & (np.abs(gain) >= smallest)
    cases = [is_small, is_shown & (gain > 0), is_shown & (gain < 0)]
    return np.select(cases, [EQUAL, BETTER, WORSE], UNDECIDED)


def roles(
    rounds: pd.DataFrame, column: Column, methods: Iterable[str], rules: Rules
) -> dict[str, str]:
    """The role of each method under one protocol; `column` is that of its deciding metric.

    A method whose scores equal those of the baseline or of an earlier candidate is no candidate: it repeats another one. Ditto,
    for instance, trains personal models beside FedAvg's shared model. Such methods are found by comparing the results.
    """
    curves = {name: _curve(rounds, column.name, name) for name in methods}
    role_of: dict[str, str] = {}
    # the baseline first, so that a method that repeats it is found wherever it stands
    ordered = sorted(curves, key=lambda name: name != rules.baseline)
    for name in ordered:
        if name == rules.baseline:
            role_of[name] = BASELINE
        elif name in rules.references:
            role_of[name] = rules.references[name]
        else:
            judged = [o for o in ordered if role_of.get(o) in (BASELINE, CANDIDATE)]
            twin = next((o for o in judged if _same(curves[o], curves[name])), None)
            role_of[name] = CANDIDATE if twin is None else repeats(twin)
    return {name: role_of[name] for name in curves}


def repeats(method: str) -> str:
    """The role of a method whose scores equal those of another one."""
    return f"the same scores as {method} in every round"


def _curve(rounds: pd.DataFrame, column: str, name: str) -> pd.Series:
    """A method's evaluated scores after training, by seed and round."""
    is_scored = (rounds["round"] >= 1) & rounds[column].notna()
    return rounds[(rounds["method"] == name) & is_scored].set_index(["seed", "round"])[column]


def _same(a: pd.Series, b: pd.Series) -> bool:
    """Whether two methods have the same scores in all rounds of all seeds that both have, up to rounding."""
    shared = a.index.intersection(b.index)
    return len(shared) > 0 and bool(np.allclose(a[shared], b[shared], rtol=ROUNDING, atol=0.0))


GRID_POINTS = 201
"""Points of the grid on which the distribution between two looks is integrated."""


@lru_cache
def level_of_each_look(first: int, last: int) -> float:
    """The level of each test if results are looked at after `first`, `first` + 1, ..., `last` seeds.

    Pocock (1977): all looks use the same level, chosen so that the probability of a wrong rejection at any look is 5 %. A result
    that stands at one look is therefore judged by the same level at the next one. The level is computed for a mean of normal
    differences with known variance; the t tests use the same level (Jennison and Turnbull, 2000, section 4.4).

    The error is not larger if seeds are no longer added for another reason than these tests.
    """
    if last <= first:
        return ALPHA

    def excess(bound: float) -> float:
        return _crossing(bound, first, last) - ALPHA

    bound = optimize.brentq(excess, stats.norm.isf(ALPHA / 2), 5.0, xtol=1e-5)
    return float(2 * stats.norm.sf(bound))


def _crossing(z: float, first: int, last: int) -> float:
    """The probability that |S_n| / sqrt(n) exceeds z at some look, for a random walk S with standard normal steps."""
    # the density of walks that have not crossed yet, on a grid of their places
    x = np.linspace(-z, z, GRID_POINTS) * math.sqrt(first)
    density = stats.norm.pdf(x, scale=math.sqrt(first))
    for n in range(first + 1, last + 1):
        next_x = np.linspace(-z, z, GRID_POINTS) * math.sqrt(n)
        steps = stats.norm.pdf(next_x[:, None] - x)
        density = integrate.trapezoid(steps * density, x, axis=1)
        x = next_x
    return 1 - float(integrate.trapezoid(density, x))
