"""The arrays of a population, joined from the data of separate clients."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.tasks import Task, find_task, task_for
from unalike.data import array_checks
from unalike.data.client_data import SPLITS, ClientData
from unalike.data.ragged import Ragged, client_name

LABELS = {"classification": torch.int64, "binary": torch.bool, "regression": torch.float32}


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
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UnalikeError(
            f"two clients have the name {twice[0]!r}; expected each name once: rename one"
        )
    pairs = [[getattr(client, split) for split in SPLITS] for client in clients]
    blocks = {
        f"client {name!r}, {split}": pair
        for name, row in zip(names, pairs)
        for split, pair in zip(SPLITS, row)
        if pair is not None
    }
    _check_inputs(blocks)
    # the dtype of an empty array implies no task
    told = next((y for _, y in blocks.values() if len(y)), torch.empty(0, dtype=torch.int64))
    task = find_task(task) if isinstance(task, str) else task or task_for(told)
    labels = {owner: _labels(pair[1], task, owner) for owner, pair in blocks.items()}
    y = torch.cat([*labels.values()])
    array_checks.note_truths(y, "the clients")
    classes = array_checks.class_names(y, classes)
    for owner, own in labels.items() if classes is not None else ():
        array_checks.label_range(own, len(classes or ()), owner)
    sizes = np.array([[0 if pair is None else len(pair[1]) for pair in row] for row in pairs])
    starts = (sizes.cumsum() - sizes.ravel()).reshape(sizes.shape)
    train, test, val = (Ragged.ranges(starts[:, i], sizes[:, i]) for i in range(len(SPLITS)))
    samples = {
        "x": torch.cat([pair[0] for pair in blocks.values()]),
        "y": y,
        "train": train,
        "test": test,
        "val": val,
    }
    return samples | {"names": names, "classes": classes, "task": task}


def _check_inputs(blocks: dict[str, array_checks.Pair]) -> None:
    kinds = {owner: _kind(pair[0]) for owner, pair in blocks.items()}
    first, expected = next(iter(kinds.items()))
    for owner, found in kinds.items():
        if found != expected:
            raise UnalikeError(
                f"{owner}: inputs are {found}, expected {expected} as in {first}; "
                "all clients train one model, so their inputs need one shape and kind"
            )


def _kind(x: Tensor) -> str:
    return f"[{', '.join(map(str, ['N', *x.shape[1:]]))}] of {str(x.dtype).removeprefix('torch.')}"


def _labels(y: Tensor, task: Task, owner: str) -> Tensor:
    """Convert labels to the task's dtype. Raises `UnalikeError` if that would round a label or merge two."""
    expected = LABELS[task.name]
    converted = y.to(expected)
    if (converted.to(y.dtype) != y).any():
        found, wanted = (str(dtype).removeprefix("torch.") for dtype in (y.dtype, expected))
        raise UnalikeError(
            f"{owner}: labels are {found} in {y.min().item()}..{y.max().item()}, which task {task.name} cannot take; "
            f"expected {wanted}, or another task="
        )
    return converted
