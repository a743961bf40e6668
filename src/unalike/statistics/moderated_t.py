"""The t test with moderated variances, and Holm's correction, for any number of families at once.

Arrays are differences d [..., seeds, methods] with NaN for seeds that a method lacks; leading dimensions are separate families.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

ALPHA = 0.05
"""The level of tests, and one less the coverage of intervals, unless another one is given."""


@dataclass(frozen=True)
class ModeratedT:
    """Mean, interval, two-sided p, standard deviation of a difference, standard error of the mean and its degrees of freedom of
    each method: arrays [..., methods]."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    df: np.ndarray


def moderated_t(
    d: np.ndarray, level: ArrayLike = ALPHA, overlap: float = 0.0, sampling: ArrayLike = 0.0
) -> ModeratedT:
    """Test the mean difference of each method against 0, with intervals of confidence 1 - `level`, of all or of each method.

    With three to five seeds a variance is hardly known, and Holm's correction asks for a quantile far out in the tail of a t
    distribution with two to four degrees of freedom. The variances of a family are therefore shrunk towards each other (empirical
    Bayes: Lonnstedt and Speed, 2002; Smyth, 2004). Each is taken as drawn from s0^2 d0 / chi2(d0), whose s0 and d0 are estimated
    from the mean and the variance of the log variances; then

        sd^2 = (d0 s0^2 + v s^2) / (d0 + v),    df = d0 + v,    v = seeds - 1.

    Variances that differ much give a small d0, and little is changed. One deviation from Smyth: methods share the noise of the
    baseline, so their variances are not independent, and d0 is limited to v (m - 1), where m is the effective number of methods,
    k^2 / sum of the k^2 squared correlations. A family of one keeps its own variance.

    The half width of the interval of the mean of n differences is

        sqrt(t^2 sd^2 (1 / n + overlap) + z^2 sampling),    overlap = n_test / n_train,

    with the quantiles t of df degrees of freedom and z of the normal distribution. Seeds that redraw the test samples of the same
    clients train on overlapping samples, so their differences are correlated, and sd^2 / n would fall below the variance of the
    mean over data sets. Nadeau and Bengio (2003) take the correlation to be n_test / (n_test + n_train), which gives `overlap`:
    n_test / n_train for random splits, 1 / (k - 1) for k folds (Bouckaert and Frank, 2004). It needs no further training, and in
    simulations of small and skewed clients its intervals cover the expected difference over new samples for any number of seeds
    (`benchmarks/redrawn_splits.py`). `sampling` is the variance that comes from test samples which all seeds share
    (`sampling_variances`); two independent intervals are joined so that the result is wider than each. `error` is the half width
    divided by t, and p that of mean / error. Limit case: seeds that share nothing, or one fixed split, have overlap 0, and without
    `sampling` the test is Smyth's.

    `sd` is NaN for a method with fewer than two differences, one that is not finite, and one without a spread; so are `low`,
    `high` and `p`, unless all differences are 0: then the interval is 0 to 0, and p is 1.
    """
    d = np.asarray(d, dtype=float)
    if d.shape[-2] == 0:
        d = np.full((*d.shape[:-2], 1, d.shape[-1]), np.nan)

    # each method by itself
    n = (~np.isnan(d)).sum(-2)
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        # columns without a number
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(d, -2)
        s2 = np.nanvar(d, -2, ddof=1)
        size = np.nanmax(np.abs(d), -2)
        spread = np.nanmax(d, -2) - np.nanmin(d, -2)
    # then its variance in the family
    unknown = (n < 2) | ~np.isfinite(s2) | ~(spread > 1e-9 * size)
    sd, df = _moderated(d, np.where(unknown, np.nan, s2), n - 1.0)

    with np.errstate(invalid="ignore", divide="ignore"):
        tail = np.asarray(level) / 2
        t = stats.t.ppf(1 - tail, df)
        z = stats.norm.ppf(1 - tail)
        error = np.sqrt(sd**2 * (1 / n + overlap) + sampling * (z / t) ** 2)
        half = t * error
        p = 2 * stats.t.sf(np.abs(mean) / error, df)

    # methods that never differ from the baseline have no spread, and yet are known not to differ
    never_differs = (n > 1) & (size == 0)
    return ModeratedT(
        mean=mean,
        low=np.where(never_differs, 0.0, mean - half),
        high=np.where(never_differs, 0.0, mean + half),
        p=np.where(never_differs, 1.0, p),
        sd=sd,
        error=error,
        df=df,
    )


