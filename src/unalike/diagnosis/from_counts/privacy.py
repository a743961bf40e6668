"""The differential privacy that noise on counts gives to one training sample."""

from __future__ import annotations

import math

from unalike.methods.plans.histograms import DIRECTIONS

DELTA = 1e-5


def epsilon(noise: float, feature_histograms: int, label_histograms: int = 0) -> float:
    """The epsilon, at delta = 1e-5, of all counts of one diagnosis together, for one sample in place of another one.

    A replaced sample changes two counts by one in each histogram. Its squared L2 distance is 2 for a histogram of labels or
    classes and 2 R for those along R directions. Normal noise of standard deviation s gives rho-zero-concentrated privacy with
    rho = distance^2 / (2 s^2), which adds up over questions, and epsilon = rho + 2 sqrt(rho ln(1 / delta)).

    Args:
        noise: The standard deviation of the noise on each count.
        feature_histograms: The number of questions about features.
        label_histograms: The number of questions about labels or classes.

    Returns:
        The epsilon; infinite without noise.

    Source:
        Bun and Steinke 2016, propositions 1.3 and 1.6, lemma 2.3.
    """
    if not noise:
        return math.inf
    rho = (feature_histograms * 2 * DIRECTIONS + label_histograms * 2) / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
