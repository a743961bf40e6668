"""The methods by score before and after tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from unalike.statistics.inference import t_test

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Score:
    """The mean score of a method over seeds with its 95 % t interval; NaN where they are not defined."""

    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float]) -> Score:
        """The score of one value per seed."""
        if not len(values):
            return cls()
        mean, low, high, _ = t_test(values)
        return cls(mean, low, high)


@dataclass(frozen=True)
class Ranked:
    """A method before and after tuning.

    `before` and `after` are the scores with the values as given and as chosen, `gain` their difference under the same seeds,
    above 0 if better. Ranks are 1 for the best score, None without a score and for references.
    """

    method: str
    before: Score
    after: Score
    gain: Score
    rank_before: int | None
    rank_after: int | None


def ranking(
    before: pd.Series,
    after: pd.Series,
    methods: Sequence[str],
    references: Sequence[str],
    sign: int,
) -> list[Ranked]:
    """The methods, best after tuning first, then the references, which have no rank.

    `before` and `after` are scores by (method, seed) with the values as given and as chosen; `sign` is +1 if more is better, -1
    if less is.
    """
    old_scores = {name: _of_method(before, name) for name in methods}
    new_scores = {name: _of_method(after, name) for name in methods}
    candidates = [name for name in methods if name not in references]
    old_ranks = _ranks({name: old_scores[name] for name in candidates}, sign)
    new_ranks = _ranks({name: new_scores[name] for name in candidates}, sign)
    # The gain is that of the same seeds, which both comparisons have unless a run of one failed.
    rows = []
    for name in methods:
        old = old_scores[name]
        new = new_scores[name]
        gains = [sign * (new[seed] - old[seed]) for seed in new if seed in old]
        row = Ranked(
            method=name,
            before=Score.of(list(old.values())),
            after=Score.of(list(new.values())),
            gain=Score.of(gains),
            rank_before=old_ranks.get(name),
            rank_after=new_ranks.get(name),
        )
        rows.append(row)
    return sorted(rows, key=lambda one: one.rank_after or len(methods) + 1)


def swapped(ranked: Sequence[Ranked]) -> list[tuple[str, str]]:
    """The pairs of methods of which the one that was ahead before tuning is behind after it."""
    ranked_twice = [
        one for one in ranked if one.rank_before is not None and one.rank_after is not None
    ]
    pairs = []
    for a, b in combinations(ranked_twice, 2):
        ahead_before = (a.rank_before or 0) - (b.rank_before or 0)
        ahead_after = (a.rank_after or 0) - (b.rank_after or 0)
        if ahead_before * ahead_after < 0:
            pairs.append((a.method, b.method))
    return pairs


def _of_method(scores: pd.Series, method: str) -> dict[int, float]:
    """Seed -> score."""
    is_method = scores.index.get_level_values("method") == method
    of_method = scores[is_method].droplevel("method")
    seeds = [int(seed) for seed in of_method.index.tolist()]
    values = [float(value) for value in of_method.tolist()]
    return dict(zip(seeds, values, strict=True))


def _ranks(scores: Mapping[str, Mapping[int, float]], sign: int) -> dict[str, int]:
    """The rank of each method that has a score, 1 for the best mean."""
    means = {}
    for name, by_seed in scores.items():
        if by_seed:
            means[name] = sign * sum(by_seed.values()) / len(by_seed)
    ranks = {}
    for name, mean in means.items():
        better = [other for other in means.values() if other > mean]
        ranks[name] = 1 + len(better)
    return ranks
