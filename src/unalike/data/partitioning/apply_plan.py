"""Turn a partition plan and its data set into a population."""

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike._utils.seeds import generator
from unalike._utils.spec import parse
from unalike.core.inputs import is_one_tensor
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
            f"the plan divides {plan.data!r} with fingerprint {plan.fingerprint}, "
            f"found {data.name!r} with {data.fingerprint}; load the plan's data set, "
            "or draw a new partition of this one"
        )
    x, y = data.merged() if plan.merge else data.train
    indices = {"train": plan.train, "test": plan.test, "val": plan.val}
    calls = [call for call in parse(plan.spec) if call.name in feature_skew.registry]
    if calls:
        changes = [feature_skew.registry.build(call) for call in calls]
        if not is_one_tensor(x):
            raise UnalikeError(
                f"{calls[0].name} changes samples that are one array, found several; leave it out, or change the arrays before "
                f"({Limit.INPUTS})"
            )
        moving = [call.name for call, change in zip(calls, changes) if change.moves_pixels]
        if moving and data.known_task.predicts_arrays:
            raise UnalikeError(
                f"{moving[0]} moves the pixels of images and leaves their labels where they are, which for the task "
                f"{data.known_task.name} are as large as the images; leave it out, or turn both before"
            )
        x, y, indices = _changed(plan, x, y, changes)
    population = Population(
        x=x,
        y=y,
        **indices,
        names=plan.names,
        classes=data.classes,
        task=data.known_task,
        plan=plan,
        clusters=plan.clusters,
        encoding=data.encoding,
    )
    # Tokens only: a word of test samples alone must not shape the vocabulary.
    is_text = is_one_tensor(x) and not x.is_floating_point()
    return restrict_vocabulary(population) if is_text else population


def _changed(
    plan: PartitionPlan, x: Tensor, y: Tensor, changes: list[feature_skew.Change]
) -> tuple[Tensor, Tensor, dict[str, Ragged]]:
    """Copy and change every client's samples, one client after the other: a sample of two clients is changed in two ways.

    Returns the samples and, by split, each client's indices into them.
    """
    splits: dict[str, Ragged] = {split: getattr(plan, split) for split in SPLITS}
    rows_of_clients = [np.concatenate(parts) for parts in zip(*splits.values())]
    blocks = []
    for k, rows in enumerate(rows_of_clients):
        # In ascending order, so that a change does not depend on the split that a sample is in.
        order = np.argsort(rows)
        block = x[torch.from_numpy(rows[order])]
        for i, change in enumerate(changes):
            rng = generator(plan.seed, "features", i, k)
            block = change(block, k, plan.clients, rng)
        blocks.append(block[torch.from_numpy(np.argsort(order))])

    # In a client's block its training samples come first, then its test and its validation samples.
    starts = Ragged.of(rows_of_clients).offsets[:-1]
    places = {}
    for split, rows_of_split in splits.items():
        places[split] = Ragged.ranges(starts, rows_of_split.sizes)
        starts = starts + rows_of_split.sizes
    index = torch.from_numpy(np.concatenate(rows_of_clients))
    return torch.cat(blocks), y[index], places
