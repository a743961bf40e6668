"""The arrays of a population, joined from the data of separate clients."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.inputs import Inputs, is_one_tensor, join_rows, layout_of
from unalike.core.tasks.registry import find_task, task_for
from unalike.core.tasks.task import Task
from unalike.data import array_checks
from unalike.data.client_data import SPLITS, ClientData
from unalike.data.ragged import Ragged, client_name


def join_clients(
    clients: list[ClientData], classes: Sequence[str] | None = None, task: Task | str | None = None
) -> dict[str, Any]:
    """The first fields of a `Population`: the samples client by client, training, then test, then validation samples.

    Raises `UnalikeError`, which names the client, for unequal shapes, labels that the task cannot have or outside the classes,
    and a name that occurs twice.
    """
    if not clients:
        raise UnalikeError("found no clients, expected at least one ClientData(train=(x, y))")
    names = [
        client_name(k) if client.name is None else client.name for k, client in enumerate(clients)
    ]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise UnalikeError(
            f"two clients have the name {twice[0]!r}; expected each name once: rename one"
        )

    # The blocks of samples in the order in which they are joined, and the size of each, 0 where a client lacks a split.
    blocks: dict[str, array_checks.Pair] = {}
    sizes = np.zeros((len(clients), len(SPLITS)), np.int64)
    for k, client in enumerate(clients):
        for i, split in enumerate(SPLITS):
            pair = getattr(client, split)
            if pair is not None:
                blocks[f"client {names[k]!r}, {split}"] = pair
                sizes[k, i] = len(pair[1])
    _check_inputs(blocks)

    # The labels imply the task, unless it is given; the dtype of an empty array implies none.
    first_labels = next(
        (y for _, y in blocks.values() if len(y)), torch.empty(0, dtype=torch.int64)
    )
    if isinstance(task, str):
        task = find_task(task)
    elif task is None:
        task = task_for(first_labels)
    labels = {owner: array_checks.labels_of(pair, owner, task) for owner, pair in blocks.items()}
    _check_shapes_of_labels(labels)
    y = torch.cat([*labels.values()])
    task = task.fitted_to(y)
    if task == task_for(y):  # as anyone would read them
        array_checks.note_truths(y, "the clients")
    classes = array_checks.class_names(task, y, classes)
    for owner, values in labels.items():
        array_checks.check_labels(task, values, classes, owner)

    starts = (sizes.cumsum() - sizes.ravel()).reshape(sizes.shape)
    indices = {split: Ragged.ranges(starts[:, i], sizes[:, i]) for i, split in enumerate(SPLITS)}
    x = join_rows([pair[0] for pair in blocks.values()])
    return {"x": x, "y": y, **indices, "names": names, "classes": classes, "task": task}


def _check_inputs(blocks: dict[str, array_checks.Pair]) -> None:
    kinds = {owner: kind_of(x) for owner, (x, _) in blocks.items()}
    first, expected = next(iter(kinds.items()))
    for owner, kind in kinds.items():
        if kind != expected:
            raise UnalikeError(
                f"{owner}: inputs are {kind}, expected {expected} as in {first}; "
                "all clients train one model, so their inputs need one shape and "
                "kind"
            )


def _check_shapes_of_labels(labels: dict[str, Tensor]) -> None:
    """Raise `UnalikeError` for labels of a sample that have other lengths than those of the first client, such as smaller masks."""
    first, expected = next(iter(labels.items()))
    for owner, y in labels.items():
        if y.shape[1:] != expected.shape[1:]:
            raise UnalikeError(
                f"{owner}: labels are {shape_in_words(y)}, expected {shape_in_words(expected)} as in {first}"
            )


def shape_in_words(values: Tensor) -> str:
    """The shape of the samples of a tensor, such as [N, 28, 28]."""
    lengths = ["N", *(str(length) for length in values.shape[1:])]
    return f"[{', '.join(lengths)}]"


def kind_of(x: Inputs) -> str:
    """The shape of inputs and the type of their numbers, in words."""
    if not is_one_tensor(x):
        return f"{layout_of(x)}"
    return f"{shape_in_words(x)} of {array_checks.type_name(x.dtype)}"
