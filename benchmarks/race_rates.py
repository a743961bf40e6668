"""Simulate the error rates of races: the chance to drop the truly best method, and to declare a winner among equals.

    python benchmarks/race_rates.py [races per row of the first table, 4000 unless given; a quarter of them in the others]

A race has a baseline, which is never dropped, and candidates. Their scores are noise as in `error_rates.py`, plus what each
method is truly better than the baseline by. After each seed from `FIRST` to `LAST` a candidate leaves that is shown to be worse
than the method with the best mean, by the rule of `comparison/racing/drop_rule.py`; the race ends when all methods are told apart
or the seeds are used up. The rule that ends a race because no number of seeds would help is left out: fewer looks drop less.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from error_rates import FIRST, LAST, SHARED, SPREADS, TAILS, _print, differences, with_shared

from unalike.comparison.racing.drop_rule import tests_against_leader
from unalike.statistics.moderated_t import holm, moderated_t
from unalike.statistics.verdicts import BETTER, EQUAL, WORSE, level_of_each_look, verdicts

METHODS = (4, 10)
"""Numbers of raced methods, the baseline among them; the short list has ten, beside the pooled reference."""

EFFECTS: dict[str, Callable[[int], np.ndarray]] = {
    "all equal": lambda k: np.zeros(k),
    "nearly equal": lambda k: 0.1 * np.eye(k)[0],
    "half are bad": lambda k: np.where(np.arange(k) < (k + 1) // 2, 0.0, -3.0) + 0.1 * np.eye(k)[0],
    "a ladder": lambda k: np.linspace(1.0, -2.0, k),
    "one is best": lambda k: 2.0 * np.eye(k)[0],
}
"""Name -> what each of k candidates is truly better than the baseline by, in standard deviations; the first candidate is best."""


@dataclass(frozen=True)
class Rates:
    """Shares of the races, and of their runs.

    `best_dropped` is the share of races that dropped the truly best candidate (the first one, where all are equal), `winner` of
    those that called any candidate better than the baseline at the end, and `right` of those that called the best one so. `runs`
    is the share of the runs of a comparison without drops, under `LAST` seeds.
    """

    best_dropped: float
    winner: float
    right: float
    runs: float


def races(
    sets: int,
    methods: int,
    effects: str,
    spread: str = "equal",
    tail: str = "normal",
    shared: bool = False,
) -> Rates:
    """Simulate so many races."""
    candidates = methods - 1
    rng = np.random.default_rng(methods)
    d, sd = differences(rng, sets, LAST, candidates, spread, tail)
    overlap = 0.0
    if shared:
        d, overlap = with_shared(rng, d, spread), SHARED / (1 - SHARED)
    d = d + EFFECTS[effects](candidates) * sd
    # All scores relative to the baseline's, which is the first column.
    scores = np.concatenate([np.zeros((sets, LAST, 1)), d], axis=2)
    level = level_of_each_look(FIRST, LAST)

    racing = np.ones((sets, methods), bool)
    running = np.ones(sets, bool)
    last_seed = np.zeros((sets, methods), int)
    winner = np.zeros(sets, bool)
    right = np.zeros(sets, bool)
    for seeds in range(FIRST, LAST + 1):
        now = np.flatnonzero(running)
        last_seed[now] = np.where(racing[now], seeds, last_seed[now])
        # Methods that left have no scores under later seeds.
        has_score = np.arange(LAST)[None, :seeds, None] < last_seed[now][:, None, :]
        known = np.where(has_score, scores[now, :seeds], np.nan)
        still_raced = np.where(racing[now][:, None, :], known, np.nan)

        means = known.mean(1)
        leader = np.where(racing[now], means, -np.inf).argmax(1)
        rows = np.arange(len(now))
        against = still_raced - still_raced[rows, :, leader][:, :, None]
        against[rows, :, leader] = np.nan
        _, words = tests_against_leader(against, level, overlap=overlap)
        told_apart = np.isin(words, (WORSE, EQUAL)) | ~racing[now]
        told_apart[rows, leader] = True

        to_base = known[:, :, 1:]
        tested = moderated_t(to_base, level, overlap)
        found = verdicts(tested.mean, tested.low, tested.high, holm(tested.p), level, 0.0)
        better = found == BETTER

        leaves = words == WORSE
        leaves[:, 0] = False
        racing[now] &= ~leaves
        ends = told_apart.all(1) | (seeds == LAST)
        winner[now] = better.any(1)
        right[now] = better[:, 0]
        running[now[ends]] = False
    runs = last_seed.sum() / (sets * methods * LAST)
    return Rates(
        float(1 - racing[:, 1].mean()), float(winner.mean()), float(right.mean()), float(runs)
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def main(sets: int) -> None:
    rows = []
    for effects in EFFECTS:
        for methods in METHODS:
            found = races(sets, methods, effects)
            shares = (found.best_dropped, found.winner, found.right, found.runs)
            rows.append([effects, str(methods), *map(_percent, shares)])
    heads = ["best one dropped", "a winner", "the best one wins", "runs"]
    _print("Normal noise of equal spread, % of the races", ["Effects", "Methods", *heads], rows)

    few = max(1, sets // 4)
    rows = []
    for tail in TAILS:
        for spread in SPREADS:
            near = races(few, METHODS[-1], "nearly equal", spread, tail)
            bad = races(few, METHODS[-1], "half are bad", spread, tail)
            equal = races(few, METHODS[-1], "all equal", spread, tail)
            shares = (near.best_dropped, bad.best_dropped, equal.winner)
            rows.append([tail, spread, *map(_percent, shares)])
    heads = ["best dropped, nearly equal", "best dropped, half are bad", "a winner among equals"]
    _print(f"Other noise, {METHODS[-1]} methods, %", ["Noise", "Spreads", *heads], rows)

    rows = []
    for spread in ("equal", "baseline's"):
        near = races(few, METHODS[-1], "nearly equal", spread, shared=True)
        equal = races(few, METHODS[-1], "all equal", spread, shared=True)
        rows.append(["redrawn splits", spread, *map(_percent, (near.best_dropped, equal.winner))])
    heads = ["best dropped, nearly equal", "a winner among equals"]
    _print("Overlapping training samples, %", ["Noise", "Spreads", *heads], rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
