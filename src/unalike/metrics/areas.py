"""Areas under the ROC curve and under the precision-recall curve, for many clients at once.

Both need the samples in the order of their scores; neither can be computed from sums over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TieGroups:
    """Groups of samples of one client with equal scores, in descending order of the score within a client.

    Attributes:
        owner: the client of each group, [groups].
        positives: positive samples of each group, [groups].
        negatives: negative samples of each group, [groups].
        positives_down_to: the client's positives in this group and in those with higher scores, [groups].
        negatives_down_to: the same for its negatives, [groups].
        client_positives: all positives of each client, [clients]; NaN where no area is defined: without a sample of one of the
            classes, or with a score that is NaN.
        client_negatives: the same for its negatives, [clients].
    """

    owner: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray
    positives_down_to: np.ndarray
    negatives_down_to: np.ndarray
    client_positives: np.ndarray
    client_negatives: np.ndarray

    @classmethod
    def of(
        cls, score: np.ndarray, positive: np.ndarray, owner: np.ndarray, clients: int
    ) -> TieGroups:
        """The groups of samples with these scores [n], classes (true or false) [n] and owners [n] among so many clients."""
        order = np.lexsort((-score, owner))
        sorted_owner = owner[order]
        sorted_score = score[order]
        sorted_positive = positive[order].astype(np.int64)

        # a group begins where the owner or the score changes
        changes = (np.diff(sorted_owner) != 0) | (np.diff(sorted_score) != 0)
        begins = np.append(True, changes)[: len(order)]
        first = np.flatnonzero(begins)
        sizes = np.diff(np.append(first, len(order)))
        positives = np.add.reduceat(sorted_positive, first) if len(first) else sorted_positive
        negatives = sizes - positives
        group_owner = sorted_owner[first]

        client_positives, client_negatives = _class_sizes(score, positive, owner, clients)
        return cls(
            owner=group_owner,
            positives=positives,
            negatives=negatives,
            positives_down_to=_running_count(positives, group_owner, clients),
            negatives_down_to=_running_count(negatives, group_owner, clients),
            client_positives=client_positives,
            client_negatives=client_negatives,
        )

    @classmethod
    def of_one(cls, score: np.ndarray, positive: np.ndarray) -> TieGroups:
        """The groups of samples that have one owner."""
        return cls.of(score, positive, owner=np.zeros(len(score), np.int64), clients=1)

    def sum_by_client(self, values: np.ndarray) -> np.ndarray:
        """Sums [clients] of one value per group."""
        return np.bincount(self.owner, values, len(self.client_positives))


def roc_auc(groups: TieGroups) -> np.ndarray:
    """The share of pairs (positive, negative sample) in the right order, by client; a tie counts half."""
    positives_above = groups.positives_down_to - groups.positives / 2
    pairs_in_order = groups.sum_by_client(groups.negatives * positives_above)
    return pairs_in_order / (groups.client_positives * groups.client_negatives)


def average_precision(groups: TieGroups) -> np.ndarray:
    """The sum over thresholds of (gain in recall) x (precision), by client; equal scores are one threshold."""
    samples_down_to = groups.positives_down_to + groups.negatives_down_to
    gains = groups.positives * groups.positives_down_to / samples_down_to
    return groups.sum_by_client(gains) / groups.client_positives


def _running_count(counts: np.ndarray, owner: np.ndarray, clients: int) -> np.ndarray:
    """Running totals of the counts of groups, beginning anew at each owner."""
    totals = np.bincount(owner, counts, clients)
    before_client = np.append(0, np.cumsum(totals))
    return np.cumsum(counts) - before_client[owner]


def _class_sizes(
    score: np.ndarray, positive: np.ndarray, owner: np.ndarray, clients: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positives and negatives of each client; NaN for a client whose area is not defined."""
    positives = np.bincount(owner, positive.astype(float), clients)
    negatives = np.bincount(owner, minlength=clients) - positives
    missing = np.bincount(owner, np.isnan(score).astype(float), clients)
    is_defined = (positives > 0) & (negatives > 0) & (missing == 0)
    return np.where(is_defined, positives, np.nan), np.where(is_defined, negatives, np.nan)
