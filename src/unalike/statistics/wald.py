"""Wald tests and intervals of estimates with known standard errors."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from unalike.statistics.moderated_t import ALPHA


class Wald(NamedTuple):
    """Estimate over standard error `z`, two-sided `p`, and the interval from `low` to `high`, of each estimate [T].

    NaN where an estimate or its standard error is NaN.
    """

    z: np.ndarray
    p: np.ndarray
    low: np.ndarray
    high: np.ndarray


def wald(
    estimate: np.ndarray, error: np.ndarray, freedom: float = np.inf, level: float = ALPHA
) -> Wald:
    """Test estimates [T] with these standard errors [T] against 0; intervals have confidence 1 - `level`.

    By the t distribution with `freedom` degrees of freedom; infinitely many are the normal distribution.
    """
    # an estimate without any error, such as that of labels that are all 0, has no test
    with np.errstate(divide="ignore", invalid="ignore"):
        z = estimate / error
    half_width = stats.t.isf(level / 2, freedom) * error
    return Wald(
        z=z,
        p=2 * stats.t.sf(np.abs(z), freedom),
        low=estimate - half_width,
        high=estimate + half_width,
    )
