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
TREES = 300
"""Trees of the forest."""
SMALLEST_LEAF = 3
"""The fewest tasks in a leaf of the forest."""
EXPLANATION_DEPTH = 3
"""Depth of the single tree that explains the forecasts."""
SEED = 0
"""The seed of the forest and of the single tree."""


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

        def median(gains: pd.Series) -> float:
            return weighted_quantile(gains.to_numpy(), weights, 0.5)

        return self.gains.apply(median)

    def distances(self, features: np.ndarray) -> np.ndarray:
        """The distance of features [F] to each stored task [T]: the mean distance of their ranks in each feature."""
        differences = np.abs(self._stored_ranks - self._ranks(features[None]))
        return np.asarray(differences.mean(-1))

    @cached_property
    def _stored_ranks(self) -> np.ndarray:
        return self._ranks(self.runs.features)

    def _ranks(self, rows: np.ndarray) -> np.ndarray:
        """The share of the stored tasks below each value [n, F]; half of those that equal it count."""
        stored = np.sort(self.runs.features, axis=0)
        ranks = []
        for feature in range(rows.shape[1]):
            column, values = stored[:, feature], rows[:, feature]
            below = np.searchsorted(column, values, "left")
            up_to = np.searchsorted(column, values, "right")
            ranks.append(np.mean([below, up_to], axis=0))
        return np.array(ranks).T / len(stored)

    @cached_property
    def explanation(self) -> DecisionTreeRegressor:
        """One small tree that predicts the gains of all methods: less exact than the forest, but it can be read."""
        from sklearn.tree import DecisionTreeRegressor

        tree = DecisionTreeRegressor(
            max_depth=EXPLANATION_DEPTH, min_samples_leaf=2 * SMALLEST_LEAF, random_state=SEED
        )
        return tree.fit(self.runs.features, self.gains.to_numpy())

    def reasons(self, features: np.ndarray) -> list[str]:
        """The questions of the small tree that lead from all tasks to those like features [F], with their answers."""
        tree: Any = self.explanation.tree_
        path = self.explanation.decision_path(features[None]).indices

        # A feature may be asked for twice: each later cut is the sharper one of its direction.
        cuts: dict[int, dict[str, float]] = {}
        nodes_with_questions = path[:-1]
        for node in nodes_with_questions:
            feature = int(tree.feature[node])
            cut = tree.threshold[node]
            relation = "at most" if features[feature] <= cut else "above"
            cuts.setdefault(feature, {})[relation] = cut

        titles = list(TITLES.values())
        reasons = []
        for feature, by_relation in cuts.items():
            answers = [f"{relation} {cut:.3g}" for relation, cut in by_relation.items()]
            answer = " and ".join(answers)
            reason = f"{titles[feature]}: {features[feature]:.3g}, {answer}"
            reasons.append(reason.replace(" -", " −"))
        return reasons


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The smallest value up to which at least this share of the weights lies."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    # Rounding of the sums must not push a share that is just reached to the next value.
    place = int(np.searchsorted(sums, share * weights.sum() - 1e-12))
    last = len(values) - 1
    return float(values[order][min(place, last)])


def lower_bound(gains: np.ndarray, methods: int) -> float:
    """A lower bound of a method's median gain over data sets like these n; minus infinity where n is too small for any.

    It is the k-th smallest gain, with the largest k for which P(Binomial(n, 1/2) < k) is at most 5 % / `methods`: the sign test,
    corrected for the choice of one among so many methods. With ten data sets and ten methods k is 1: the method must have gained on
    every one.
    """
    from scipy.stats import binom

    if not len(gains):
        return -np.inf
    k = int(binom.ppf((1 - CONFIDENCE) / methods, len(gains), 0.5))
    if k == 0:
        return -np.inf
    return float(np.sort(gains)[k - 1])
