"""Statistical inference from paired results: intervals and tests of a family of methods, and the probability of being best.

The unit is the seed. A value is the score of one method under one seed (or on one partition); under one seed all methods have
the same data, initial weights and cohorts. Everything here is computed from differences d = score - baseline's score, as a
table with one row per seed and one column per method; NaN marks a seed that a method lacks.

The clients of a seed are no further repetitions: they are tested with one model, so its luck is the luck of all of them. In a
mixed model d[seed, client] = mean + seed effect + client effect + noise, the exact test of the mean is the t test on the means
of the seeds, with seeds - 1 degrees of freedom, however many clients there are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from unalike.statistics.moderated_t import ALPHA, holm, moderated_t, residuals

RANDOM_DRAWS = 9999
"""Number of random draws (bootstrap, sign patterns, posterior)."""
DRAW_SEED = 0
"""Their fixed seed: equal input gives equal output."""
MAX_EXACT_SEEDS = 12
"""Most seeds for which all 2^n sign patterns are enumerated; beyond, `RANDOM_DRAWS` of them are drawn."""

ROUNDING = 1e-6
"""Relative rounding error of a score: losses, and so an RMSE, are float32, and executors sum them in different orders."""

TESTED = (
    "pairs", "difference", "ci_low", "ci_high", "boot_low", "boot_high", "p", "p_holm", "p_exact", "better", "won",
    "sd", "error", "df",
)  # fmt: skip
"""Columns of `family_tests`; the last three are not among those of a summary."""


def family_tests(
    d: pd.DataFrame,
    sign: int = 1,
    level: float = ALPHA,
    overlap: float = 0.0,
    sampling: ArrayLike = 0.0,
) -> pd.DataFrame:
    """Test every column of differences against 0: one row per method, with these columns.

    * `pairs difference`: number of differences and their mean;
    * `ci_low ci_high`: interval of the mean with confidence 1 - `level`, `boot_low boot_high`: the bootstrap interval;
    * `p p_holm`: the moderated t test, and after Holm's correction for all methods of the table;
    * `p_exact`: the joint sign-flip test, corrected for all methods;
    * `better won`: share of the seeds in which the method is better (ties count half), and their number;
    * `sd error df`: moderated standard deviation, standard error of the mean and its degrees of freedom.

    `overlap` and `sampling` are those of `moderated_t`; the bootstrap and the sign flips know nothing of them. `sign` is -1 if
    lower scores are better; it does not change the sign of the differences. Numbers that are not defined are NaN: intervals and p
    for fewer than two differences, for differences that are not finite, and for differences that are all the same number other
    than 0 (unknown spread). If all are 0, p is 1.
    """
    values = d.to_numpy(float)
    tested = moderated_t(values, level, overlap, sampling)
    # the moderated t takes NaN; the other statistics are of the seeds that a method has
    by_method = [column[~np.isnan(column)] for column in values.T]
    intervals = [bootstrap(differences) for differences in by_method]
    gains = [sign * differences for differences in by_method]
    return pd.DataFrame(
        {
            "pairs": [len(differences) for differences in by_method],
            "difference": tested.mean,
            "ci_low": tested.low,
            "ci_high": tested.high,
            "boot_low": [low for low, _ in intervals],
            "boot_high": [high for _, high in intervals],
            "p": tested.p,
            "p_holm": holm(tested.p),
            "p_exact": sign_flip_p(d),
            "better": [probability_better(gain) for gain in gains],
            "won": [int((gain > 0).sum()) for gain in gains],
            "sd": tested.sd,
            "error": tested.error,
            "df": tested.df,
        },
        index=d.columns,
        columns=list(TESTED),
    )


def sign_flip_p(d: pd.DataFrame) -> list[float]:
    """Two-sided p of the joint sign-flip test of each column, corrected for all columns.

    If methods do not differ from the baseline, the signs of a seed's differences could as well be the opposite. All 2^n ways of
    flipping whole seeds are equally likely, and p is the share of them whose largest |t| over all methods is at least the method's
    own |t| (Westfall and Young, 1993). The test assumes no normal distribution, and respects the correlation of the methods. Its
    least value is 2 / 2^n, however many methods there are.

    NaN for a column with no or infinite differences.
    """
    usable = [name for name in d if d[name].notna().any() and np.isfinite(d[name].dropna()).all()]
    p_of = dict.fromkeys(d, math.nan)
    if usable:
        values = d[usable].fillna(0.0).to_numpy(float)
        counts = d[usable].notna().sum().to_numpy()
        # |t| of every method (columns) under every pattern of flips (rows), up to a common factor
        means = _sign_patterns(len(d)) @ values / counts
        squares = (values**2).sum(0) / counts
        variances = np.maximum(squares - means**2, 0.0)
        least_variances = 1e-12 * np.where(squares > 0, squares, 1.0)
        t = np.abs(means) / np.sqrt(np.maximum(variances, least_variances))
        # the largest over the methods corrects for their number
        is_reached = t.max(1)[:, None] >= t[0] * (1 - 1e-9)
        p_of |= dict(zip(usable, is_reached.mean(0).tolist()))
    return [p_of[name] for name in d]


def _sign_patterns(n: int) -> np.ndarray:
    """All sign patterns of n seeds [2^n, n], or `RANDOM_DRAWS` random ones; the first is that without a flip."""
    if n <= MAX_EXACT_SEEDS:
        return np.array(list(product((1.0, -1.0), repeat=n)))
    flips = np.random.default_rng(DRAW_SEED).choice((1.0, -1.0), (RANDOM_DRAWS, n))
    return np.vstack([np.ones(n), flips])


def least_exact_p(n: int) -> float:
    """The smallest p that the sign-flip test can give for n seeds: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - n))


