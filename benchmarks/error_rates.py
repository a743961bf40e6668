"""Simulate the error rates of verdicts: false winners, power, and the error when seeds are added until a decision stands.

    python benchmarks/error_rates.py [data sets per row, 4000 unless given]

Prints three tables. A false winner is a candidate that is called better than the baseline although all methods have the same mean.
A row simulates the differences d[seed, candidate] = noise of the candidate - noise of the baseline.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import stats

from unalike.metrics.moderated_t import ALPHA, holm, moderated_t
from unalike.metrics.sequential import level_of_each_look
from unalike.metrics.verdicts import BETTER, EQUAL, WORSE, verdicts

SEEDS, METHODS = (3, 5, 10), (2, 3, 4, 7, 12)
FIRST, LAST = 3, 10
"""Seeds of the first and the last look of the sequential rule."""
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
TAILS: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: (
        rng.standard_t(3, shape) / np.sqrt(3)
    ),  # Student's t with 3 degrees of freedom, sd 1
}
SPREADS: dict[str, Callable[[int], tuple[np.ndarray, float]]] = {
    "equal": lambda k: (np.ones(k), 1.0),
    "1 to 30": lambda k: (np.geomspace(0.1, 3.0, k) if k > 1 else np.ones(1), 0.3),
    "one 15 times": lambda k: (np.r_[3.0, np.full(k - 1, 0.2)], 0.2),
    "baseline's": lambda k: (np.full(k, 0.2), 1.0),
}
"""Name -> standard deviations of the noise of k candidates and of the baseline."""


def differences(
    rng: np.random.Generator, sets: int, seeds: int, candidates: int, spread: str, tail: str
) -> tuple[np.ndarray, np.ndarray]:
    """Differences [sets, seeds, candidates] without a true difference, and their standard deviations [candidates]."""
    own, base = SPREADS[spread](candidates)
    noise = TAILS[tail]
    d = own * noise(rng, (sets, seeds, candidates)) - base * noise(rng, (sets, seeds, 1))
    return d, np.sqrt(own**2 + base**2)


def moderated(d: np.ndarray, level: float = ALPHA) -> np.ndarray:
    """The verdicts of this project; no difference is too small to matter."""
    found = moderated_t(d, level)
    return verdicts(found.mean, found.low, found.high, holm(found.p), level, 0.0)


def plain(d: np.ndarray, level: float = ALPHA) -> np.ndarray:
    """The verdicts of paired t tests with Holm's correction."""
    found = stats.ttest_1samp(d, 0, axis=1)
    mean = d.mean(1)
    return verdicts(mean, mean - 1, mean + 1, holm(found.pvalue), level, 0.0)


def false_winners(sets: int, seeds: int, methods: int, spread: str, tail: str) -> tuple[float, float]:
    """The share of data sets with a false winner: (moderated, plain)."""
    d, _ = differences(np.random.default_rng(seeds), sets, seeds, methods - 1, spread, tail)
    return tuple(float((rule(d) == BETTER).any(1).mean()) for rule in (moderated, plain))  # type: ignore[return-value]


def power(sets: int, seeds: int, methods: int, spread: str, tail: str, effect: float = 2.0) -> tuple[float, float]:
    """The share of data sets in which one candidate is called better that truly is, by `effect` standard deviations of its
    differences: (moderated, plain)."""
    d, sd = differences(np.random.default_rng(seeds), sets, seeds, methods - 1, spread, tail)
    j = (methods - 1) // 2
    d[:, :, j] += effect * sd[j]
    return tuple(float((rule(d)[:, j] == BETTER).mean()) for rule in (moderated, plain))  # type: ignore[return-value]


def sequential(sets: int, methods: int, spread: str, tail: str, effect: float = 0.0) -> tuple[float, float, float]:
    """Add seeds from `FIRST` to `LAST` until the decision stands: (rejected, called better at any look, mean seeds).

    The decision stands if the leading candidate is called better than the baseline and every other candidate is called worse than
    the leader or than the baseline, or if no candidate is undecided. `rejected` counts the data sets whose last verdict on the
    middle candidate (with an `effect`) or on any candidate (without) is better.
    """
    d, sd = differences(np.random.default_rng(methods), sets, LAST, methods - 1, spread, tail)
    j = (methods - 1) // 2
    d[:, :, j] += effect * sd[j]
    level = level_of_each_look(FIRST, LAST)
    running, final, ever = np.ones(sets, bool), np.zeros(sets, bool), np.zeros(sets, bool)
    used = np.zeros(sets)
    for seeds in range(FIRST, LAST + 1):
        now = np.flatnonzero(running)
        part = d[now, :seeds]
        found = moderated(part, level)
        better = found[:, j] == BETTER if effect else (found == BETTER).any(1)
        ever[now] |= better
        stands = _stands(part, found, level) | (seeds == LAST)
        done = now[stands]
        final[done], used[done], running[done] = better[stands], seeds, False
    return float(final.mean()), float(ever.mean()), float(used.mean())


def _stands(d: np.ndarray, found: np.ndarray, level: float) -> np.ndarray:
    leader = d.mean(1).argmax(1)
    rows = np.arange(len(d))
    against = d - d[rows, :, leader][:, :, None]
    mean = moderated_t(np.where(np.arange(d.shape[2]) == leader[:, None, None], np.nan, against), level)
    rivals = verdicts(mean.mean, mean.low, mean.high, mean.p, level, 0.0)
    beaten = (rivals == WORSE) | (found == WORSE) | (np.arange(d.shape[2]) == leader[:, None])
    return np.where(found[rows, leader] == BETTER, beaten.all(1), np.isin(found, (WORSE, EQUAL)).all(1))


def _percents(rates: tuple[float, float]) -> str:
    return f"{100 * rates[0]:.1f} ({100 * rates[1]:.1f})"


def _print(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{' :-- |' * 2}{' --: |' * (len(heads) - 2)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main(sets: int) -> None:
    columns = [f"{m} methods, {n} seeds" for n in SEEDS for m in (2, 4, 12)]
    cases = [(spread, tail) for tail in TAILS for spread in SPREADS]
    for title, measure in (
        ("False winners, %: moderated (plain)", false_winners),
        ("Power, %: moderated (plain)", power),
    ):
        rows = (
            [
                spread,
                tail,
                *(_percents(measure(sets, n, m, spread, tail)) for n in SEEDS for m in (2, 4, 12)),
            ]
            for spread, tail in cases
        )
        _print(title, ["Spreads", "Noise", *columns], rows)
    rows = [
        [spread, tail, *(f"{100 * sequential(sets, m, spread, tail)[0]:.1f}" for m in METHODS)]
        for spread, tail in cases
    ]
    level = 100 * level_of_each_look(FIRST, LAST)
    _print(
        f"False winners, %, if seeds are added from {FIRST} to {LAST} (each look at {level:.2f} %)",
        ["Spreads", "Noise", *(f"{m} methods" for m in METHODS)],
        rows,
    )
    rows = []
    for m in METHODS:
        found, _, used = sequential(sets, m, "equal", "normal", 2.0)
        rows.append([f"{m} methods", "equal", f"{100 * found:.1f}", f"{used:.1f}"])
    _print(
        "Added seeds, one better method: power, %, and mean number of seeds",
        ["Methods", "Spreads", "Power", "Seeds"],
        rows,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
