"""Simulate the error rates of verdicts, the interval of the chosen method's gain, and the probability of being best.

    python benchmarks/error_rates.py [data sets per row, 4000 unless given]

A false winner is a candidate that is called better than the baseline although all methods have the same mean, a false loser one
that is called worse. Tests are two-sided at 5 %, so that each of the two is nominally 2.5 %. A row simulates the differences
d[seed, candidate] = noise of the candidate - noise of the baseline. With `SHARED`, a part of each difference is the same for all
seeds, as where seeds redraw test samples of the same clients; the test then allows for overlapping training samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from unalike.statistics.inference import family_tests, posterior_means, probability_best
from unalike.statistics.moderated_t import ALPHA, holm, levels_of_holm, moderated_t
from unalike.statistics.verdicts import BETTER, EQUAL, WORSE, level_of_each_look, verdicts

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
SKEWED: dict[str, Noise] = {
    "excels at times": lambda rng, shape: rng.exponential(size=shape) - 1,
    "collapses at times": lambda rng, shape: 1 - rng.exponential(size=shape),
}
"""Noise of the baseline alone, sd 1; that of the candidates is normal."""
SHARED = 0.25
"""Correlation of the differences of seeds that test a quarter of the same samples each (Nadeau and Bengio, 2003)."""
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
    noise, of_base = TAILS.get(tail, TAILS["normal"]), SKEWED.get(tail, TAILS.get(tail))
    assert of_base is not None
    d = own * noise(rng, (sets, seeds, candidates)) - base * of_base(rng, (sets, seeds, 1))
    return d, np.sqrt(own**2 + base**2)


def with_shared(rng: np.random.Generator, d: np.ndarray, spread: str) -> np.ndarray:
    """The differences with a part that all seeds share, of the same variance in all."""
    part, _ = differences(rng, len(d), 1, d.shape[2], spread, "normal")
    return np.sqrt(1 - SHARED) * d + np.sqrt(SHARED) * part


def moderated(d: np.ndarray, level: float = ALPHA, overlap: float = 0.0) -> np.ndarray:
    """The verdicts of this project; no difference is too small to matter."""
    found = moderated_t(d, level, overlap)
    return verdicts(found.mean, found.low, found.high, holm(found.p), level, 0.0)


def plain(d: np.ndarray, level: float = ALPHA) -> np.ndarray:
    """The verdicts of paired t tests with Holm's correction."""
    found = stats.ttest_1samp(d, 0, axis=1)
    mean = d.mean(1)
    return verdicts(mean, mean - 1, mean + 1, holm(found.pvalue), level, 0.0)


def false_winners(
    sets: int, seeds: int, methods: int, spread: str, tail: str
) -> tuple[float, float]:
    """The share of data sets with a false winner: (moderated, plain)."""
    d, _ = differences(np.random.default_rng(seeds), sets, seeds, methods - 1, spread, tail)
    return tuple(float((rule(d) == BETTER).any(1).mean()) for rule in (moderated, plain))  # type: ignore[return-value]


def false_rates(sets: int, seeds: int, methods: int, tail: str) -> tuple[float, float]:
    """The shares of data sets with a false winner and with a false loser, where most noise is the baseline's and skewed."""
    d, _ = differences(np.random.default_rng(seeds), sets, seeds, methods - 1, "baseline's", tail)
    found = moderated(d)
    return float((found == BETTER).any(1).mean()), float((found == WORSE).any(1).mean())


def overlapping(
    sets: int, seeds: int, methods: int, spread: str, effect: float = 0.0
) -> tuple[float, float]:
    """The share of data sets in which a candidate (with an `effect`: the one that has it) is called better, where seeds share a
    part: with the correction for overlapping training samples, and without."""
    rng = np.random.default_rng(seeds)
    d, sd = differences(rng, sets, seeds, methods - 1, spread, "normal")
    d, j = with_shared(rng, d, spread), (methods - 1) // 2
    d[:, :, j] += effect * sd[j]
    found = [moderated(d, overlap=overlap) == BETTER for overlap in (SHARED / (1 - SHARED), 0.0)]
    return tuple(float((f[:, j] if effect else f.any(1)).mean()) for f in found)  # type: ignore[return-value]


