"""Predicted risks of a two-class outcome: calibration, ROC curve, sensitivity at a specificity or threshold, and net benefit.

A table of risks has the rows `method seed client outcome risk`, one for each test sample: the outcome is whether the sample is of
the second class, and the risk the probability of that class. Point estimates use the samples of all seeds. Seeds test many samples
again, so intervals count as many samples as one seed has on average: they are wide rather than narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit, logit
from scipy.stats import norm

MIN_SAMPLES_OF_CLASS = 10
"""With fewer positives or other test samples in a seed, on average, there is no curve, slope or sensitivity."""
MAX_GROUPS = 10
"""Most groups of a calibration curve; each has at least `MIN_SAMPLES_OF_CLASS` samples of a seed."""
FALSE_POSITIVE_SHARES = np.linspace(0, 1, 101)
"""The shares of false positives of an ROC curve."""
THRESHOLDS = np.arange(1, 100) / 100
"""The thresholds of a decision curve."""
SMALLEST_RISK = 1e-6
"""Risks closer to 0 or 1 count as this in a logarithm."""


def rarer_outcome(n_test: float, n_positive: float) -> float:
    """The test samples of the rarer of two outcomes; all of them where outcomes are not counted (NaN)."""
    if math.isnan(n_positive):
        return n_test
    return min(n_positive, n_test - n_positive)


def can_be_judged(n_test: float, n_positive: float) -> bool:
    """Whether a client has test samples enough for a score of its own; others are counted, and not named with points."""
    return rarer_outcome(n_test, n_positive) >= MIN_SAMPLES_OF_CLASS


class Share(NamedTuple):
    """A share of samples with its interval, NaN where there is no sample."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LogisticFit:
    """Coefficients [D] of a logistic regression, and their information X'WX [D, D]."""

    beta: np.ndarray
    information: np.ndarray


