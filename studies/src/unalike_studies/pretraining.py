"""A pretrained start: the model of a cell, trained on samples that its clients do not get."""

from dataclasses import replace

import torch
from torch import nn

from unalike._utils.seeds import generator
from unalike.core.work import Work
from unalike.data.dataset import Dataset
from unalike.data.partitioning.partition import partition
from unalike.runtime.round_loop import execute
from unalike.runtime.setup.run_config import configure_run


def pretrain(
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
    shuffled = torch.from_numpy(generator(seed, "pretrain").permutation(count))
    cut = round(share * count)

    # One client with all of the drawn samples, whose round is one epoch: ordinary training.
    inputs, labels = data.train
    drawn_rows = shuffled[:cut]
    drawn = Dataset(
        data.name, (inputs[drawn_rows], labels[drawn_rows]), test=None, classes=data.classes
    )
    pooled = partition(drawn, "iid", 1, seed, merge=False)
    run_config = configure_run(
        "fedavg",
        pooled,
        model=model,
        seed=seed,
        work=replace(work, schedule=1.0),
        rounds=epochs,
        evaluate_every=epochs,
        executor="loop",
        transform=transform,
    )
    run = execute(run_config)

    # The clients get the other training samples in their old order; the test samples stay whole.
    inputs, labels = data.merged()
    rest_of_training = shuffled[cut:].sort().values
    test_rows = torch.arange(count, len(labels))
    rest_rows = torch.cat([rest_of_training, test_rows])
    groups = {column: values[rest_rows.numpy()] for column, values in data.groups.items()}
    rest = Dataset.divided(
        data.name,
        inputs[rest_rows],
        labels[rest_rows],
        count - cut,
        data.classes,
        groups,
        data.encoding,
    )
    return rest, run.module()