def gains_over_alone(
    sets: int, seeds: int, effects: tuple[float, float], shared: bool
) -> tuple[float, float, float]:
    """The intervals of the answer to "together, or alone?", of two gains over `alone` at the levels of Holm's procedure.

    `effects` are the true gains of pooling and of a method, in standard deviations of a difference; `shared`: seeds redraw test
    samples of the same clients. Returns the shares of data sets whose first, whose second and whose intervals both cover the truth.
    """
    d, sd = differences(np.random.default_rng(seeds), sets, seeds, 2, "equal", "normal")
    overlap = 0.0
    if shared:
        d = with_shared(np.random.default_rng(seeds + LAST), d, "equal")
        overlap = SHARED / (1 - SHARED)
    true = np.array(effects) * sd
    d = d + true

    # Each gain is a family of one, as in the report: [sets, gains, seeds, 1].
    gains = d.transpose(0, 2, 1)[..., None]
    p = moderated_t(gains, ALPHA, overlap).p[..., 0]
    levels = np.array([levels_of_holm(of_set, ALPHA) for of_set in p])

    # Of two gains, Holm tests one at half the level.
    covers = np.zeros((sets, 2), bool)
    for level in (ALPHA / 2, ALPHA):
        found = moderated_t(gains, level, overlap)
        inside = (found.low[..., 0] <= true) & (true <= found.high[..., 0])
        covers |= inside & np.isclose(levels, level)
    first, second = covers.mean(0)
    return float(first), float(second), float(covers.all(1).mean())


def chosen_gain(sets: int, seeds: int, methods: int) -> tuple[float, float, float, float, float]:
    """The best candidate's gain, where one is truly better by the sd of a method: shares of its plain and of its adjusted intervals
    that cover the truth, for all data sets; the latter where it is called better; and by how much the mean and the shrunken gain
    are too large there."""
    rng, k = np.random.default_rng(seeds), methods - 1
    d, _ = differences(rng, sets, seeds, k, "equal", "normal")
    d[:, :, 0] += 1.0
    best, rows, true = d.mean(1).argmax(1), np.arange(sets), np.eye(k)[0]
    covers = []
    for level in (ALPHA, ALPHA / k):
        found = moderated_t(d, level)
        low, high = found.low[rows, best], found.high[rows, best]
        covers.append((low <= true[best]) & (true[best] <= high))
    called = moderated(d)[rows, best] == BETTER
    shrunken = [_posterior(d[i]).mean().iloc[best[i]] for i in np.flatnonzero(called)]
    means = (
        float(np.mean(x - true[best[called]])) for x in (d.mean(1)[rows, best][called], shrunken)
    )
    return float(covers[0].mean()), float(covers[1].mean()), float(covers[1][called].mean()), *means  # type: ignore[return-value]


def calibration(sets: int, seeds: int, methods: int) -> list[tuple[float, float, int]]:
    """P(best) of the likeliest method, and the share of data sets in which it is the best, by the former: (mean, share, number).

    The true means are normal, with a spread of a quarter, a half or all of a method's noise.
    """
    rng, told = np.random.default_rng(seeds), []
    for spread in (0.25, 0.5, 1.0):
        d, _ = differences(rng, sets, seeds, methods - 1, "equal", "normal")
        true = spread * (rng.standard_normal((sets, methods - 1)) - rng.standard_normal((sets, 1)))
        for own, gain in zip(d + true[:, None], true, strict=True):
            p = probability_best(
                _posterior(own), "base", list(map(str, range(methods - 1)))
            ).to_numpy()
            told.append((p.max(), p.argmax() == np.append(0, gain).argmax()))
    p, right = np.array(told).T
    parts = [
        (low <= p) & (p < high) for low, high in ((0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01))
    ]
    return [
        (float(p[part].mean()), float(right[part].mean()), int(part.sum()))
        for part in parts
        if part.any()
    ]


def _posterior(d: np.ndarray) -> pd.DataFrame:
    table = pd.DataFrame(d).rename(columns=str)
    return posterior_means(table, family_tests(table))


def power(
    sets: int, seeds: int, methods: int, spread: str, tail: str, effect: float = 2.0
) -> tuple[float, float]:
    """The share of data sets in which one candidate is called better that truly is, by `effect` standard deviations of its
    differences: (moderated, plain)."""
    d, sd = differences(np.random.default_rng(seeds), sets, seeds, methods - 1, spread, tail)
    j = (methods - 1) // 2
    d[:, :, j] += effect * sd[j]
    return tuple(float((rule(d)[:, j] == BETTER).mean()) for rule in (moderated, plain))  # type: ignore[return-value]


