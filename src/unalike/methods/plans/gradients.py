"""The client query for gradients at one model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeInt
from torch import Tensor

from unalike._utils.seeds import generator
from unalike.core.model import Model
from unalike.core.tasks import Task
from unalike.core.types import Tree
from unalike.methods.client_query import ClientQuery, QueryInputs, client_query

FOLDS = 4
"""Number of parts of each client's samples with a gradient each; they tell differences between clients from noise."""
MOST_PER_FOLD = 128


@client_query
class Gradients(ClientQuery):
    """`parts` [4, P]: the gradients of the mean loss over four random parts of the training samples, 128 samples each at most."""

    name: ClassVar[str] = "gradients"

    seed: NonNegativeInt = 0

    def answer(self, inputs: QueryInputs) -> Tree:
        model, params = inputs.model, inputs.params
        if not inputs.batches:
            return {"parts": torch.zeros(FOLDS, sum(w.numel() for n, w in params.items() if model.trainable(n)))}
        x, y = torch.cat([b.x for b in inputs.batches]), torch.cat([b.y for b in inputs.batches])
        order = generator(self.seed, "gradient parts").permutation(len(y))
        parts = [gradient(model, params, inputs.buffers, inputs.task, x[rows], y[rows]) for rows in folds(order)]
        return {"parts": torch.stack(parts).float().cpu()}


def folds(order: np.ndarray) -> Iterable[Tensor]:
    """Samples in a random order [n] as parts; fewer samples than parts are in several of them."""
    few = order[: FOLDS * MOST_PER_FOLD]
    return (torch.from_numpy(part) for part in np.array_split(np.resize(few, max(len(few), FOLDS)), FOLDS))


def gradient(model: Model, params: Tree, buffers: Tree, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """The gradient [P] of the mean loss by all parameters that train, in evaluation mode."""
    leaves = {n: w.detach().clone().requires_grad_(model.trainable(n)) for n, w in params.items()}
    trained = [w for w in leaves.values() if w.requires_grad]
    with torch.enable_grad():
        loss = task.loss(model(leaves, x, buffers=buffers).logits, y)
        found = torch.autograd.grad(loss, trained, allow_unused=True)
    return torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for w, g in zip(trained, found)])
