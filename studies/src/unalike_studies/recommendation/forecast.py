"""Forecasts of the gains of methods from stored tasks that are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from unalike_studies.recommendation.stored_runs import StoredRuns
from unalike_studies.recommendation.task_features import TITLES

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.tree import DecisionTreeRegressor

CONFIDENCE = 0.95
TREES, SMALLEST_LEAF, DEPTH, SEED = 300, 3, 3, 0
"""Trees of the forest, fewest tasks in a leaf, depth of the single tree that explains the forecasts, and the seed of both."""


@dataclass(frozen=True, eq=False)
class Forecaster:
    """A random forest over stored tasks, read as weights of the tasks that are alike.

    The forest is grown to predict the gains of all methods together. The weight of stored task t for features x is

        w_t(x) = mean over trees of [t is in the leaf of x] / (tasks in this leaf),

    and the forecast of a method's gain is the median of the gains under these weights: where some of the tasks are of another kind,
    their large gains do not move it, as they would move the mean.

    Source: Meinshausen 2006, Quantile Regression Forests.
    """

    runs: StoredRuns
    objective: str
    methods: tuple[str, ...]

    @cached_property
    def gains(self) -> pd.DataFrame:
        """The gains over FedAvg of the stored tasks: tasks (rows) by methods (columns)."""
        return self.runs.gains(self.objective)[list(self.methods)]

    @cached_property
    def _forest(self) -> RandomForestRegressor:
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(
            TREES, min_samples_leaf=SMALLEST_LEAF, max_features=0.5, random_state=SEED
        )
        return forest.fit(self.runs.features, self.gains.to_numpy())

    @cached_property
    def _leaves(self) -> np.ndarray:
        return np.asarray(self._forest.apply(self.runs.features))

    def weights(self, features: np.ndarray) -> np.ndarray:
        """The weights of the stored tasks [T], which sum to 1, for features [F]."""
        same = self._leaves == self._forest.apply(features[None])
        return np.asarray((same / same.sum(0)).mean(1))

    def forecast(self, features: np.ndarray) -> pd.Series:
        """The median gain of each method for features [F]."""
        weights = self.weights(features)
        return self.gains.apply(lambda values: weighted_quantile(values.to_numpy(), weights, 0.5))

    def distances(self, features: np.ndarray) -> np.ndarray:
        """The distance of features [F] to each stored task [T]: the mean distance of their ranks in each feature."""
        return np.asarray(np.abs(self._stored_ranks - self._ranks(features[None])).mean(-1))

    @cached_property
    def _stored_ranks(self) -> np.ndarray:
        return self._ranks(self.runs.features)

    def _ranks(self, rows: np.ndarray) -> np.ndarray:
        """The share of the stored tasks below each value [n, F]; half of those that equal it count."""
        stored = np.sort(self.runs.features, axis=0)
        sides = [
            [np.searchsorted(stored[:, f], rows[:, f], side) for f in range(rows.shape[1])]
            for side in ("left", "right")
        ]
        return np.mean(sides, axis=0).T / len(stored)

    @cached_property
    def explanation(self) -> DecisionTreeRegressor:
        """One small tree that predicts the gains of all methods: less exact than the forest, but it can be read."""
        from sklearn.tree import DecisionTreeRegressor

        tree = DecisionTreeRegressor(
            max_depth=DEPTH, min_samples_leaf=2 * SMALLEST_LEAF, random_state=SEED
        )
        return tree.fit(self.runs.features, self.gains.to_numpy())

    def reasons(self, features: np.ndarray) -> list[str]:
        """The questions of the small tree that lead from all tasks to those like features [F], with their answers."""
        tree: Any = self.explanation.tree_
        path = self.explanation.decision_path(features[None]).indices
        titles, cuts = list(TITLES.values()), dict[int, dict[str, float]]()
        for node in path[
            :-1
        ]:  # a feature may be asked for twice: each later cut is the sharper one of its direction
            feature, cut = int(tree.feature[node]), tree.threshold[node]
            relation = "at most" if features[feature] <= cut else "above"
            cuts.setdefault(feature, {})[relation] = cut
        texts = {
            i: " and ".join(f"{relation} {cut:.3g}" for relation, cut in own.items())
            for i, own in cuts.items()
        }
        return [
            f"{titles[i]}: {features[i]:.3g}, {text}".replace(" -", " −")
            for i, text in texts.items()
        ]


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The smallest value up to which at least this share of the weights lies."""
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), share * weights.sum() - 1e-12))
    return float(values[order][min(place, len(values) - 1)])


def lower_bound(gains: np.ndarray, methods: int) -> float:
    """A lower bound of a method's median gain over data sets like these n; minus infinity where n is too small for any.

    It is the k-th smallest gain, with the largest k for which P(Binomial(n, 1/2) < k) is at most 5 % / `methods`: the sign test,
    corrected for the choice of one among so many methods. With ten data sets and ten methods k is 1: the method must have gained on
    every one.
    """
    from scipy.stats import binom

    k = int(binom.ppf((1 - CONFIDENCE) / methods, len(gains), 0.5)) if len(gains) else 0
    return float(np.sort(gains)[k - 1]) if k else -np.inf
