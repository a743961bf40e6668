"""A pretrained start: the model of a cell, trained on samples that its clients do not get."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from unalike._utils.seeds import generator
from unalike.core.work import Work
from unalike.data.dataset import Dataset
from unalike.data.partitioning.partition import partition
from unalike.runtime.round_loop import execute
from unalike.runtime.setup.run_config import configure_run


def pretrained(
    data: Dataset,
    model: str,
    work: Work,
    transform: str | None,
    seed: int,
    *,
    share: float,
    epochs: int,
) -> tuple[Dataset, nn.Module]:
    """Train a model on a share of the training samples, drawn at random.

    Args:
        data: the data set.
        model: the model as text.
        work: batches and solver, those of the clients.
        transform: transform of batches, that of the clients.
        seed: the seed of the draw, the initial weights and the batches.
        share: the share of the training samples.
        epochs: the number of passes over them.

    Returns:
        The data set without these samples, and the trained model.
    """
    count = len(data.train[1])
    rows = torch.from_numpy(generator(seed, "pretrain").permutation(count))
    cut = round(share * count)
    x, y = (t[rows[:cut]] for t in data.train)
    pooled = partition(Dataset(data.name, (x, y), None, data.classes), "iid", 1, seed, merge=False)
    options: dict[str, Any] = {
        "rounds": epochs,
        "evaluate_every": epochs,
        "executor": "loop",
        "transform": transform,
    }
    run = execute(
        configure_run(
            "fedavg", pooled, model=model, seed=seed, work=replace(work, schedule=1.0), **options
        )
    )
    rest_rows = torch.cat([rows[cut:].sort().values, torch.arange(count, len(data.merged()[1]))])
    x, y = (t[rest_rows] for t in data.merged())
    groups = {column: values[rest_rows.numpy()] for column, values in data.groups.items()}
    rest = Dataset.divided(data.name, x, y, count - cut, data.classes, groups, data.encoding)
    return rest, run.module()