MIN_EXACT_SEEDS = math.ceil(1 + math.log2(1 / ALPHA))
"""The least number of seeds with which the sign-flip test can reach 5 %, whatever the number of methods: 6."""


PRIOR_SPREADS = np.geomspace(0.05, 20.0, 24)
"""Spreads of true means, in standard errors, that a posterior sums over."""
ERROR_QUANTILES = 6
"""Number of quantiles of the errors' uncertainty that a posterior sums over."""


def posterior_means(d: pd.DataFrame, tests: pd.DataFrame, sign: int = 1) -> pd.DataFrame:
    """Draws of the true mean differences, [`RANDOM_DRAWS`, methods]; `tests` is the `family_tests` of `d`.

    `sign` is -1 where lower is better: a metric and its mirror image have mirrored draws.

    In units of its standard error, the true means of all methods, the baseline among them, are taken as drawn from one normal
    distribution: no method is special beforehand, and one whose score varies more may also differ more (a g prior). Its spread is
    unknown, with a half-Cauchy prior of scale 1 (Gelman, 2006); so differences that noise could have made are shrunk towards 0,
    and large ones less. Given the spread, errors are normal with the `error` of the tests, stretched as their degrees of freedom
    say, and with the correlations of the seeds, which n seeds and k methods shrink by (n - 1) / (n - 1 + k) towards 1/2, that of
    methods with independent noise of equal size. A posterior is not changed by the choice of the best method, so its mean is no
    winner's curse. Methods without an interval are left out.
    """
    rows = tests[tests["ci_low"].notna()]
    k = len(rows)
    rng = np.random.default_rng(DRAW_SEED)
    mean = rows["difference"].to_numpy(float)
    error = rows["error"].fillna(0.0).to_numpy(float)
    if not error.any():
        return pd.DataFrame(np.broadcast_to(mean, (RANDOM_DRAWS, k)), columns=rows.index)

    # correlations of the errors, shrunk towards those of independent methods beside a common baseline
    unit = residuals(d[rows.index].to_numpy(float))
    degrees = len(d) - 1
    correlations = (degrees * unit.T @ unit + k * (1 + np.eye(k)) / 2) / (degrees + k)
    np.fill_diagonal(correlations, 1.0)

    # the grid [spreads, stretches] of what is unknown: the covariance of true means, and that of measured ones
    df = np.nanmin(rows["df"].fillna(np.inf))
    quantiles = (np.arange(ERROR_QUANTILES) + 0.5) / ERROR_QUANTILES
    stretch = df / stats.chi2.ppf(quantiles, df) if np.isfinite(df) else np.ones(1)
    true = PRIOR_SPREADS[:, None, None] ** 2 * (np.eye(k) + 1)
    measured = stretch[:, None, None, None] * correlations + true

    # the weight of each cell of the grid: how well it explains the differences, times its prior
    z = sign * np.divide(mean, error, out=np.zeros(k), where=error > 0)
    inverse = np.linalg.inv(measured)
    log_determinant = np.linalg.slogdet(measured)[1]
    fit = -0.5 * np.einsum("i,...ij,j->...", z, inverse, z) - 0.5 * log_determinant
    weight = np.exp(fit - fit.max()) * PRIOR_SPREADS / (1 + PRIOR_SPREADS**2)
    shares = (weight / weight.sum()).ravel()
    counts = rng.multinomial(RANDOM_DRAWS, shares).reshape(weight.shape)

    # within a cell the true means are normal, given the measured ones
    gain = true @ inverse
    remaining = np.linalg.cholesky(true - gain @ true + 1e-9 * np.eye(k))
    draws = []
    for cell in zip(*np.nonzero(counts)):
        noise = rng.standard_normal((counts[cell], k)) @ remaining[cell].T
        draws.append(gain[cell] @ z + noise)
    return pd.DataFrame(sign * np.concatenate(draws) * error, columns=rows.index)