def _moderated(d: np.ndarray, s2: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moderated standard deviations and degrees of freedom [..., methods]; NaN where `s2` is."""
    known = ~np.isnan(s2)
    k = known.sum(-1)
    v = np.where(known, v, np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # families of one or none
        warnings.simplefilter("ignore", RuntimeWarning)

        # log variances without their bias, and what they vary more than samples of one variance would
        logs = np.log(s2) - special.digamma(v / 2) + np.log(v / 2)
        noise = np.nanmean(special.polygamma(1, v / 2), -1)
        excess = np.nanvar(logs, -1, ddof=1) - noise
        differ = excess > 1e-6

        # the less they vary, the more degrees of freedom has the common variance
        methods = _effective_number(np.where(known[..., None, :], d, np.nan))
        most = np.nanmean(v, -1) * (methods - 1)
        estimate = 2 * _inverse_trigamma(np.where(differ, excess, 1.0))
        d0 = np.where(differ, np.minimum(most, estimate), most)
        d0 = np.where((k > 1) & (d0 > 0), d0, 0.0)[..., None]

        is_estimated = differ[..., None] & (d0 > 0)
        bias = np.where(is_estimated, special.digamma(d0 / 2) - np.log(d0 / 2), 0.0)
        s0 = np.where(d0 > 0, np.exp(np.nanmean(logs, -1)[..., None] + bias), 0.0)
    return np.sqrt((d0 * s0 + v * s2) / (d0 + v)), d0 + v


def _effective_number(d: np.ndarray) -> np.ndarray:
    """k^2 / sum of squared correlations: k for uncorrelated methods, 1 for proportional ones."""
    unit = residuals(d)
    k = (unit != 0).any(-2).sum(-1)
    correlations = np.einsum("...nk,...nl->...kl", unit, unit)
    return np.asarray(k**2 / (correlations**2).sum((-2, -1)))


def residuals(d: np.ndarray) -> np.ndarray:
    """The columns minus their means, with norm 1 (0 without a spread); missing differences are 0."""
    centered = np.nan_to_num(d - np.nanmean(d, -2, keepdims=True))
    norms = np.linalg.norm(centered, axis=-2, keepdims=True)
    return np.asarray(centered / np.where(norms > 0, norms, 1.0))


def _inverse_trigamma(value: np.ndarray) -> np.ndarray:
    """y with trigamma(y) = value, by Newton's method on 1 / trigamma, which is nearly linear (Smyth, 2004)."""
    y = 0.5 + 1 / value
    for _ in range(20):
        trigamma = special.polygamma(1, y)
        y = y + trigamma * (1 - trigamma / value) / special.polygamma(2, y)
    return np.asarray(y)


def holm(p: ArrayLike) -> np.ndarray:
    """Holm's adjusted p values along the last axis.

    In ascending order, p_(i) becomes the largest of min(1, (m - j + 1) p_(j)) over j <= i. NaN (a method that could not be tested)
    stays NaN and does not count towards m. For m = 1 nothing changes.
    """
    raw = np.asarray(p, dtype=float)
    # ascending; NaN is last
    order = np.argsort(raw, axis=-1, kind="stable")
    m = (~np.isnan(raw)).sum(-1, keepdims=True)
    factors = np.maximum(m - np.arange(raw.shape[-1]), 1)
    multiplied = np.take_along_axis(raw, order, -1) * factors
    adjusted = np.minimum(1.0, np.maximum.accumulate(multiplied, axis=-1))
    result = np.empty_like(raw)
    np.put_along_axis(result, order, adjusted, -1)
    return result


def levels_of_holm(p: ArrayLike, level: float) -> np.ndarray:
    """The level at which Holm's procedure tests each of p [methods].

    An interval of confidence 1 - level excludes 0 exactly where Holm's p is below the common level. The j-th smallest of m is
    tested at level / (m - j + 1), until the first that is not below its own; later ones have the level of that one. NaN does not
    count towards m. For m = 1 it is `level`.
    """
    raw = np.asarray(p, dtype=float)
    order = np.argsort(raw, kind="stable")
    m = int((~np.isnan(raw)).sum())
    ascending = level / np.maximum(m - np.arange(len(raw)), 1)
    is_kept = ~(raw[order] < ascending)
    if is_kept.any():
        first = int(np.argmax(is_kept))
        ascending[first:] = ascending[first]
    levels = np.empty_like(raw)
    levels[order] = ascending
    return levels
