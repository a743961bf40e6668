"""Predicted risks of a two-class outcome: calibration, ROC curve, sensitivity at a specificity, and net benefit.

A table of risks has the rows `method seed client outcome risk`, one for each test sample: the outcome is whether the sample is of
the second class, and the risk the probability of that class. Point estimates use the samples of all seeds. Seeds test many samples
again, so intervals count as many samples as one seed has on average: they are wide rather than narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import expit, logit
from scipy.stats import norm

FEWEST = 10
"""With fewer positives or other test samples in a seed, on average, there is no curve, slope or sensitivity."""
BINS = 10
"""Most groups of a calibration curve; each has at least `FEWEST` samples of a seed."""
GRID = np.linspace(0, 1, 101)
"""The shares of false positives of an ROC curve."""
THRESHOLDS = np.arange(1, 100) / 100
"""The thresholds of a decision curve."""
EDGE = 1e-6
"""Risks closer to 0 or 1 count as this in a logarithm."""


@dataclass(frozen=True)
class Risks:
    """The risks [n] that one method gives the test samples of one client under all seeds, with outcomes [n] and seeds [n]."""

    outcome: np.ndarray
    risk: np.ndarray
    seed: np.ndarray

    @property
    def seeds(self) -> list[Risks]:
        """The same, seed by seed."""
        return [
            Risks(*(a[self.seed == s] for a in (self.outcome, self.risk, self.seed)))
            for s in np.unique(self.seed)
        ]

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
        return min(self.positives, self.others) >= FEWEST

    @property
    def brier(self) -> float:
        """The mean of (risk - outcome)^2: 0 is perfect, the same risk p for everybody gives p (1 - p)."""
        return float(np.mean((self.risk - self.outcome) ** 2))

    def reliability(self, level: float = 0.05) -> pd.DataFrame:
        """Groups of about equal size in the order of their risk: `expected observed low high count`.

        `expected` is the mean risk, `observed` the share of positives with Wilson's interval, `count` the samples of a seed.
        """
        groups = max(1, min(BINS, int(len(self.risk) / self.repeats / FEWEST)))
        order = np.argsort(self.risk, kind="stable")
        rows = []
        for own in np.array_split(order, groups):
            count, share = len(own) / self.repeats, float(self.outcome[own].mean())
            rows.append((float(self.risk[own].mean()), share, *wilson(share, count, level), count))
        return pd.DataFrame(rows, columns=["expected", "observed", "low", "high", "count"])

    def slope(self, level: float = 0.05) -> tuple[float, float, float]:
        """The calibration slope b of logit P(outcome) = a + b logit(risk) with Wald's interval.

        1 is right; below 1 risks are too extreme, above 1 too moderate (Cox, 1958). NaN where no fit is finite.
        """
        z = logit(np.clip(self.risk, EDGE, 1 - EDGE))
        return _coefficient(
            np.stack([z, np.ones_like(z)], 1), np.zeros_like(z), self.outcome, self.repeats, level
        )

    def intercept(self, level: float = 0.05) -> tuple[float, float, float]:
        """Calibration in the large: a of logit P(outcome) = a + logit(risk) with Wald's interval.

        0 is right; below 0 risks are too high, above 0 too low.
        """
        z = logit(np.clip(self.risk, EDGE, 1 - EDGE))
        return _coefficient(np.ones((len(z), 1)), z, self.outcome, self.repeats, level)

    def sensitivities(self, specificities: np.ndarray) -> np.ndarray:
        """The largest share of positives above a threshold that leaves this share of the others below it; mean over seeds."""
        own = [
            _sensitivities(one.outcome, one.risk, specificities)
            for one in self.seeds
            if one.positives and one.others
        ]
        return np.mean(own, axis=0) if own else np.full(len(specificities), np.nan)

    def sensitivity(self, specificity: float, level: float = 0.05) -> tuple[float, float, float]:
        """The sensitivity at a specificity with Wilson's interval for the positives of a seed."""
        share = float(self.sensitivities(np.array([specificity]))[0])
        return share, *wilson(share, self.positives, level)

    def net_benefit(self, thresholds: np.ndarray = THRESHOLDS) -> np.ndarray:
        """TP/n - FP/n t/(1 - t) when samples with a risk of at least t are treated (Vickers and Elkin, 2006)."""
        treated = self.risk >= thresholds[:, None] - 1e-9  # risks are kept in single precision
        true, false = (treated & (self.outcome == y) for y in (1, 0))
        return np.asarray(true.mean(1) - false.mean(1) * thresholds / (1 - thresholds))

    def treat_all(self, thresholds: np.ndarray = THRESHOLDS) -> np.ndarray:
        """The net benefit of treating everybody."""
        return Risks(self.outcome, np.ones_like(self.risk), self.seed).net_benefit(thresholds)


def risks_of(table: pd.DataFrame, methods: Sequence[str]) -> dict[str, dict[str, Risks]]:
    """Client -> method -> its risks, from a table of risks."""
    found: dict[str, dict[str, Risks]] = {str(name): {} for name in table["client"].unique()}
    for (client, method), own in table[table["method"].isin(methods)].groupby(
        ["client", "method"], sort=False
    ):
        found[str(client)][str(method)] = Risks(
            *(own[name].to_numpy() for name in ("outcome", "risk", "seed"))
        )
    return {
        c: {m: by_method[m] for m in methods if m in by_method} for c, by_method in found.items()
    }


def wilson(share: float, count: float, level: float = 0.05) -> tuple[float, float]:
    """Wilson's interval for a share of `count` samples, which need not be a whole number."""
    if not count or math.isnan(share):
        return math.nan, math.nan
    z = float(norm.isf(level / 2))
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _sensitivities(outcome: np.ndarray, risk: np.ndarray, specificities: np.ndarray) -> np.ndarray:
    """The ROC curve of one seed at these specificities: a step function, ties are one step."""
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(outcome, risk, drop_intermediate=False)
    return np.asarray(true[np.searchsorted(false, 1 - specificities + 1e-9, side="right") - 1])


def _coefficient(
    x: np.ndarray, offset: np.ndarray, outcome: np.ndarray, repeats: int, level: float
) -> tuple[float, float, float]:
    """The first coefficient of the logistic regression of outcomes on x with an offset, by Newton's method, and its interval."""
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        p = expit(offset + x @ beta)
        information = (x * (p * (1 - p))[:, None]).T @ x
        if not np.isfinite(beta).all() or np.linalg.cond(information) > 1e12:
            return math.nan, math.nan, math.nan
        step = np.linalg.solve(information, x.T @ (outcome - p))
        beta = beta + step
        if np.abs(step).max() < 1e-10:
            break
    else:
        return math.nan, math.nan, math.nan
    half = float(norm.isf(level / 2)) * math.sqrt(repeats * np.linalg.inv(information)[0, 0])
    return float(beta[0]), float(beta[0] - half), float(beta[0] + half)
