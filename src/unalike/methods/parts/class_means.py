"""Statistics of a client's features in each class."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.func import grad

from unalike.core import tree
from unalike.core.types import Batch, Tree
from unalike.core.views import ClientView

SUMS_OF_CLASSES = "sums over the samples of each class, which a single site may have"
"""What a secure aggregation says of parts that send them: the sum of such a class is that site's own."""


class ClassFeatures(NamedTuple):
    """Statistics of all local samples by class: their number [C], the mean of their features [C, D] (0 without samples), and the
    mean of the features' squared lengths [C]."""

    counts: Tensor
    means: Tensor
    squares: Tensor


def class_features(client: ClientView, params: Tree, buffers: Tree | None = None) -> ClassFeatures:
    """The features of the model at `params`, in evaluation mode; the calling part must have `needs_data`."""
    buffers = client.buffers if buffers is None else buffers
    width, classes = client.model.head_size
    like = next(iter(params.values()))
    counts = like.new_zeros(classes)
    sums = like.new_zeros(classes, width)
    squares = like.new_zeros(classes)
    for batch in client.data.whole:
        z = client.model.features(params, batch.x, buffers=buffers, context=client.context)
        member = membership(batch, classes).to(z.dtype)
        counts = counts + member.sum(0)
        sums = sums + member.T @ z
        squares = squares + member.T @ z.square().sum(1)
    some = counts.clamp_min(1)
    return ClassFeatures(counts, means=sums / some[:, None], squares=squares / some)


def membership(batch: Batch, classes: int) -> Tensor:
    """[B, C]: 1 for the class of each row that counts."""
    member = batch.y[:, None] == torch.arange(classes, device=batch.y.device)
    return member if batch.weight is None else member * batch.weight[:, None]


def descended_on_means(
    loss: Callable[[Tree, Tensor, Tensor], Tensor],
    params: Tree,
    means: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    generator: Generator,
) -> Tree:
    """The parameters after SGD down `loss(params, means, y)` on means of features [n, D] of classes [n], in random order."""
    slope = grad(loss)
    for _ in range(epochs):
        order = torch.randperm(len(y), generator=generator).to(y.device)
        for rows in order.split(batch_size):
            g = slope(params, means[rows], y[rows])
            params = tree.map(lambda w, g: w - lr * g, params, g)
    return params
