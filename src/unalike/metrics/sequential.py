"""The level of repeated tests when seeds are added until a decision stands (Pocock's group-sequential boundary)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import integrate, optimize, stats

from unalike.metrics.moderated_t import ALPHA

POINTS = 201
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
    bound = optimize.brentq(lambda z: _crossing(z, first, last) - ALPHA, stats.norm.isf(ALPHA / 2), 5.0, xtol=1e-5)
    return float(2 * stats.norm.sf(bound))


def _crossing(z: float, first: int, last: int) -> float:
    """The probability that |S_n| / sqrt(n) exceeds z at some look, for a random walk S with standard normal steps."""
    x = np.linspace(-z, z, POINTS) * math.sqrt(first)
    density = stats.norm.pdf(x, scale=math.sqrt(first))
    for n in range(first + 1, last + 1):
        following = np.linspace(-z, z, POINTS) * math.sqrt(n)
        density = integrate.trapezoid(stats.norm.pdf(following[:, None] - x) * density, x, axis=1)
        x = following
    return 1 - float(integrate.trapezoid(density, x))
