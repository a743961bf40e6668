"""The client queries of the plans in this folder."""

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

    def answer(self, inputs: QueryInputs) -> Tree:
        _, classes = inputs.model.head_size
        counts = torch.zeros(classes, dtype=torch.int64)
        for b in inputs.batches:
            counts = counts + torch.bincount(labels(b.y, classes), minlength=classes)
        return {"counts": counts}


@client_query
class MeanLoss(ClientQuery):
    """`loss` []: the mean task loss of the model, in evaluation mode, over the training samples."""

    name: ClassVar[str] = "mean_loss"

    def answer(self, inputs: QueryInputs) -> Tree:
        total = torch.zeros(())
        count = 0
        for b in inputs.batches:
            logits = inputs.model(inputs.params, b.x, buffers=inputs.buffers).logits
            total = total + inputs.task.losses(logits, b.y).sum()
            count += len(b.y)
        return {"loss": total / max(count, 1)}


@client_query
class FeatureStatistics(ClientQuery):
    """Features z of each class c: `counts` [C], `mean` [C, D], `covariance` [C, D, D] (divided by n - 1; 0 if n < 2)."""

    name: ClassVar[str] = "feature_statistics"

    def answer(self, inputs: QueryInputs) -> Tree:
        features, classes = inputs.model.head_size
        z, y = _features(inputs)
        counts = torch.zeros(classes)
        mean = torch.zeros(classes, features)
        covariance = []
        for c in range(classes):
            of_class = z[y == c]
            n = len(of_class)
            counts[c] = n
            mean[c] = of_class.mean(0) if n else 0
            centred = of_class - mean[c]
            covariance.append(centred.T @ centred / max(n - 1, 1))
        return {"counts": counts, "mean": mean, "covariance": torch.stack(covariance)}


def labels(y: Tensor, classes: int) -> Tensor:
    """Integer labels, on the CPU. Raises `UnalikeError` for other labels."""
    if y.is_floating_point() or y.dtype == torch.bool or classes < 2:
        raise UnalikeError(
            f"found {y.dtype} labels and {classes} outputs; this plan needs integer labels of two classes or more"
        )
    return y.cpu()


def _features(inputs: QueryInputs) -> tuple[Tensor, Tensor]:
    """Features [n, D] and labels [n] of all samples, on the CPU."""
    features, classes = inputs.model.head_size
    z = [torch.zeros(0, features)]
    y = [torch.zeros(0, dtype=torch.int64)]
    for b in inputs.batches:
        z.append(inputs.model.features(inputs.params, b.x, buffers=inputs.buffers).cpu())
        y.append(labels(b.y, classes))
    return torch.cat(z), torch.cat(y)
