"""Turn a partition plan and its data set into a population."""

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.seeds import generator
from unalike._utils.spec import parse
from unalike.data.client_data import SPLITS
from unalike.data.dataset import Dataset
from unalike.data.partition_plan import PartitionPlan
from unalike.data.partitioning import feature_skew
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.data.training_vocabulary import restrict_vocabulary


def apply_plan(plan: PartitionPlan, data: Dataset) -> Population:
    """Divide a data set as a plan says, for example a plan that was saved and loaded again.

    In token inputs, words that no client trains on become unknown, so that no test sample shapes the vocabulary.

    >>> population = apply_plan(PartitionPlan.load("plan.json"), load("digits"))   # doctest: +SKIP

    The samples are those of `data`, or changed copies where the spec names feature changes. Raises `UnalikeError` if `data` is
    another data set than the plan's.
    """
    if data.fingerprint != plan.fingerprint:
        raise UnalikeError(
            f"the plan divides {plan.data!r} with fingerprint {plan.fingerprint}, found {data.name!r} with "
            f"{data.fingerprint}; load the plan's data set, or draw a new partition of this one"
        )
    x, y = data.merged() if plan.merge else data.train
    train, test, val = plan.train, plan.test, plan.val
    calls = [call for call in parse(plan.spec) if call.name in feature_skew.registry]
    if calls:
        x, y, (train, test, val) = _changed(
            plan, x, y, [feature_skew.registry.build(call) for call in calls]
        )
    details = (plan.names, data.classes, data.task, plan, plan.clusters, data.encoding)
    population = Population(x, y, train, test, val, *details)
    return population if x.is_floating_point() else restrict_vocabulary(population)


def _changed(
    plan: PartitionPlan, x: Tensor, y: Tensor, changes: list[feature_skew.Change]
) -> tuple[Tensor, Tensor, list[Ragged]]:
    """Copy and change every client's samples, one client after the other: a sample of two clients is changed in two ways."""
    splits = [getattr(plan, split) for split in SPLITS]
    blocks, rows = [], [np.concatenate(parts) for parts in zip(*splits)]
    for k, mine in enumerate(rows):
        order = np.argsort(
            mine
        )  # so that a change does not depend on the split that a sample is in
        block = x[torch.from_numpy(mine[order])]
        for i, change in enumerate(changes):
            block = change(block, k, plan.clients, generator(plan.seed, "features", i, k))
        blocks.append(block[torch.from_numpy(np.argsort(order))])
    starts = Ragged.of(rows).offsets[:-1]
    placed = []
    for split in splits:
        placed.append(Ragged.ranges(starts, split.sizes))
        starts = starts + split.sizes
    return torch.cat(blocks), y[torch.from_numpy(np.concatenate(rows))], placed