@dataclass(frozen=True)
class Risks:
    """The risks [n] that one method gives the test samples of one client under all seeds, with outcomes [n] and seeds [n]."""

    outcome: np.ndarray
    risk: np.ndarray
    seed: np.ndarray

    @property
    def seeds(self) -> list[Risks]:
        """The same, seed by seed."""
        by_seed = []
        for seed in np.unique(self.seed):
            rows = self.seed == seed
            by_seed.append(Risks(self.outcome[rows], self.risk[rows], self.seed[rows]))
        return by_seed

    @property
    def repeats(self) -> int:
        return len(np.unique(self.seed))

    @property
    def positives(self) -> float:
        """Positives of a seed, on average."""
        return float(self.outcome.sum() / self.repeats)

    @property
    def others(self) -> float:
        """Samples of the other class in a seed, on average."""
        return float(len(self.outcome) / self.repeats - self.positives)

    @property
    def enough(self) -> bool:
        """Whether there are samples enough for curves."""
        return min(self.positives, self.others) >= MIN_SAMPLES_OF_CLASS

    @property
    def brier(self) -> float:
        """The mean of (risk - outcome)^2: 0 is perfect, the same risk p for everybody gives p (1 - p)."""
        return float(np.mean((self.risk - self.outcome) ** 2))

    def reliability(self, level: float = 0.05) -> pd.DataFrame:
        """Groups of about equal size in the order of their risk: `expected observed low high count`.

        `expected` is the mean risk, `observed` the share of positives with Wilson's interval, `count` the samples of a seed.
        """
        groups = int(len(self.risk) / self.repeats / MIN_SAMPLES_OF_CLASS)
        groups = max(1, min(MAX_GROUPS, groups))
        order = np.argsort(self.risk, kind="stable")
        rows = []
        for members in np.array_split(order, groups):
            count = len(members) / self.repeats
            expected = float(self.risk[members].mean())
            observed = float(self.outcome[members].mean())
            low, high = wilson(observed, count, level)
            rows.append((expected, observed, low, high, count))
        return pd.DataFrame(rows, columns=["expected", "observed", "low", "high", "count"])

    def slope(self, level: float = 0.05) -> tuple[float, float, float]:
        """The calibration slope b of logit P(outcome) = a + b logit(risk) with Wald's interval.

        1 is right; below 1 risks are too extreme, above 1 too moderate (Cox, 1958). NaN where no fit is finite.
        """
        z = self._logits
        with_intercept = np.stack([z, np.ones_like(z)], 1)
        return self._coefficient(with_intercept, offset=np.zeros_like(z), level=level)

    def intercept(self, level: float = 0.05) -> tuple[float, float, float]:
        """Calibration in the large: a of logit P(outcome) = a + logit(risk) with Wald's interval.

        0 is right; below 0 risks are too high, above 0 too low.
        """
        intercept_alone = np.ones((len(self.risk), 1))
        return self._coefficient(intercept_alone, offset=self._logits, level=level)

    def recalibration(self) -> tuple[float, float]:
        """a and b of logit P(outcome) = a + b logit(risk), which make these risks right; NaN where no fit is finite."""
        z = self._logits
        fit = self._fit(np.stack([z, np.ones_like(z)], 1), offset=np.zeros_like(z))
        if fit is None:
            return math.nan, math.nan
        slope, intercept = fit.beta
        return float(intercept), float(slope)

    @property
    def _logits(self) -> np.ndarray:
        return np.asarray(logit(np.clip(self.risk, SMALLEST_RISK, 1 - SMALLEST_RISK)))

    def _coefficient(
        self, x: np.ndarray, offset: np.ndarray, level: float
    ) -> tuple[float, float, float]:
        """The first coefficient of the logistic regression of outcomes on x with an offset, and its interval."""
        fit = self._fit(x, offset)
        if fit is None:
            return math.nan, math.nan, math.nan
        # seeds test many samples again, so they count as those of one seed
        variance = self.repeats * np.linalg.inv(fit.information)[0, 0]
        half = float(norm.isf(level / 2)) * math.sqrt(variance)
        first = float(fit.beta[0])
        return first, first - half, first + half

    def _fit(self, x: np.ndarray, offset: np.ndarray) -> LogisticFit | None:
        """The logistic regression of outcomes on x [n, D] with an offset [n], by Newton's method; None where none is finite."""
        beta = np.zeros(x.shape[1])
        for _ in range(50):
            p = expit(offset + x @ beta)
            information = (x * (p * (1 - p))[:, None]).T @ x
            if not np.isfinite(beta).all() or np.linalg.cond(information) > 1e12:
                return None
            step = np.linalg.solve(information, x.T @ (self.outcome - p))
            beta = beta + step
            if np.abs(step).max() < 1e-10:
                return LogisticFit(beta, information)
        return None

    def sensitivities(self, specificities: np.ndarray) -> np.ndarray:
        """The largest share of positives above a threshold that leaves this share of the others below it; mean over seeds."""
        by_seed = [
            _sensitivities(one.outcome, one.risk, specificities)
            for one in self.seeds
            if one.positives and one.others
        ]
        if not by_seed:
            return np.full(len(specificities), np.nan)
        return np.mean(by_seed, axis=0)

    def sensitivity(self, specificity: float, level: float = 0.05) -> tuple[float, float, float]:
        """The sensitivity at a specificity with Wilson's interval for the positives of a seed."""
        share = float(self.sensitivities(np.array([specificity]))[0])
        low, high = wilson(share, self.positives, level)
        return share, low, high

    def at_threshold(self, threshold: float, level: float = 0.05) -> dict[str, Share]:
        """Sensitivity, specificity, PPV and NPV, if risks of at least the threshold are positive, with Wilson's intervals."""
        # risks are kept in single precision
        above = self.risk >= threshold - 1e-9
        positive = self.outcome == 1
        parts = {
            "sensitivity": (above & positive, positive),
            "specificity": (~above & ~positive, ~positive),
            "ppv": (above & positive, above),
            "npv": (~above & ~positive, ~above),
        }
        shares = {}
        for name, (part, whole) in parts.items():
            count = whole.sum() / self.repeats
            value = float(part.sum() / whole.sum()) if count else math.nan
            low, high = wilson(value, count, level)
            shares[name] = Share(value, low, high)
        return shares

    def net_benefit(self, thresholds: np.ndarray = THRESHOLDS) -> np.ndarray:
        """TP/n - FP/n t/(1 - t) when samples with a risk of at least t are treated (Vickers and Elkin, 2006)."""
        # risks are kept in single precision
        treated = self.risk >= thresholds[:, None] - 1e-9
        true_positives = treated & (self.outcome == 1)
        false_positives = treated & (self.outcome == 0)
        harm = false_positives.mean(1) * thresholds / (1 - thresholds)
        return np.asarray(true_positives.mean(1) - harm)

    def treat_all(self, thresholds: np.ndarray = THRESHOLDS) -> np.ndarray:
        """The net benefit of treating everybody."""
        everybody = Risks(self.outcome, np.ones_like(self.risk), self.seed)
        return everybody.net_benefit(thresholds)


def risks_of(table: pd.DataFrame, methods: Sequence[str]) -> dict[str, dict[str, Risks]]:
    """Client -> method -> its risks, from a table of risks."""
    by_client: dict[str, dict[str, Risks]] = {str(name): {} for name in table["client"].unique()}
    chosen = table[table["method"].isin(methods)]
    for (client, method), rows in chosen.groupby(["client", "method"], sort=False):
        by_client[str(client)][str(method)] = Risks(
            outcome=rows["outcome"].to_numpy(),
            risk=rows["risk"].to_numpy(),
            seed=rows["seed"].to_numpy(),
        )
    # in the order of `methods`, not in that of the table
    return {client: _in_order(risks, methods) for client, risks in by_client.items()}


def _in_order(risks: dict[str, Risks], methods: Sequence[str]) -> dict[str, Risks]:
    return {method: risks[method] for method in methods if method in risks}


def wilson(share: float, count: float, level: float = 0.05) -> tuple[float, float]:
    """Wilson's interval for a share of `count` samples, which need not be a whole number."""
    if not count or math.isnan(share):
        return math.nan, math.nan
    z = float(norm.isf(level / 2))
    shrinkage = 1 + z**2 / count
    middle = (share + z**2 / (2 * count)) / shrinkage
    half = z / shrinkage * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _sensitivities(outcome: np.ndarray, risk: np.ndarray, specificities: np.ndarray) -> np.ndarray:
    """The ROC curve of one seed at these specificities: a step function, ties are one step."""
    from sklearn.metrics import roc_curve

    false_shares, true_shares, _ = roc_curve(outcome, risk, drop_intermediate=False)
    steps = np.searchsorted(false_shares, 1 - specificities + 1e-9, side="right") - 1
    return np.asarray(true_shares[steps])
