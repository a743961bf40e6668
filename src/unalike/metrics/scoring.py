"""Scoring of a model on many clients' test samples in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unalike.core.inputs import (
    Inputs,
    first_rows,
    map_inputs,
    row_count,
    sample_bytes,
    split_rows,
    take_rows,
)
from unalike.core.model import Model
from unalike.core.nests import tensors_of
from unalike.core.tasks.task import SEPARATE_LOSSES, Task
from unalike.core.types import Context, Tree
from unalike.loops import crew as compiled_loops

Predict = Callable[[Inputs], Tensor]
"""Inputs [B, ...] -> logits [B, C]."""

MAX_ROWS = 4096
"""Most samples of one forward pass in evaluation."""
MIN_ROWS = 16
"""Fewest samples of one forward pass, however large they are."""
IMAGE_BYTES = 2**20
"""Bytes of images whose activations stay, about, in a processor's cache."""
VECTOR_BYTES = 2**21
"""Bytes of samples of one dimension, whose activations are no larger than they."""
DEVICE_BYTES = 2**25
"""Bytes of samples on an accelerator, where a ResNet-18 takes a hundred times as many for its activations."""


@dataclass(frozen=True)
class Scores:
    """One entry per test sample: its client, its loss, its label, the prediction and the logits.

    Label and prediction are those that metrics compare (`Task.scored`).

    Logits are [n] for one output and [n, C] for classes; for more than two they are kept only where asked for (else [n, 0]).
    """

    client: np.ndarray
    loss: np.ndarray
    y: np.ndarray
    predicted: np.ndarray
    logits: np.ndarray

    def of(self, keep: np.ndarray) -> Scores:
        """The samples that a mask or index array picks."""
        return Scores(
            client=self.client[keep],
            loss=self.loss[keep],
            y=self.y[keep],
            predicted=self.predicted[keep],
            logits=self.logits[keep],
        )

    @property
    def tensors(self) -> Tree:
        """The same as tensors, as worker processes send them."""
        return {name: torch.from_numpy(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def of_tensors(cls, tensors: Tree) -> Scores:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return cls(**arrays)

    @classmethod
    def join(cls, scores: Sequence[Scores]) -> Scores:
        """The samples of several evaluations."""
        joined = {}
        for name in cls.__dataclass_fields__:
            joined[name] = np.concatenate([getattr(part, name) for part in scores])
        return cls(**joined)


def score(
    task: Task,
    predict: Predict,
    x: Inputs,
    y: Tensor,
    client: np.ndarray,
    logits: bool = False,
    index: Tensor | None = None,
) -> Scores:
    """Run a model over samples x [n, ...], y [n] that belong to clients [n]; `logits`: keep those of more classes, too.

    With `index` [n] the samples are these of x.
    """
    losses, compared, predicted, kept_logits = [], [], [], []
    for some, labels in zip(outputs(predict, x, index), y.split(rows_at_once(x)), strict=True):
        if task.offers(SEPARATE_LOSSES):
            losses.append(task.losses(some, labels))
        else:
            losses.append(some)
        label, prediction = task.scored(some, labels)
        compared.append(label)
        predicted.append(prediction)
        kept_logits.append(task.scored_logits(some, wanted=logits))
    loss = torch.cat(losses)
    if not task.offers(SEPARATE_LOSSES):
        loss = _losses_within_clients(task, loss, y, client)
    return Scores(
        client=client,
        loss=loss.cpu().numpy(),
        y=torch.cat(compared).cpu().numpy(),
        predicted=torch.cat(predicted).cpu().numpy(),
        logits=torch.cat(kept_logits).cpu().numpy(),
    )


def _losses_within_clients(task: Task, logits: Tensor, y: Tensor, client: np.ndarray) -> Tensor:
    """The losses [n] of a task that compares samples: each with those of its own client, so that no piece of them matters."""
    losses = torch.zeros(len(y), device=logits.device)
    for owner in np.unique(client):
        rows = torch.from_numpy(np.flatnonzero(client == owner)).to(logits.device)
        losses[rows] = task.losses(logits[rows], y[rows])
    return losses


def outputs(predict: Predict, x: Inputs, index: Tensor | None = None) -> Iterator[Tensor]:
    """Logits of the samples [n, ...] without gradients, a few at a time; on all threads of the run if operations have one each.

    Samples that `index` picks are copied a few at a time as well: into the cache, instead of through memory.
    """
    picked = x if index is None else index

    @torch.no_grad()  # gradient mode is per thread
    def logits(some: Inputs) -> Tensor:
        return predict(some if index is None else take_rows(x, some))

    # many modules fail on an empty batch, such as those with `h.view(len(x), -1)`
    if not row_count(picked):
        one_sample = map_inputs(lambda t: t.new_zeros(1, *t.shape[1:]), x)
        with torch.no_grad():
            return iter([predict(one_sample)[:0]])
    pieces = split_rows(picked, rows_at_once(x))
    if torch.get_num_threads() == 1:
        return compiled_loops.each(logits, pieces)
    return map(logits, pieces)


def rows_at_once(x: Inputs) -> int:
    """Samples of one forward pass over `x`: activations of images that leave the cache take several times as long."""
    if not row_count(x):
        return MAX_ROWS
    tensors = tensors_of(x)
    if tensors[0].device.type != "cpu":
        most_bytes = DEVICE_BYTES
    elif all(t.dim() == 2 for t in tensors):
        most_bytes = VECTOR_BYTES
    else:
        most_bytes = IMAGE_BYTES
    return min(MAX_ROWS, max(MIN_ROWS, most_bytes // max(1, sample_bytes(x))))


@dataclass(frozen=True)
class SharedModel:
    """The prediction of one model; for one client where the model is fed its facts, `context`, else for everybody."""

    model: Model
    params: Tree
    buffers: Tree
    context: Context | None = None

    def __call__(self, x: Inputs) -> Tensor:
        model = self.model.channels_last(first_rows(x, 2), self.context)
        return model(self.params, x, buffers=self.buffers, context=self.context).logits
