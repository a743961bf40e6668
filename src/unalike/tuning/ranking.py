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
    scores = [{name: _of_method(table, name) for name in methods} for table in (before, after)]
    ranks = [
        _ranks({n: own for n, own in table.items() if n not in references}, sign)
        for table in scores
    ]
    found = []
    for name in methods:
        old, new = scores[0][name], scores[1][name]
        shared = [seed for seed in new if seed in old]
        gain = Score.of([sign * (new[seed] - old[seed]) for seed in shared])
        found.append(
            Ranked(
                name,
                Score.of(list(old.values())),
                Score.of(list(new.values())),
                gain,
                ranks[0].get(name),
                ranks[1].get(name),
            )
        )
    return sorted(found, key=lambda one: one.rank_after or len(methods) + 1)


def swapped(ranked: Sequence[Ranked]) -> list[tuple[str, str]]:
    """The pairs of methods of which the one that was ahead before tuning is behind after it."""
    known = [one for one in ranked if one.rank_before is not None and one.rank_after is not None]
    return [
        (a.method, b.method)
        for a, b in combinations(known, 2)
        if ((a.rank_before or 0) - (b.rank_before or 0))
        * ((a.rank_after or 0) - (b.rank_after or 0))
        < 0
    ]


def _of_method(scores: pd.Series, method: str) -> dict[int, float]:
    """Seed -> score."""
    own = scores[scores.index.get_level_values("method") == method].droplevel("method")
    return dict(zip(map(int, own.index.tolist()), map(float, own.tolist()), strict=True))


def _ranks(scores: Mapping[str, Mapping[int, float]], sign: int) -> dict[str, int]:
    means = {name: sign * sum(own.values()) / len(own) for name, own in scores.items() if own}
    return {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}
