"""Divisions of a data set that all test on the same samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unalike.data.dataset import Dataset
from unalike.data.heterogeneity import label_counts
from unalike.data.partitioning.apply_plan import apply_plan
from unalike.data.partitioning.partition import share_apart
from unalike.data.population import Population
from unalike.data.ragged import Ragged


def tested_as(drawn: Population, other: Population, dataset: Dataset) -> Population:
    """The clients of one division, tested on samples that test in another division of the same data set.

    Each client tests on those of its samples that are test samples there, and trains on its other samples. So no sample that
    `other` trains or validates on is tested on. A client may be left without test samples.

    Args:
        drawn: A partition of `dataset`.
        other: Another partition of `dataset`, for instance the one that hyperparameters were chosen on.
        dataset: The data set.

    Returns:
        The clients of `drawn`, with other roles of their samples.
    """
    plan, tests = drawn.plan, other.plan
    if drawn is other or plan is None or tests is None:
        return drawn
    roles: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for k, parts in enumerate(zip(plan.train, plan.val, plan.test, strict=True)):
        own = np.concatenate(parts)
        tested = np.isin(own, tests.test.values)
        validated, trained = share_apart(own[~tested], plan.val_share, plan.seed, k)
        roles.append((trained, validated, own[tested]))
    train, val, test = (Ragged.of(rows) for rows in zip(*roles, strict=True))
    labels = (dataset.merged() if plan.merge else dataset.train)[1]
    counts = label_counts(labels, dataset.classes, train)
    return apply_plan(replace(plan, train=train, val=val, test=test, counts=counts), dataset)