def probability_best(
    means: pd.DataFrame, baseline: str, methods: Iterable[str], sign: int = 1
) -> pd.Series:
    """The probability of each method to have the best mean, the baseline included, from draws of the `posterior_means`.

    NaN for `methods` that were not drawn.
    """
    probabilities = pd.Series(math.nan, index=[baseline, *methods], dtype=float)
    if means.empty:
        return probabilities
    # the difference of the baseline to itself is 0 in every draw
    draws = sign * np.hstack([np.zeros((len(means), 1)), means.to_numpy()])
    wins = np.bincount(draws.argmax(1), minlength=draws.shape[1])
    probabilities[[baseline, *map(str, means)]] = wins / len(means)
    return probabilities


def seeds_needed(
    difference: float,
    sd: float,
    smallest: float,
    level: float,
    overlap: float = 0.0,
    sampling: float = 0.0,
) -> int:
    """Seeds with which a comparison is decided with probability 80 %, if the mean difference and its spread stay as they are.

    A difference is decided if it is shown not to be 0 (it is at least `smallest`), or if its interval is within -+`smallest`. The
    result is at most `MOST_NEEDED`, which also stands for never: `overlap` and `sampling` (see `moderated_t`) remain with any
    number of seeds.
    """
    n = np.arange(2, MOST_NEEDED + 1)
    error = np.sqrt(sd**2 * (1 / n + overlap) + sampling)
    t = stats.t.ppf(1 - level / 2, n - 1)
    if abs(difference) >= smallest:
        power = stats.nct.sf(t, n - 1, abs(difference) / error)
    else:  # the whole interval has to lie within -+`smallest`
        room = smallest - t * error
        below = stats.norm.cdf((room - difference) / error)
        power = below - stats.norm.cdf((-room - difference) / error)
    enough = n[np.nan_to_num(power) >= 0.8]
    return int(enough[0]) if len(enough) else MOST_NEEDED


MOST_NEEDED = 1000
"""More seeds than these are not distinguished."""


def difference_table(scores: Mapping[str, pd.Series], baseline: str) -> pd.DataFrame:
    """Differences of all methods (columns) to the baseline, for the seeds (rows) of the baseline; NaN for seeds a method lacks."""
    base = scores.get(baseline, pd.Series(dtype=float))
    columns = {}
    for name, values in scores.items():
        if name == baseline:
            continue
        columns[name] = [
            difference(float(values[seed]), float(base[seed])) if seed in values.index else math.nan
            for seed in base.index
        ]
    return pd.DataFrame(columns, index=base.index, columns=list(columns), dtype=float)


def difference(a: float, b: float) -> float:
    """a - b, rounded to 12 decimals; exactly 0 where the two differ only by float32 rounding."""
    are_equal = math.isfinite(a) and math.isclose(a, b, rel_tol=ROUNDING)
    return 0.0 if are_equal else round(a - b, 12)


def without_rounding(scores: pd.Series) -> pd.Series:
    """The scores with one value for all that differ only by rounding, as in `difference`."""
    ordered = scores.sort_values(kind="stable")
    level = (ordered.diff() > ROUNDING * ordered.shift().abs()).cumsum()
    return ordered.groupby(level).transform("first").reindex(scores.index)


def t_test(d: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean of one method's differences, its 95 % t interval, and the two-sided p of the paired t test: (mean, low, high, p).

    It is `family_tests` of a family of one, without its other numbers; NaN where they are not defined.
    """
    tested = moderated_t(np.asarray(d, dtype=float).reshape(-1, 1))
    return float(tested.mean[0]), float(tested.low[0]), float(tested.high[0]), float(tested.p[0])


def bootstrap(d: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """95 % percentile bootstrap interval of mean(d), from 9,999 resamples with a fixed seed.

    NaN for fewer than two differences and for differences that are not finite. The interval is too narrow for few pairs: n
    values have only n^n resamples, and the means stay within [min(d), max(d)].
    """
    if len(d) < 2 or not np.isfinite(d).all():
        return math.nan, math.nan
    resamples = np.random.default_rng(DRAW_SEED).integers(0, len(d), (RANDOM_DRAWS, len(d)))
    means = np.asarray(d)[resamples].mean(1)
    low, high = np.quantile(means, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def probability_better(gains: Sequence[float] | np.ndarray) -> float:
    """P(A beats B) = (#{gain > 0} + #{gain = 0} / 2) / n over the pairs; NaN for none."""
    gain = np.asarray(gains, dtype=float)
    if not len(gain):
        return math.nan
    return float(((gain > 0) + 0.5 * (gain == 0)).mean())
