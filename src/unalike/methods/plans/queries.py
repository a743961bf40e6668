"""The questions that plans ask of clients."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree
from unalike.methods.client_query import ClientQuery, QueryInputs, client_query


@client_query
class LabelCounts(ClientQuery):
    """`counts` [C]: training samples of each class."""

    name: ClassVar[str] = "label_counts"
    needs_model: ClassVar[bool] = False

    def answer(self, asked: QueryInputs) -> Tree:
        _, classes = asked.model.head_size
        counts = [torch.bincount(labels(b.y, classes), minlength=classes) for b in asked.batches]
        return {"counts": sum(counts, start=torch.zeros(classes, dtype=torch.int64))}


@client_query
class MeanLoss(ClientQuery):
    """`loss` []: the mean task loss of the model, in evaluation mode, over the training samples."""

    name: ClassVar[str] = "mean_loss"

    def answer(self, asked: QueryInputs) -> Tree:
        total, count = torch.zeros(()), 0
        for b in asked.batches:
            logits = asked.model(asked.params, b.x, buffers=asked.buffers).logits
            total, count = total + asked.task.losses(logits, b.y).sum(), count + len(b.y)
        return {"loss": total / max(count, 1)}


@client_query
class FeatureStatistics(ClientQuery):
    """Of the features z of each class c: `counts` [C], `mean` [C, D], `covariance` [C, D, D] (divided by n - 1; 0 if n < 2)."""

    name: ClassVar[str] = "feature_statistics"

    def answer(self, asked: QueryInputs) -> Tree:
        features, classes = asked.model.head_size
        z, y = _features(asked)
        counts, mean, covariance = torch.zeros(classes), torch.zeros(classes, features), []
        for c in range(classes):
            mine = z[y == c]
            counts[c] = len(mine)
            mean[c] = mine.mean(0) if len(mine) else 0
            centred = mine - mean[c]
            covariance.append(centred.T @ centred / max(len(mine) - 1, 1))
        return {"counts": counts, "mean": mean, "covariance": torch.stack(covariance)}


def labels(y: Tensor, classes: int) -> Tensor:
    """The labels as class numbers. Raises `UnalikeError` where they are none."""
    if y.is_floating_point() or y.dtype == torch.bool or classes < 2:
        raise UnalikeError(
            f"found {y.dtype} labels and {classes} outputs; this plan needs integer labels of two classes or more"
        )
    return y.cpu()


def _features(asked: QueryInputs) -> tuple[Tensor, Tensor]:
    """Features [n, D] and labels [n] of all samples, on the CPU."""
    features, classes = asked.model.head_size
    z, y = [torch.zeros(0, features)], [torch.zeros(0, dtype=torch.int64)]
    for b in asked.batches:
        z.append(asked.model.features(asked.params, b.x, buffers=asked.buffers).cpu())
        y.append(labels(b.y, classes))
    return torch.cat(z), torch.cat(y)