def sequential(
    sets: int, methods: int, spread: str, tail: str, effect: float = 0.0, shared: bool = False
) -> tuple[float, float, float]:
    """Add seeds from `FIRST` to `LAST` until the decision stands: (rejected, called better at any look, mean seeds).

    The decision stands if the leading candidate is called better than the baseline and every other candidate is called worse than
    the leader or than the baseline, or if no candidate is undecided. `rejected` counts the data sets whose last verdict on the
    middle candidate (with an `effect`) or on any candidate (without) is better.
    """
    rng = np.random.default_rng(methods)
    d, sd = differences(rng, sets, LAST, methods - 1, spread, tail)
    d, overlap = (with_shared(rng, d, spread), SHARED / (1 - SHARED)) if shared else (d, 0.0)
    j = (methods - 1) // 2
    d[:, :, j] += effect * sd[j]
    level = level_of_each_look(FIRST, LAST)
    running, final, ever = np.ones(sets, bool), np.zeros(sets, bool), np.zeros(sets, bool)
    used = np.zeros(sets)
    for seeds in range(FIRST, LAST + 1):
        now = np.flatnonzero(running)
        part = d[now, :seeds]
        found = moderated(part, level, overlap)
        better = found[:, j] == BETTER if effect else (found == BETTER).any(1)
        ever[now] |= better
        stands = _stands(part, found, level, overlap) | (seeds == LAST)
        done = now[stands]
        final[done], used[done], running[done] = better[stands], seeds, False
    return float(final.mean()), float(ever.mean()), float(used.mean())


def _stands(d: np.ndarray, found: np.ndarray, level: float, overlap: float) -> np.ndarray:
    leader = d.mean(1).argmax(1)
    rows = np.arange(len(d))
    against = d - d[rows, :, leader][:, :, None]
    mean = moderated_t(
        np.where(np.arange(d.shape[2]) == leader[:, None, None], np.nan, against), level, overlap
    )
    rivals = verdicts(mean.mean, mean.low, mean.high, mean.p, level, 0.0)
    beaten = (rivals == WORSE) | (found == WORSE) | (np.arange(d.shape[2]) == leader[:, None])
    return np.where(
        found[rows, leader] == BETTER, beaten.all(1), np.isin(found, (WORSE, EQUAL)).all(1)
    )


def _percents(rates: tuple[float, float]) -> str:
    return f"{100 * rates[0]:.1f} ({100 * rates[1]:.1f})"


def _print(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{' :-- |' * 2}{' --: |' * (len(heads) - 2)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def new_rules(sets: int) -> None:
    """Print the tables of skewed noise, overlapping training samples, the chosen method's gain, and P(best)."""
    rows = [
        [tail, str(m), *(_percents(false_rates(sets, n, m, tail)) for n in SEEDS)]
        for tail in SKEWED
        for m in (2, 4, 12)
    ]
    _print(
        "False winners (false losers), %",
        ["Baseline", "Methods", *(f"{n} seeds" for n in SEEDS)],
        rows,
    )
    rows = [
        [
            spread,
            f"{m}",
            *(
                _percents(overlapping(sets, n, m, spread, effect))
                for n in SEEDS
                for effect in (0.0, 2.0)
            ),
        ]
        for spread in ("equal", "baseline's")
        for m in (2, 4, 12)
    ]
    heads = [f"{what}, {n} seeds" for n in SEEDS for what in ("false winners", "power")]
    _print("Overlapping training samples, %: corrected (not)", ["Spreads", "Methods", *heads], rows)
    rows = [
        [
            spread,
            *(
                f"{100 * sequential(sets, m, spread, 'normal', shared=True)[0]:.1f}"
                for m in METHODS
            ),
        ]
        for spread in ("equal", "baseline's")
    ]
    print("\nFalse winners, %, if seeds are added that overlap", METHODS, rows)
    few = max(1, sets // 4)
    rows = []
    for effects in ((0.0, 0.0), (1.0, 0.0), (2.0, 2.0)):
        for shared in (False, True):
            cells = []
            for n in SEEDS:
                found = gains_over_alone(sets, n, effects, shared)
                cells.append(" / ".join(f"{100 * share:.1f}" for share in found))
            rows.append([str(effects), "a quarter" if shared else "nothing", *cells])
    heads = [f"{n} seeds" for n in SEEDS]
    _print("Intervals of two gains over alone, coverage, %", ["Gains", "Shared", *heads], rows)
    rows = [
        [str(m), str(n), *(f"{100 * x:.0f}" for x in found[:3]), *(f"{x:+.2f}" for x in found[3:])]
        for m in (4, 9)
        for n in SEEDS
        for found in [chosen_gain(few, n, m)]
    ]
    heads = [
        "plain",
        "adjusted",
        "adjusted, where called better",
        "overstated: mean",
        "overstated: shrunken",
    ]
    _print("The chosen method's gain", ["Methods", "Seeds", *heads], rows)
    rows = [
        [
            str(m),
            str(n),
            "; ".join(
                f"{100 * p:.0f} -> {100 * s:.0f} ({c})" for p, s, c in calibration(few // 3, n, m)
            ),
        ]
        for m in (4, 9)
        for n in SEEDS
    ]
    _print("P(best), %: told -> true (data sets)", ["Methods", "Seeds", "Calibration"], rows)


def main(sets: int) -> None:
    new_rules(sets)
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
